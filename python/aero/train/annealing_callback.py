"""Annealing over the steps of a training, with any `transformers.Trainer`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from aero.nn.annealed_modules import set_annealing_progress

__all__ = ["AnnealingCallback", "annealing_at"]

_SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda part: part,
    "cosine": lambda part: (1.0 - math.cos(math.pi * part)) / 2.0,
}


def annealing_at(
    step: int,
    steps: int,
    *,
    schedule: str,
    start_fraction: float = 0.0,
    end_fraction: float = 0.3,
) -> float:
    """Returns a, the share of the new parts, in one optimizer step.

    Args:
        step: the step, from 1 to `steps`.
        steps: of the whole training.
        schedule: ``"linear"`` or ``"cosine"``.
        start_fraction: share of the steps before a rises from 0.
        end_fraction: share of the steps after which a is 1.

    Example:
        >>> from aero.train.annealing_callback import annealing_at
        >>> [annealing_at(step, 10, schedule="linear", end_fraction=0.5) for step in (1, 3, 5, 10)]
        [0.2, 0.6, 1.0, 1.0]
    """
    start, end = start_fraction * steps, end_fraction * steps
    part = min(max((step - start) / (end - start), 0.0), 1.0)
    # The last step trains the network as it will be, whatever the fractions are rounded to.
    return 1.0 if step >= steps else _SHAPES[schedule](part)


class AnnealingCallback(TrainerCallback):
    """Moves the parts of a network that `aero.conversion.begin_annealing` returned.

    Args:
        schedule: ``"linear"`` or ``"cosine"``.
        start_fraction: share of the steps before a rises from 0.
        end_fraction: share of the steps after which a is 1.

    Raises:
        ValueError: an unknown schedule, or fractions that are not 0 <= start < end <= 1.

    Example:
        >>> from aero.train import AnnealingCallback
        >>> callback = AnnealingCallback("cosine", end_fraction=0.8)
    """

    def __init__(
        self, schedule: str = "linear", *, start_fraction: float = 0.0, end_fraction: float = 0.3
    ) -> None:
        if schedule not in _SHAPES:
            raise ValueError(
                f"AnnealingCallback: schedule must be one of {', '.join(_SHAPES)}, got {schedule!r}"
            )
        if not 0.0 <= start_fraction < end_fraction <= 1.0:
            raise ValueError(
                "AnnealingCallback: fractions must be 0 <= start_fraction < end_fraction <= 1, got "
                f"{start_fraction} and {end_fraction}"
            )
        self._schedule: dict[str, Any] = {
            "schedule": schedule,
            "start_fraction": start_fraction,
            "end_fraction": end_fraction,
        }

    def on_step_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        **kwargs: Any,
    ) -> None:
        """Sets a for the step that begins."""
        progress = annealing_at(state.global_step + 1, state.max_steps, **self._schedule)
        set_annealing_progress(model, progress)
