"""What a training says and hears while it runs: progress bars, and requests to stop.

Bars go to standard error, have an estimate, and are silent on other ranks. Ctrl-C, SIGTERM and
SIGHUP ask to stop after the step.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any

from tqdm import tqdm

from aero.reading import printable

# Where lines about runs go that no caller asked for.
LOG = logging.getLogger("aero.train")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def is_main_process() -> bool:
    """Returns whether this process is alone or the first of those `torchrun` started."""
    return int(os.environ.get("RANK", "0")) == 0


def progress_bar(description: str, total: float, unit: str, *, initial: float = 0) -> tqdm[Any]:
    """Returns a bar that shows itself only if the work takes longer than two seconds.

    Args:
        description: of the work.
        total: amount of work, in `unit`s.
        unit: `B` is scaled to kB, MB, GB.
        initial: work already done by an earlier, interrupted call.
    """
    on_terminal = sys.stderr.isatty()
    # tqdm hides its bars on terminals that say they have no columns, as those of containers may;
    # this function answers 80 x 24 there.
    size = shutil.get_terminal_size()
    return tqdm(
        desc=printable(description),
        total=total,
        initial=initial,
        unit=unit,
        unit_scale=unit == "B",
        delay=2.0,
        # A log file gets a line now and then, not ten a second.
        mininterval=0.2 if on_terminal else 10.0,
        ncols=size.columns,
        nrows=size.lines,
        disable=not is_main_process(),
    )


class StopRequest:
    """While open, turns SIGINT, SIGTERM or SIGHUP into a flag; a second SIGINT stops at once.

    SIGHUP says that the terminal is gone; one that is ignored, as under `nohup`, stays so.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, Any] = {}
        self._terminals: list[int] = []

    def __enter__(self) -> StopRequest:
        """Installs the handlers; outside of the main thread there are none to install."""
        if threading.current_thread() is threading.main_thread():
            self._terminals = [number for number in (1, 2) if os.isatty(number)]
            self._previous = {
                number: signal.signal(number, self._note)
                for number in _SIGNALS
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
            }
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Puts the earlier handlers back; a request around this one has the flag too."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
            outer = getattr(handler, "__self__", None)
            if isinstance(outer, StopRequest):
                outer.requested |= self.requested

    def agreed(self, device: Any) -> bool:
        """True if any process was asked; collective under `torchrun`, so that all stop together."""
        import torch  # data is prepared without it

        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return self.requested
        flag = torch.tensor([float(self.requested)], device=device)
        torch.distributed.all_reduce(flag)
        self.requested = bool(flag.item())
        return self.requested

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        if number == signal.SIGHUP:
            self._leave_terminals()
        self.requested = True

    def _leave_terminals(self) -> None:
        """Writing to a terminal that is gone is an error, which would end the step."""
        for number in self._terminals:
            if not os.isatty(number):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, number)
                os.close(nowhere)
