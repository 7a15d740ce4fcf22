"""The settings of a training run: a recipe, one section per concern.

The shipped values are in `recipes/*.yaml`; reading, merging and `--set` are in `recipe_files`.
Nothing here imports torch, so that a typing mistake is reported at once.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aero.internals.errors import TrainingError
from aero.train.recipes.recipe_sections import (
    TOLERANCE_MARGINS,
    AnnealingSection,
    DataSection,
    DistillationSection,
    EvaluationSection,
    LoggingSection,
    ModelSection,
    OptimizerSection,
    RegularizationSection,
    ScheduleSection,
    SelectionSection,
    TrainingSection,
)

__all__ = [
    "TOLERANCE_MARGINS",
    "AnnealingSection",
    "DataSection",
    "DistillationSection",
    "EvaluationSection",
    "LoggingSection",
    "ModelSection",
    "OptimizerSection",
    "Recipe",
    "RegularizationSection",
    "ScheduleSection",
    "SelectionSection",
    "TrainingSection",
]


@dataclass(frozen=True)
class Recipe:
    """A whole recipe.

    Attributes:
        name: its name.
        data: corpus and tokenizer.
        model: size and start.
        optimizer: AdamW.
        schedule: learning rate over time.
        regularization: temperatures and entropy penalty.
        training: budget and portions.
        annealing: from a trained network to a cheaper one; used with `--from` only.
        distillation: learning from a teacher; used with `--distill-from` only.
        selection: choosing parts by their private bytes; used where its byte_weight is above 0.
        evaluation: validation.
        logging: records.
        per_label: settings of `regularization` that hold for one label only.

    Raises:
        TrainingError: a value has the wrong type or lies outside its range.

    Example:
        >>> from aero.train import Recipe
        >>> from aero.train.recipes.recipe_sections import TrainingSection
        >>> recipe = Recipe(training=TrainingSection(tokens=100_000, tokens_per_step=4096))
        >>> recipe.steps, recipe.warmup_steps
        (24, 2)
    """

    name: str = "custom"
    data: DataSection = field(default_factory=DataSection)
    model: ModelSection = field(default_factory=ModelSection)
    optimizer: OptimizerSection = field(default_factory=OptimizerSection)
    schedule: ScheduleSection = field(default_factory=ScheduleSection)
    regularization: RegularizationSection = field(default_factory=RegularizationSection)
    training: TrainingSection = field(default_factory=TrainingSection)
    annealing: AnnealingSection = field(default_factory=AnnealingSection)
    distillation: DistillationSection = field(default_factory=DistillationSection)
    selection: SelectionSection = field(default_factory=SelectionSection)
    evaluation: EvaluationSection = field(default_factory=EvaluationSection)
    logging: LoggingSection = field(default_factory=LoggingSection)
    per_label: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for section in dataclasses.fields(self):
            value = getattr(self, section.name)
            if dataclasses.is_dataclass(value):
                _check_section(section.name, value)
        margin = self.regularization.tolerance_margin
        if isinstance(margin, str) and margin not in TOLERANCE_MARGINS:
            raise TrainingError(
                "train: regularization.tolerance_margin must be a number or one of "
                f"{', '.join(TOLERANCE_MARGINS)}, got {margin!r}"
            )
        for title, way in (("annealing", self.annealing), ("selection", self.selection)):
            if way.start_fraction >= way.end_fraction:
                raise TrainingError(
                    f"train: {title}.start_fraction must be < {title}.end_fraction = "
                    f"{way.end_fraction:g}, got {way.start_fraction:g}"
                )
        begin, end = self.selection.start_fraction, self.selection.end_fraction
        if self.selection.byte_weight and int(end * self.steps) <= int(begin * self.steps):
            raise TrainingError(
                "train: selection.start_fraction and selection.end_fraction must have a step "
                f"between them, got {begin:g} and {end:g} of {self.steps} steps"
            )
        context = self.model.context_length
        for name in ("tokens", "final_tokens"):
            tokens = getattr(self.evaluation, name)
            if tokens is not None and tokens < context:
                raise TrainingError(
                    f"train: evaluation.{name} must be at least one window of model.context_length "
                    f"= {context} tokens, got {tokens}"
                )
        tokens_per_step = self.training.tokens_per_step
        if tokens_per_step % context:
            raise TrainingError(
                "train: training.tokens_per_step must be a multiple of model.context_length = "
                f"{context}, got {tokens_per_step}"
            )

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        return max(1, self.training.tokens // self.training.tokens_per_step)

    @property
    def warmup_steps(self) -> int:
        """Steps over which the learning rate rises."""
        if self.schedule.warmup_steps is not None:
            return self.schedule.warmup_steps
        return math.ceil(self.schedule.warmup_fraction * self.steps)

    @property
    def windows_per_step(self) -> int:
        """Windows of T tokens in one optimizer step, over all processes."""
        return self.training.tokens_per_step // self.model.context_length

    def for_label(self, label: str) -> Recipe:
        """Returns the recipe with the settings of one label put in and `per_label` emptied.

        Args:
            label: the network's label; compared as written in the recipe, ignoring case.
        """
        changes: dict[str, Any] = {}
        for name, settings in self.per_label.items():
            if name.casefold() == label.casefold():
                changes.update(settings)
        regularization = dataclasses.replace(self.regularization, **changes)
        return dataclasses.replace(self, regularization=regularization, per_label={})


def _check_section(section: str, values: Any) -> None:
    hints = _type_hints(section)
    for entry in dataclasses.fields(values):
        value, key = getattr(values, entry.name), f"{section}.{entry.name}"
        if not _fits(value, hints[entry.name]):
            raise TrainingError(f"train: {key} must be {_words(hints[entry.name])}, got {value!r}")
        choices, bounds = entry.metadata.get("choices"), entry.metadata.get("bounds")
        if choices and value is not None and value not in choices:
            raise TrainingError(f"train: {key} must be one of {', '.join(choices)}, got {value!r}")
        if bounds and isinstance(value, int | float):
            bounds.check(f"train: {key}", value)


@functools.cache  # evaluating them takes half a millisecond for all sections of a recipe
def _type_hints(section: str) -> dict[str, Any]:
    return typing.get_type_hints(typing.get_type_hints(Recipe)[section])


def _fits(value: Any, hint: Any) -> bool:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, tuple(kinds)) or (isinstance(value, int) and float in kinds)


def _words(hint: Any) -> str:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    names = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a word",
        types.NoneType: "null",
    }
    return " or ".join(names[kind] for kind in kinds)
