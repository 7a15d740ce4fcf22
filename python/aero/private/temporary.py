"""Temporary folders that do not outlive a killed program: the next one removes them.

They hold weights of a network, sockets and logs. Each is locked by the process that made it; one
that nobody locks was left behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "aero-private."


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that only this user can enter, for a block.

    First removes those that killed programs of this user have left.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), _locked(left) as lock:  # OSError: it is in use
            if os.fstat(lock).st_uid == os.getuid():
                shutil.rmtree(left)
    with contextlib.ExitStack() as held:
        while True:
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
            with contextlib.suppress(OSError):  # another program took it for left behind
                held.enter_context(_locked(folder))
                if folder.is_dir():
                    break
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[int]:
    """Locks a folder, or raises OSError; the lock ends with this process."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    finally:
        os.close(descriptor)
