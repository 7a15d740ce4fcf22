"""Ctrl-C and SIGTERM as a request that training answers at the end of the step."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

import torch

__all__ = ["StopRequest"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """While open, turns the first SIGINT or SIGTERM into a flag; a second SIGINT stops at once.

    Example:
        >>> from aero.train.stopping import StopRequest
        >>> with StopRequest() as stop:
        ...     stop.requested
        False
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        """Installs the handlers; outside of the main thread there are none to install."""
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Puts the earlier handlers back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def agreed(self, device: torch.device) -> bool:
        """Whether any process was asked; collective under `torchrun`, so that all stop together."""
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return self.requested
        flag = torch.tensor([float(self.requested)], device=device)
        torch.distributed.all_reduce(flag)
        self.requested = bool(flag.item())
        return self.requested

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True
