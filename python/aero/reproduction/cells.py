"""Cells: the training runs that targets mean, each in a folder that its configuration names.

A scale holds the paper's data sets and models at `mini`, `small` and `paper` size.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from aero.architecture import ArchitectureSpec
from aero.reading import parse_yaml
from aero.reproduction.targets import Row, Target, load_target
from aero.train.errors import TrainingError
from aero.train.planning import PlannedRun, plan_runs
from aero.train.recipe import Recipe
from aero.train.recipe_files import load_recipe, recipe_to_dict
from aero.train.run_folder import RunFolder, run_slug
from aero.train.run_lock import lock_holder

__all__ = [
    "Cell",
    "Scale",
    "TargetPlan",
    "load_scale",
    "plan_target",
    "scale_names",
    "unique_cells",
]

_PRUNED = re.compile(r"_i(\d+)")


@dataclass(frozen=True)
class Scale:
    """One size of all experiments.

    Attributes:
        name: `mini`, `small` or `paper`.
        seeds: how many seeds a command trains by default.
        recipes: data set -> {`recipe`: name, `settings`: {section.key: value}}.
        models: model -> settings of its sizes.
    """

    name: str
    seeds: int
    recipes: Mapping[str, Mapping[str, Any]]
    models: Mapping[str, Mapping[str, Any]]

    def label(self, label: str, model: str) -> str:
        """Returns a label of the paper with its pruning depth at this scale's number of layers.

        Args:
            label: such as `SM+ScFuFFN_i6`, at the paper's depth.
            model: as targets name it; it is the paper's preset.

        Example:
            >>> from aero.reproduction.cells import load_scale
            >>> load_scale("mini").label("EReg(SM(t)+ScFuFFN_i6)", "gpt2")
            'EReg(SM(t)+ScFuFFN_i3)'
        """
        papers: int = ArchitectureSpec.from_label("SM", model=model).num_layers
        preset = self.models[model]["model.preset"]
        ours = self.models[model].get(
            "model.num_layers", ArchitectureSpec.from_label("SM", model=preset).num_layers
        )

        def scaled(found: re.Match[str]) -> str:
            # Half up; FFNs that the paper prunes are pruned here.
            return f"_i{max(1, int(int(found.group(1)) * ours / papers + 0.5))}"

        return _PRUNED.sub(scaled, label)


def scale_names() -> list[str]:
    """Returns the scales, smallest first.

    Example:
        >>> from aero.reproduction.cells import scale_names
        >>> scale_names()
        ['mini', 'small', 'paper']
    """
    return list(_scales())


def load_scale(name: str) -> Scale:
    """Returns a scale.

    Args:
        name: one of `scale_names()`.

    Raises:
        TrainingError: no such scale.

    Example:
        >>> from aero.reproduction.cells import load_scale
        >>> load_scale("mini").name
        'mini'
    """
    if name not in _scales():
        raise TrainingError(
            f"reproduce: --scale must be one of {', '.join(scale_names())}, got {name!r}"
        )
    return Scale(name=name, **_scales()[name])


@cache
def _scales() -> dict[str, Any]:
    file = resources.files("aero") / "data" / "reproduction" / "scales.yaml"
    found: dict[str, Any] = parse_yaml(file.read_bytes(), "scales.yaml")
    return found


# Of the configuration's hash; a collision among some hundred groups is one in ten million.
_DIGEST_LENGTH = 10


@dataclass(frozen=True)
class Cell:
    """One training run.

    Attributes:
        label: at the depth of the scale.
        seed: of weights and data order.
        recipe: the settings of the training.
        group: folder below `cells` that all labels and seeds of this recipe share.
        teacher: whose logits it learns from; None learns from the text alone.
    """

    label: str
    seed: int
    recipe: Recipe
    group: str
    teacher: Cell | None = None

    @property
    def key(self) -> str:
        """The run folder below `cells`; equal keys are the same run."""
        way = "" if self.teacher is None else "-distilled"
        return f"{self.group}/{run_slug(self.label)}{way}-seed{self.seed}"

    def folder(self, output: str | Path) -> RunFolder:
        """The run folder of an output."""
        return RunFolder(Path(output) / "cells" / self.key)

    def planned(self, output: str | Path) -> PlannedRun:
        """The next step for the cell: train, resume or reuse.

        Raises:
            TrainingError: a label or size that does not fit, a folder with another run, or no
                trained teacher.
        """
        group = Path(output) / "cells" / self.group
        teacher = None if self.teacher is None else self.teacher.folder(output).path
        return plan_runs(
            self.recipe, [self.label], [self.seed], output=group, distill_from=teacher
        )[0]

    def without_teacher(self) -> Cell:
        """The same run from the text alone, which can be planned before the teacher is there."""
        return dataclasses.replace(self, teacher=None)

    def is_ready(self, output: str | Path) -> bool:
        """Whether its teacher, if it has one, came to an end."""
        return self.teacher is None or self.teacher.is_done(output)

    def status(self, output: str | Path) -> str:
        """`missing`, `killed`, or as in `run.json`: running, interrupted, finished, diverged.

        Killed is a run that nobody trains although it says so: `run_cells` goes on with it.
        """
        folder = self.folder(output)
        if not folder.exists():
            return "missing"
        status = str(folder.info().get("status"))
        return "killed" if status == "running" and not self.is_locked(output) else status

    def is_locked(self, output: str | Path) -> bool:
        """Whether a process trains it now."""
        return lock_holder(self.folder(output).path) is not None

    def is_done(self, output: str | Path) -> bool:
        """Whether the run came to an end, with finite numbers or without."""
        return self.status(output) in ("finished", "diverged")


@dataclass(frozen=True)
class TargetPlan:
    """A target at a scale.

    Attributes:
        target: the table or figure.
        scale: the size.
        cells_by_row: name of a row -> one cell per seed.
    """

    target: Target
    scale: Scale
    cells_by_row: dict[str, tuple[Cell, ...]]

    @property
    def cells(self) -> list[Cell]:
        """All cells, first seeds of all rows first."""
        cells = [cell for row in self.cells_by_row.values() for cell in row]
        return sorted(cells, key=lambda cell: cell.seed)


def plan_target(
    target: str | Target,
    scale: str | Scale,
    *,
    seeds: int | None = None,
    settings: Iterable[str] = (),
) -> TargetPlan:
    """Returns the cells of a target.

    Args:
        target: its name, or one of your own.
        scale: its name, or one of your own.
        seeds: how many, from 1; None takes the scale's number.
        settings: `section.key=value` for all rows, after those of scale and row.

    Raises:
        TrainingError: no such target or scale, or settings that do not fit.

    Example:
        >>> from aero.reproduction import plan_target
        >>> plan = plan_target("table2", "mini")
        >>> len(plan.cells), plan.cells[0].label
        (12, 'SM+LN+G')
    """
    target = load_target(target) if isinstance(target, str) else target
    scale = load_scale(scale) if isinstance(scale, str) else scale
    if not target.exists_at(scale.name):
        scales = ", ".join(target.scales or ())
        raise TrainingError(
            f"reproduce: {target.name} exists at --scale {scales} only, got {scale.name!r}"
        )
    cells: dict[str, tuple[Cell, ...]] = {}
    # Teachers first; the result keeps the order of the rows.
    for row in sorted(target.rows, key=lambda row: row.distill_from is not None):
        recipe = _recipe(row, scale, tuple(settings))
        teachers = cells[row.distill_from] if row.distill_from else (None,)
        first = teachers[0]
        digest = _digest(recipe, None if first is None else first.key)
        group = f"{row.model}-t{row.context_length}-{digest}"
        label = scale.label(row.label, row.model)
        cells[row.name] = tuple(
            Cell(label, seed, recipe, group, teachers[min(seed, len(teachers)) - 1])
            for seed in range(1, _seeds(row, scale, seeds) + 1)
        )
    return TargetPlan(target, scale, {row.name: cells[row.name] for row in target.rows})


def unique_cells(plans: Sequence[TargetPlan]) -> list[Cell]:
    """Returns the cells of several targets once each, first seeds of all targets first."""
    found = {cell.key: cell for plan in plans for cell in plan.cells}
    return sorted(found.values(), key=lambda cell: cell.seed)


def _seeds(row: Row, scale: Scale, asked: int | None) -> int:
    """The requested number, else the row's, else the scale's; never more than the row's."""
    if row.seeds is None:
        return scale.seeds if asked is None else asked
    return row.seeds if asked is None else min(asked, row.seeds)


def _recipe(row: Row, scale: Scale, settings: tuple[str, ...]) -> Recipe:
    """The scale's recipe for a row; later settings beat earlier ones."""
    base = scale.recipes[row.dataset]
    merged = {
        **base["settings"],
        **scale.models[row.model],
        "model.context_length": row.context_length,
        **row.settings,
    }
    texts = [f"{key}={json.dumps(value)}" for key, value in merged.items()]
    recipe = _loaded(base["recipe"], (*texts, *settings))
    if row.tokens_factor == 1:
        return recipe
    tokens = recipe.training.tokens * row.tokens_factor
    return dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, tokens=tokens))


@cache
def _loaded(name: str, settings: tuple[str, ...]) -> Recipe:
    return load_recipe(name, settings=settings)


def _digest(recipe: Recipe, teacher: str | None) -> str:
    """A hash of the differences from the defaults: a setting added later renames no cell."""
    defaults = recipe_to_dict(Recipe())
    differing = {
        key: value
        for key, value in _flat(recipe_to_dict(recipe)).items()
        if _flat(defaults).get(key) != value
    }
    if teacher is not None:
        differing["distill_from"] = teacher
    text = json.dumps(differing, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]


def _flat(tree: dict[str, Any]) -> dict[str, Any]:
    return {
        f"{section}.{key}": value
        for section, values in tree.items()
        for key, value in (values if isinstance(values, dict) else {"": values}).items()
    }
