"""Modules as torch.export traces them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def exported(module: nn.Module, *inputs: Tensor, **named: Any) -> Any:
    """The program of a module in evaluation mode."""
    return torch.export.export(module.eval(), inputs, named, strict=False)


class Called(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)
