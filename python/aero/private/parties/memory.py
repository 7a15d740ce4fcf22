"""How much memory a worker may take, and how much it holds.

Where an allocation fails in one of SPU's threads, a message is lost and both parties wait on. So
the supervisor ends a worker above its limit, and the system refuses memory only a quarter above.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["held_memory", "most_memory"]


def most_memory(given: int | None) -> int:
    """Bytes that a worker may take: by default four fifths of the machine's."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return machine * 4 // 5 if given is None else given


def held_memory(process: int) -> int:
    """Bytes of data that a process has asked for; 0 of one that has ended.

    Example:
        >>> import os
        >>> from aero.private.parties.memory import held_memory
        >>> held_memory(os.getpid()) > 1_000_000
        True
    """
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
