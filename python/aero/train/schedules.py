"""Annealing, and lambda of the entropy penalty, over the steps of any `transformers.Trainer`."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from aero.nn.annealed_modules import set_annealing_progress

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
        self._progress = partial(
            annealing_at,
            schedule=schedule,
            start_fraction=start_fraction,
            end_fraction=end_fraction,
        )

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Sets a for the step that begins."""
        progress = self._progress(state.global_step + 1, state.max_steps)
        set_annealing_progress(kwargs["model"], progress)


_SHARES: dict[str, Callable[[float], float]] = {
    "constant": lambda part: 1.0,
    "falling": lambda part: 1.0 - part,
    "rising": lambda part: part,
}


def penalty_share(step: int, steps: int, schedule: str) -> float:
    """Returns the share of lambda that holds in one optimizer step.

    Args:
        step: the step, from 1 to `steps`.
        steps: of the whole training.
        schedule: ``"constant"``, ``"falling"`` from 1 in the first to 0 in the last step, or
            ``"rising"`` from 0 to 1.
    """
    return _SHARES[schedule]((step - 1) / max(1, steps - 1))


class PenaltyScheduleCallback(TrainerCallback):
    """Sets `entropy_weight` of an AERO network before each step, and to lambda again at the end.

    Raises:
        ValueError: an unknown schedule.
    """

    def __init__(self, weight: float, schedule: str) -> None:
        if schedule not in _SHARES:
            raise ValueError(
                f"PenaltyScheduleCallback: schedule must be one of {', '.join(_SHARES)}, "
                f"got {schedule!r}"
            )
        self._weight, self._schedule = weight, schedule

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Sets the weight of the step that begins."""
        share = penalty_share(state.global_step + 1, state.max_steps, self._schedule)
        kwargs["model"].config.entropy_weight = self._weight * share

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leaves lambda in the configuration that is saved."""
        kwargs["model"].config.entropy_weight = self._weight
