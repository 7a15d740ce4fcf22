"""One training at a time in a run folder, on whichever machine: leases with a heartbeat.

`.locks/N` is the folder's N-th lease, and the highest number counts. It names its holder, who
renews its time of change; an empty one has ended. A process takes the folder by linking a file of
its own to the next number. Of several that try, one succeeds, over NFS too. No lease is ever
removed, so that nobody can remove another one's.

On the holder's machine its process decides whether it lives: a killed one blocks nobody. Elsewhere
the heartbeat decides.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from aero.train.errors import TrainingError, disk_errors

_LEASES = ".locks"
_BEAT_SECONDS = 10.0
# Without a beat for so long a holder on another machine is dead: nine beats, and more than the 60 s
# for which NFS clients cache the attributes of a file.
_DEAD_SECONDS = 90.0


class RunLockedError(TrainingError):
    """Another process trains in the run folder; the text names folder, process and host."""


@contextmanager
def locked(folder: str | Path) -> Iterator[Callable[[], None]]:
    """Holds the lock of a run folder.

    Args:
        folder: of the run; created if missing.

    Yields:
        A function to call before anything is written. It raises `RunLockedError` if the process was
        taken for dead, such as while it was stopped, and another one took the folder.

    Raises:
        RunLockedError: another process holds it.
        TrainingError: the file cannot be written or linked.
    """
    path = Path(folder)
    with disk_errors("the lock", path, "run the same command again"):
        lease = _Lease(path)
    beating = threading.Thread(target=lease.keep_beating, daemon=True)
    beating.start()
    try:
        yield lease.require_held
    finally:
        lease.ended.set()
        beating.join()
        with suppress(OSError):
            os.truncate(lease.file, 0)


class _Lease:
    """One that this process took."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ended, self.lost = folder, threading.Event(), False
        (folder / _LEASES).mkdir(parents=True, exist_ok=True)
        own = folder / _LEASES / f".{uuid.uuid4().hex}"
        own.write_text(f"process {os.getpid()} on {socket.gethostname()}\n{_identity(os.getpid())}")
        try:
            last = _last_lease(folder)
            # Both times are the file server's: the clocks of the machines do not matter.
            if last is not None and _is_alive(last, own.stat().st_mtime):
                raise _locked_by(folder, _named_in(last))
            self.file = _following(last) if last is not None else folder / _LEASES / "1"
            with suppress(FileExistsError):
                os.link(own, self.file)
            # Over NFS a link may be reported to exist that this very call made.
            if own.stat().st_nlink < 2:
                raise _locked_by(folder, _named_in(self.file))
        finally:
            own.unlink()
        self.beaten = _now()

    def keep_beating(self) -> None:
        """Renews the lease until it has ended; in a thread of its own."""
        while not self.ended.wait(_BEAT_SECONDS):
            with suppress(OSError):  # of a file server that does not answer now
                self.beat()

    def beat(self) -> None:
        """Renews the lease, or finds that another process has the next one."""
        beaten = _now()
        self.lost = self.lost or _following(self.file).exists()
        os.utime(self.file)
        self.beaten = beaten

    def require_held(self) -> None:
        """Raises `RunLockedError` if another process has taken the folder."""
        if _now() - self.beaten > _DEAD_SECONDS / 2:
            with disk_errors("the lock", self.folder, "run the same command again"):
                self.beat()
        if self.lost:
            raise _locked_by(self.folder, lock_holder(self.folder) or "another process")


def lock_holder(folder: str | Path) -> str | None:
    """Returns who trains in a run folder, such as "process 7 on box"; None if nobody does."""
    last = _last_lease(Path(folder))
    return _named_in(last) if last is not None and _is_alive(last, time.time()) else None


def require_unlocked(folder: str | Path) -> None:
    """Raises `RunLockedError` if another process trains in a run folder."""
    holder = lock_holder(folder)
    if holder is not None:
        raise _locked_by(folder, holder)


def _last_lease(folder: Path) -> Path | None:
    """The lease that counts: the highest one listed, or one that NFS does not list yet."""
    try:
        leases = [path for path in (folder / _LEASES).iterdir() if path.name.isdecimal()]
    except OSError:
        return None
    last = max(leases, key=lambda path: int(path.name), default=None)
    while last is not None and _following(last).exists():
        last = _following(last)
    return last


def _following(lease: Path) -> Path:
    return lease.with_name(str(int(lease.name) + 1))


def _is_alive(lease: Path, now: float) -> bool:
    """Whether the lease is not over and its holder lives; `now` in seconds since 1970."""
    try:
        with lease.open("rb") as file:  # opening makes NFS ask for the file's time
            text = file.read(400).decode(errors="replace")
            renewed = os.fstat(file.fileno()).st_mtime
    except OSError:
        return False
    if not text:
        return False
    pid = re.match(r"process (\d+) on ", text)
    said = text.partition("\n")[2]
    if pid is not None and said and said.rpartition(" ")[0] == _machine():
        return _identity(int(pid[1])) == said
    return now - renewed < _DEAD_SECONDS


def _machine() -> str:
    """The running system and the numbers that it gives to processes; empty where unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def _identity(pid: int) -> str:
    """The machine and when the process started: its number may be given again; empty if dead."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    state, started = fields[0], fields[19]
    return "" if state in "ZX" or not _machine() else f"{_machine()} {started}"


def _now() -> float:
    """Seconds that pass while the process or the machine sleeps, too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _locked_by(folder: str | Path, holder: str) -> RunLockedError:
    return RunLockedError(
        f"train: {folder} is being trained by {holder}; wait for its end, stop it, or choose "
        "another --output"
    )


def _named_in(lease: Path) -> str:
    try:
        text = lease.read_bytes()[:200].decode(errors="replace").partition("\n")[0]
    except OSError:
        text = ""
    return text if text.isprintable() and text else "another process"
