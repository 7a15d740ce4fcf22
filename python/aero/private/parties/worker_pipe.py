"""A worker's end of the pipes to its supervisor, and the limit of its memory.

Where an allocation fails in one of SPU's threads, a message is lost and both parties wait on. So
the supervisor ends a worker above its limit, and the system refuses memory only a quarter above.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from pathlib import Path
from typing import Any


class WorkerPipe:
    """Lines of JSON from and to the supervisor; may be made once per process.

    The process ends when the supervisor does, whatever SPU is doing: the supervisor's end closes.
    Output of libraries goes to standard error from now on.
    """

    def __init__(self) -> None:
        self._reports = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        self._received: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def next_message(self) -> dict[str, Any]:
        """Waits for the supervisor's next line."""
        return self._received.get()

    def say(self, event: str, **values: Any) -> None:
        """Reports an event."""
        self._reports.write(json.dumps({"event": event, **values}) + "\n")
        self._reports.flush()

    def _listen(self) -> None:
        # Not sys.stdin: its lock would be waited for when the process ends.
        with os.fdopen(os.dup(sys.stdin.fileno()), "rb") as lines:
            for line in lines:
                self._received.put(json.loads(line))
        os._exit(1)


def most_memory(given: int | None) -> int:
    """Bytes that a worker may take: by default four fifths of the machine's."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return machine * 4 // 5 if given is None else given


def held_memory(process: int) -> int:
    """Bytes of data that a process has asked for; 0 of one that has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
