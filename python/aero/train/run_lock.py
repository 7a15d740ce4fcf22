"""One training at a time in a run folder: a lock that the system frees, however its holder ends."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aero.train.errors import TrainingError, disk_errors

__all__ = ["RunLockedError", "lock_holder", "locked", "require_unlocked"]

_LOCK_FILE = ".lock"


class RunLockedError(TrainingError):
    """Another process trains in the run folder; the text names folder, process and host."""


@contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Holds the lock of a run folder.

    The lock is on the file `.lock`, not in it: the system frees it when the process ends, so a
    killed process blocks nobody. The file stays and says who held it last.

    Args:
        folder: of the run; created if missing.

    Raises:
        RunLockedError: another process holds it.
        TrainingError: the file cannot be written or locked.

    Example:
        >>> import os, socket
        >>> from aero.train.run_lock import lock_holder, locked
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> with locked(folder.name):
        ...     lock_holder(folder.name) == f"process {os.getpid()} on {socket.gethostname()}"
        True
        >>> lock_holder(folder.name) is None
        True
    """
    path = Path(folder)
    with disk_errors("the lock", path, "run the same command again"):
        path.mkdir(parents=True, exist_ok=True)
        file = (path / _LOCK_FILE).open("a")
    with file:
        with disk_errors("the lock", path, "run the same command again"):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _locked_by(path, _named_in(path)) from None
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
            file.flush()
        yield


def lock_holder(folder: str | Path) -> str | None:
    """Returns who trains in a run folder, such as "process 7 on box"; None if nobody does.

    Args:
        folder: of the run; nothing is written there.
    """
    path = Path(folder)
    try:
        file = (path / _LOCK_FILE).open()
    except OSError:
        return None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _named_in(path)
    return None


def require_unlocked(folder: str | Path) -> None:
    """Raises `RunLockedError` if another process trains in a run folder."""
    holder = lock_holder(folder)
    if holder is not None:
        raise _locked_by(folder, holder)


def _locked_by(folder: str | Path, holder: str) -> RunLockedError:
    return RunLockedError(
        f"train: {folder} is being trained by {holder}; wait for its end, stop it, or choose "
        "another --output"
    )


def _named_in(folder: Path) -> str:
    try:
        text = (folder / _LOCK_FILE).read_bytes()[:200].decode(errors="replace")
    except OSError:
        text = ""
    # Between taking the lock and saying so a holder has not said it yet.
    return text if text.isprintable() and text else "another process"
