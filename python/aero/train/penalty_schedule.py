"""Lambda, the weight of the entropy penalty, over the steps of any `transformers.Trainer`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

__all__ = ["PenaltyScheduleCallback", "penalty_share"]

_SHAPES: dict[str, Callable[[float], float]] = {
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

    Example:
        >>> from aero.train.penalty_schedule import penalty_share
        >>> [penalty_share(step, 5, "falling") for step in (1, 3, 5)]
        [1.0, 0.5, 0.0]
    """
    return _SHAPES[schedule]((step - 1) / max(1, steps - 1))


class PenaltyScheduleCallback(TrainerCallback):
    """Sets `entropy_weight` of an AERO network before each step, and to lambda again at the end.

    Args:
        weight: lambda.
        schedule: as of `penalty_share`.

    Raises:
        ValueError: an unknown schedule.

    Example:
        >>> from aero.train.penalty_schedule import PenaltyScheduleCallback
        >>> callback = PenaltyScheduleCallback(1e-5, "falling")
    """

    def __init__(self, weight: float, schedule: str) -> None:
        if schedule not in _SHAPES:
            raise ValueError(
                f"PenaltyScheduleCallback: schedule must be one of {', '.join(_SHAPES)}, "
                f"got {schedule!r}"
            )
        self._weight, self._schedule = weight, schedule

    def on_step_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        **kwargs: Any,
    ) -> None:
        """Sets the weight of the step that begins."""
        share = penalty_share(state.global_step + 1, state.max_steps, self._schedule)
        model.config.entropy_weight = self._weight * share

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        **kwargs: Any,
    ) -> None:
        """Leaves lambda in the configuration that is saved."""
        model.config.entropy_weight = self._weight
