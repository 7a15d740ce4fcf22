"""One training at a time in a run folder, on whichever machine: a lock of the file `.lock` in it.

The lock ends with its process, however that ends: the system frees it. Over NFS the file server
does, also for a machine that died, after the server's own wait (90 s by default).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from aero.internals.errors import TrainingError, disk_errors

# Beside the lock, whose own file `filelock` may empty.
_HOLDER = ".lock-holder"
# Whoever asks for the holder has the lock for a moment. A training waits for that to pass.
_ASKING_SECONDS, _TAKING_SECONDS, _POLL_SECONDS = 0.1, 1.0, 0.01


class RunLockedError(TrainingError):
    """Another process trains in the run folder; the text names folder, process and host."""


@contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Holds the lock of a run folder.

    Args:
        folder: of the run; created if missing.

    Raises:
        RunLockedError: another process holds it.
        TrainingError: the file cannot be written, or its file system has no locks.
    """
    path = Path(folder)
    lock = _lock(path)
    with disk_errors("the lock", path, "run the same command again"):
        path.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=_TAKING_SECONDS, poll_interval=_POLL_SECONDS)
        except Timeout:
            raise _locked_by(path, _named_in(path)) from None
    try:
        with disk_errors("the lock", path, "run the same command again"):
            (path / _HOLDER).write_text(f"process {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        with suppress(OSError):
            (path / _HOLDER).unlink()
        lock.release()


def lock_holder(folder: str | Path) -> str | None:
    """Returns who trains in a run folder, such as "process 7 on box"; None if nobody does."""
    path = Path(folder)
    if not (path / _HOLDER).exists():
        return None
    try:
        with _lock(path).acquire(timeout=_ASKING_SECONDS, poll_interval=_POLL_SECONDS):
            return None
    except (Timeout, PermissionError):  # a folder that others own cannot be tried
        return _named_in(path)


def require_unlocked(folder: str | Path) -> None:
    """Raises `RunLockedError` if another process trains in a run folder."""
    holder = lock_holder(folder)
    if holder is not None:
        raise _locked_by(folder, holder)


def _lock(folder: Path) -> FileLock:
    return FileLock(folder / ".lock")


def _locked_by(folder: str | Path, holder: str) -> RunLockedError:
    return RunLockedError(
        f"train: {folder} is being trained by {holder}; wait for its end, stop it, or choose "
        "another --output"
    )


def _named_in(folder: Path) -> str:
    try:
        text = (folder / _HOLDER).read_bytes()[:200].decode(errors="replace")
    except OSError:
        text = ""
    return text if text.isprintable() and text else "another process"
