"""The worker's end of the pipes to its supervisor, see `aero.private.parties.supervision`."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from typing import Any

__all__ = ["WorkerPipe"]


class WorkerPipe:
    """Lines of JSON from and to the supervisor; may be made once per process.

    The process ends when the supervisor does, whatever SPU is doing: the supervisor's end closes.
    What libraries print goes to standard error from now on.
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
