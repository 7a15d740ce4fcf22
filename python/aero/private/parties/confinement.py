"""A worker without what it does not need, so that who takes it over through SPU gets little.

SPU parses the other party's traffic in C++. The worker therefore gives away, before any thread of
it runs and any byte of the other party comes, what it needs neither for computing nor for its
sockets. Landlock (Linux 5.13, for TCP 6.7, for signals 6.12) leaves it the files of Python and of
its network to read, and no program to start. libseccomp has no binding that is kept.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from aero.private.party_errors import PartyError

_PACKAGE = Path(__file__).parents[2]
_libc = ctypes.CDLL(None, use_errno=True)

# linux/prctl.h, linux/capability.h
_SET_DUMPABLE, _SET_NO_NEW_PRIVILEGES, _AMBIENT, _CLEAR_ALL = 4, 38, 47, 4
_CAPABILITY_VERSION = 0x20080522
# linux/landlock.h; the numbers are those of every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_FOLDER, _MAKE_SOCKET = (
    1 << bit for bit in (0, 1, 2, 3, 9)
)
# How many kinds of access to files each version knows, from 1 on; then TCP and signals.
_FILE_ACCESSES = (13, 14, 15, 15, 16)
_TCP_VERSION, _ALL_TCP, _SCOPE_VERSION, _ALL_SCOPES = 4, 0b11, 6, 0b11

# What Python, NumPy, jax and SPU read besides their own files.
_READ = ("/usr", "/lib", "/lib64", "/proc", "/sys")
_READ_FILES = ("ld.so.cache", "localtime", "nsswitch.conf", "hosts", "passwd", "os-release")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


def confine(readable: Iterable[Path], own: Path) -> list[str]:
    """Drops what this process does not need, for all of its life.

    No core file, no other process of this user that looks into it, no new privileges, no
    capability of root. With Landlock no file to write outside `own`, none to read but Python's, the
    system's libraries and `readable`, no program, no TCP, and no signal to others. Sockets in the
    folder for temporary files stay possible.

    Args:
        readable: further files and folders.
        own: the process's folder, from now on the one for its temporary files.

    Returns:
        In words, what this system's kernel does not offer.

    Raises:
        PartyError: this process has threads, which would keep everything, or a call failed.
    """
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        raise PartyError(f"confine: expected to come before all threads, got {threads}")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _checked("PR_SET_DUMPABLE", _libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0))
    _checked("PR_SET_NO_NEW_PRIVS", _libc.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    version = _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version > 0:
        _restrict(version, readable, own)
    tempfile.tempdir = str(own)
    _drop_capabilities()
    least = {"files and programs": 1, "TCP": _TCP_VERSION, "signals": _SCOPE_VERSION}
    return [f"no limits on {what}" for what, number in least.items() if version < number]


def _restrict(version: int, readable: Iterable[Path], own: Path) -> None:
    files = (1 << _FILE_ACCESSES[min(version, len(_FILE_ACCESSES)) - 1]) - 1
    tcp = _ALL_TCP if version >= _TCP_VERSION else 0
    scopes = _ALL_SCOPES if version >= _SCOPE_VERSION else 0
    size = 24 if scopes else 16 if tcp else 8
    described = struct.pack("QQQ", files, tcp, scopes)[:size]
    ruleset = _checked("Landlock", _call(_CREATE_RULESET, described, ctypes.c_size_t(size), 0))
    try:
        python = (str(_PACKAGE), sys.prefix, sys.base_prefix, *sys.path)
        system = (*_READ, *(f"/etc/{name}" for name in _READ_FILES))
        for path in (*map(Path, (*python, *system)), *readable):
            _allow(ruleset, path, _READ_FILE | _READ_FOLDER)
        for device in _DEVICES:
            _allow(ruleset, Path(device), _READ_FILE | _WRITE_FILE)
        _allow(ruleset, Path(tempfile.gettempdir()), _MAKE_SOCKET)
        _allow(ruleset, own, files & ~_EXECUTE)
        _checked("Landlock", _call(_RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path, access: int) -> None:
    """Allows access to a file, or to all below a folder; nothing where there is none."""
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not path.is_dir():
            access &= ~_READ_FOLDER
        rule = struct.pack("=Qi", access, place)
        _checked(f"Landlock of {path}", _call(_ADD_RULE, ruleset, 1, rule, 0))
    finally:
        os.close(place)


def _drop_capabilities() -> None:
    """Those of root, whose process this may be."""
    _libc.prctl(_AMBIENT, _CLEAR_ALL, 0, 0, 0)
    header, none = struct.pack("Ii", _CAPABILITY_VERSION, 0), bytes(24)
    _checked("capset", _libc.capset(header, none))


def _call(number: int, *arguments: object) -> int:
    return int(_libc.syscall(number, *arguments))


def _checked(what: str, result: int) -> int:
    if result < 0:
        raise PartyError(f"confine: {what}: {os.strerror(ctypes.get_errno())}")
    return result
