"""Files and folders that nobody else may read or write, by the rules of ssh."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from aero.reading import printable

_WRITABLE, _OPEN = 0o022, 0o077


def check_trusted(path: Path, *, secret: bool = False) -> None:
    """Checks that only this user or root can write a file and its folder, where links lead.

    Args:
        path: of a file, or of a folder.
        secret: nobody else may read it either.

    Raises:
        ValueError: others may, or it is another user's.
    """
    real = path.resolve()
    try:
        _check(path, real.stat(), _OPEN if secret else _WRITABLE)
        if real.is_file():
            _check(real.parent, real.parent.stat(), _WRITABLE)
    except OSError as error:
        raise ValueError(f"private: {path}: cannot be read: {error.strerror}") from error


def open_folder(path: Path) -> int:
    """A descriptor of a folder that only this user can write; made if missing.

    Raises:
        ValueError: it is a link, no folder, or others may write to it.
    """
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise ValueError(
            f"private: {path}: expected a folder and no link, got {error.strerror}"
        ) from error
    try:
        _check(path, os.fstat(folder), _WRITABLE)
    except ValueError:
        os.close(folder)
        raise
    return folder


def _check(path: Path, found: os.stat_result, forbidden: int) -> None:
    name, mode = printable(str(path)), stat.S_IMODE(found.st_mode)
    if found.st_uid not in (0, os.geteuid()):
        raise ValueError(
            f"private: {name}: expected a file or folder of this user or of root, got one of user "
            f"{found.st_uid}; chown it"
        )
    if mode & forbidden:
        done, change = ("read", "go=") if forbidden == _OPEN else ("write to", "go-w")
        raise ValueError(
            f"private: {name}: expected that only its owner can {done} it, got mode {mode:04o}; "
            f"`chmod {change} {name}`"
        )
