"""Cells: the training runs that targets mean, each in a folder that its configuration names.

A scale holds the paper's data sets and models at `mini`, `small` and `paper` size.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from aero.architecture import ArchitectureSpec
from aero.reading import parse_yaml, read_json
from aero.reproduction.targets import RATE, Row, Target, load_target
from aero.reproduction.training_flops import (
    Teacher,
    affordable_tokens,
    forward_flops,
    training_flops,
)
from aero.train.errors import TrainingError
from aero.train.planning import PlannedRun, plan_runs, spec_for
from aero.train.recipe import Recipe
from aero.train.recipe_files import load_recipe, recipe_to_dict
from aero.train.run_folder import RunFolder, run_slug
from aero.train.run_lock import lock_holder

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
    """Returns the scales, smallest first."""
    return list(_scales())


def load_scale(name: str) -> Scale:
    """Returns a scale.

    Raises:
        TrainingError: no such scale.
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
# The seed that tries rates; networks are judged by others, which did not choose their rate.
_TRIAL_SEED = 1


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

    @property
    def spec(self) -> ArchitectureSpec:
        """The network."""
        return spec_for(self.recipe, self.label)

    @property
    def tokens(self) -> int:
        """Of all steps."""
        return self.recipe.steps * self.recipe.training.tokens_per_step

    @property
    def as_teacher(self) -> Teacher:
        """What its students owe to it."""
        return Teacher(self.tokens, forward_flops(self.spec))

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

    def perplexity(self, output: str | Path) -> float:
        """On validation text; infinite of a run that diverged, NaN of one without an evaluation."""
        if self.status(output) == "diverged":
            return math.inf
        file = self.folder(output).path / "evaluation.json"
        if not file.exists():
            return math.nan
        value = read_json(file, {"perplexity": float | None})["perplexity"]
        return math.inf if value is None else float(value)


@dataclass(frozen=True)
class TargetPlan:
    """A target at a scale.

    Attributes:
        target: the table or figure.
        scale: the size.
        cells_by_row: name of a row -> one cell per seed; none of a row whose rates are being tried.
        trials: name of a row -> rate -> its cell, where the target tries rates; none of a row whose
            teacher has no rate yet.
        to_come: how many cells follow, at rates or from teachers that are not known yet.
    """

    target: Target
    scale: Scale
    cells_by_row: dict[str, tuple[Cell, ...]]
    trials: dict[str, dict[float, Cell]] = field(default_factory=dict)
    to_come: int = 0

    @property
    def cells(self) -> list[Cell]:
        """All cells that are known, first seeds of all rows first."""
        tried = [cell for cells in self.trials.values() for cell in cells.values()]
        cells = [cell for row in self.cells_by_row.values() for cell in row]
        return sorted([*tried, *cells], key=lambda cell: cell.seed)

    def best_rate(self, row: str, output: str | Path) -> float | None:
        """The rate of a row's lowest perplexity; None before all of its rates were tried."""
        return _best_rate(self.trials.get(row, {}), output)


def plan_target(
    target: str | Target,
    scale: str | Scale,
    *,
    seeds: int | None = None,
    settings: Iterable[str] = (),
    output: str | Path | None = None,
) -> TargetPlan:
    """Returns the cells of a target.

    Where a target tries rates, seed 1 trains every row at each of them. The best is the row's, and
    the seeds from 2 on are trained at it: plan again when the trials are done.

    Args:
        target: its name, or one of your own.
        scale: its name, or one of your own.
        seeds: how many, from 1; None takes the scale's number.
        settings: `section.key=value` for all rows, after those of scale and row.
        output: folder of all cells, where trials of rates are looked for; None has none.

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
    settings = tuple(settings)
    if target.rates and any(text.partition("=")[0].strip() == RATE for text in settings):
        rates = ", ".join(f"{rate:g}" for rate in target.rates)
        raise TrainingError(
            f"reproduce: {target.name} tries the rates {rates} itself; --set {RATE} means nothing"
        )
    cells: dict[str, tuple[Cell, ...]] = {}
    trials: dict[str, dict[float, Cell]] = {}
    to_come = 0
    # Teachers first; the result keeps the order of the rows.
    for row in sorted(target.rows, key=lambda row: row.distill_from is not None):
        count = _seeds(row, scale, seeds)
        teachers = cells[row.distill_from] if row.distill_from else (None,)
        if not teachers:
            cells[row.name], trials[row.name] = (), {}
            to_come += len(target.rates) + count
            continue
        paid = None
        if row.flops_of is not None:
            (other,) = (entry for entry in target.rows if entry.name == row.flops_of)
            (cell,) = _Group(other, scale, settings, (None,)).cells([_TRIAL_SEED])
            paid = training_flops(cell.spec, cell.tokens)
        group = _Group(row, scale, settings, teachers, paid)
        if not target.rates:
            cells[row.name] = group.cells(range(1, count + 1))
            continue
        tried = {rate: group.cells([_TRIAL_SEED], rate)[0] for rate in target.rates}
        best = None if output is None else _best_rate(tried, output)
        trials[row.name] = tried
        if best is None:
            cells[row.name] = ()
            to_come += count
        else:
            cells[row.name] = group.cells(range(_TRIAL_SEED + 1, _TRIAL_SEED + 1 + count), best)
    in_order = {row.name: cells[row.name] for row in target.rows}
    return TargetPlan(target, scale, in_order, trials, to_come)


def _best_rate(tried: Mapping[float, Cell], output: str | Path) -> float | None:
    if not tried or not all(cell.is_done(output) for cell in tried.values()):
        return None
    return min(tried, key=lambda rate: tried[rate].perplexity(output))


@dataclass(frozen=True)
class _Group:
    """The cells of a row."""

    row: Row
    scale: Scale
    settings: tuple[str, ...]
    teachers: tuple[Cell | None, ...]
    paid: float | None = None  # the training FLOPs; None is the row's tokens

    def cells(self, seeds: Iterable[int], rate: float | None = None) -> tuple[Cell, ...]:
        """One per seed, at a rate or at the recipe's own; teachers are taken in their order."""
        row, first = self.row, self.teachers[0]
        recipe = _recipe(row, self.scale, self.settings)
        if rate is not None:
            optimizer = dataclasses.replace(recipe.optimizer, learning_rate=rate)
            recipe = dataclasses.replace(recipe, optimizer=optimizer)
        label = self.scale.label(row.label, row.model)
        if self.paid is not None:
            training = recipe.training
            taught_by = None if first is None else first.as_teacher
            tokens = affordable_tokens(
                spec_for(recipe, label), self.paid, training.tokens_per_step, taught_by
            )
            training = dataclasses.replace(training, tokens=tokens)
            recipe = dataclasses.replace(recipe, training=training)
        digest = _digest(recipe, None if first is None else first.key)
        group = f"{row.model}-t{row.context_length}-{digest}"
        return tuple(Cell(label, seed, recipe, group, self._teacher(seed)) for seed in seeds)

    def _teacher(self, seed: int) -> Cell | None:
        """Of the same seed, else the nearest."""
        return min(self.teachers, key=lambda cell: 0 if cell is None else abs(cell.seed - seed))


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
