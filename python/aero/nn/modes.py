"""Training and evaluation mode, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def in_mode(model: nn.Module, *, training: bool = False) -> Iterator[None]:
    """Evaluation mode, or training mode; every module has its own as before afterwards.

    `nn.Module.train` would put back that of the outermost module in all: a part that its user keeps
    in evaluation mode, such as a frozen norm, would move its statistics from then on.
    """
    before = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, mode in before:
            module.training = mode
