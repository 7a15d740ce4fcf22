"""Learnable softmax temperatures."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from aero.nn.weight_decay import Scales

TemperatureShape = Literal["head_position", "head", "scalar"]
Parametrization = Literal["identity", "log"]


class Temperature(Scales):
    """Temperature of ``softmax(q k^T / (t sqrt(d_k)))`` (AERO, Eq. 11).

    Args:
        shape: ``"head_position"``, one per head and query position, [H, T] (the paper's);
            ``"head"``, [H]; ``"scalar"``, [1].
        num_heads: H.
        context_length: T, the number of positions that have a temperature.
        init: start value, not zero (with ``"log"`` positive).
        parametrization: ``"identity"`` stores t itself, ``"log"`` stores log t, which cannot cross
            zero.

    Attributes:
        value: t or log t, [H, T], [H] or [1].

    Example:
        >>> from aero.nn import Temperature
        >>> Temperature("head", num_heads=2, context_length=8, init=0.5)().tolist()
        [0.5, 0.5]
    """

    _scale_names = ("value",)

    def __init__(
        self,
        shape: TemperatureShape,
        *,
        num_heads: int,
        context_length: int,
        init: float = 1.0,
        parametrization: Parametrization = "identity",
    ) -> None:
        super().__init__()
        shapes = {
            "head_position": (num_heads, context_length),
            "head": (num_heads,),
            "scalar": (1,),
        }
        if shape not in shapes:
            raise ValueError(
                f"Temperature: shape must be one of {', '.join(shapes)}, got {shape!r}"
            )
        if parametrization not in ("identity", "log"):
            raise ValueError(
                f"Temperature: parametrization must be 'identity' or 'log', got {parametrization!r}"
            )
        is_positive = parametrization == "log"
        if not math.isfinite(init) or init == 0 or (is_positive and init < 0):
            raise ValueError(f"Temperature: init must be {_allowed(parametrization)}, got {init}")
        self.shape = shape
        self.num_heads = num_heads
        self.context_length = context_length
        self.init = init
        self.parametrization = parametrization
        self.value = nn.Parameter(torch.full(shapes[shape], self.stored(init)))

    def stored(self, temperature: float) -> float:
        """Returns what `value` holds for a temperature: itself or its natural logarithm."""
        if self.parametrization == "identity":
            return temperature
        return torch.tensor(temperature, dtype=torch.float64).log().item()

    def forward(
        self,
        position_ids: Tensor | None = None,
        *,
        first_position: int = 0,
        num_positions: int | None = None,
    ) -> Tensor:
        """Returns the temperatures of some query positions.

        Args:
            position_ids: [B, T], the position of every query, or [1, T] for the same in all
                sequences; None for consecutive positions.
            first_position: the first of the consecutive positions.
            num_positions: how many; None for all from the first.

        Returns:
            [B, H, T] or [H, T] per position, [H] per head, [1] for one scalar.
        """
        value: Tensor = self.value
        if self.shape == "head_position":
            if position_ids is not None and position_ids.shape[0] == 1:
                value = value[:, position_ids[0]]
            elif position_ids is not None:
                value = value[:, position_ids].transpose(0, 1)
            elif first_position or num_positions is not None:
                last = None if num_positions is None else first_position + num_positions
                value = value[:, first_position:last]
        return value.exp() if self.parametrization == "log" else value

    def extra_repr(self) -> str:
        """Shows shape and parametrization."""
        return f"{self.shape!r}, parametrization={self.parametrization!r}"


def _allowed(parametrization: Parametrization) -> str:
    return "positive" if parametrization == "log" else "not zero"
