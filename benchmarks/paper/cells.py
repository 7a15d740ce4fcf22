"""Cells: the training runs that targets mean, each in a folder that its configuration names."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from aero.architecture import ArchitectureSpec
from aero.internals.errors import TrainingError
from aero.internals.records import read_record
from aero.internals.run_files import Evaluation
from aero.train.recipes.recipe import Recipe
from aero.train.recipes.recipe_files import load_recipe, recipe_to_dict
from aero.train.runs.planning import PlannedRun, plan_runs, spec_for, training_way
from aero.train.runs.run_folder import RunFolder, lock_holder, run_slug
from benchmarks.paper.scales import Scale, load_scale
from benchmarks.paper.targets import RATE, Row, Target, load_target
from benchmarks.paper.training_flops import (
    Teacher,
    affordable_tokens,
    forward_flops,
    training_flops,
)

# Of the configuration's hash; a collision among some hundred groups is one in ten million.
_DIGEST_LENGTH = 10

#: As many rates a row tries where they are widened.
MOST_RATES = 6


@dataclass(frozen=True)
class Cell:
    """One training run.

    Attributes:
        label: at the depth of the scale.
        seed: of weights and data order.
        recipe: the settings of the training.
        group: folder below `cells` that all labels and seeds of this recipe share.
        origins: `start_from` and `distill_from`, as `plan_runs` has them -> the run whose network
            that is.
    """

    label: str
    seed: int
    recipe: Recipe
    group: str
    origins: Mapping[str, Cell] = field(default_factory=dict)

    @cached_property  # asked for every cell that is missing, each time that folders are looked at
    def key(self) -> str:
        """The run folder below `cells`; equal keys are the same run."""
        way = training_way(self.recipe, **dict.fromkeys(self.origins, True))
        return f"{self.group}/{run_slug(self.label)}{way}-seed{self.seed}"

    def folder(self, output: str | Path) -> RunFolder:
        """The run folder of an output."""
        return RunFolder(Path(output) / "cells" / self.key)

    def planned(self, output: str | Path) -> PlannedRun:
        """The next step for the cell: train, resume or reuse.

        Raises:
            TrainingError: a label or size that does not fit, a folder with another run, or no
                trained network to start or to learn from.
        """
        group = Path(output) / "cells" / self.group
        origins = {way: cell.folder(output).path for way, cell in self.origins.items()}
        return plan_runs(
            self.recipe,
            [self.label],
            [self.seed],
            output=group,
            start_from=origins.get("start_from"),
            distill_from=origins.get("distill_from"),
        )[0]

    @property
    def spec(self) -> ArchitectureSpec:
        """The network."""
        return spec_for(self.recipe, self.label)

    @property
    def tokens(self) -> int:
        """Tokens of all steps."""
        return self.recipe.steps * self.recipe.training.tokens_per_step

    @property
    def as_teacher(self) -> Teacher:
        """What its students owe to it."""
        return Teacher(self.tokens, forward_flops(self.spec))

    def without_origins(self) -> Cell:
        """The same run from random weights and the text alone: its origins need not be there."""
        default = Recipe()
        recipe = dataclasses.replace(
            self.recipe, annealing=default.annealing, distillation=default.distillation
        )
        return dataclasses.replace(self, recipe=recipe, origins={})

    def is_ready(self, output: str | Path) -> bool:
        """True if the runs that it starts or learns from came to an end."""
        return all(cell.is_done(output) for cell in self.origins.values())

    def status(self, output: str | Path) -> str:
        """`missing`, `killed`, or as in `run.json`: running, interrupted, finished, diverged.

        Killed is a run that nobody trains although it says so: `run_cells` goes on with it.
        """
        folder = self.folder(output)
        if not folder.exists():
            return "missing"
        status = folder.info().status
        return "killed" if status == "running" and not self.is_locked(output) else status

    def is_locked(self, output: str | Path) -> bool:
        """True if a process trains it now."""
        return lock_holder(self.folder(output).path) is not None

    def is_done(self, output: str | Path) -> bool:
        """True if the run came to an end, with finite numbers or without."""
        return self.status(output) in ("finished", "diverged")

    def perplexity(self, output: str | Path) -> float:
        """On validation text; infinite of a run that diverged, NaN of one without an evaluation."""
        if self.status(output) == "diverged":
            return math.inf
        file = self.folder(output).path / "evaluation.json"
        if not file.exists():
            return math.nan
        value = read_record(file, Evaluation).perplexity
        return math.inf if value is None else value


@dataclass(frozen=True)
class TargetPlan:
    """A target at a scale.

    Attributes:
        target: the table or figure.
        scale: the size.
        cells_by_row: name of a row -> one cell per seed; none of a row whose rates are being tried.
        trials: name of a row -> rate -> its cells, one per trial seed, where the target tries
            rates; none of a row that starts or learns from one without a rate yet. A row with
            `rate_of` has those of the row that it names.
        to_come: how many cells follow, at rates or from networks that are not known yet.
    """

    target: Target
    scale: Scale
    cells_by_row: dict[str, tuple[Cell, ...]]
    trials: dict[str, dict[float, tuple[Cell, ...]]] = field(default_factory=dict)
    to_come: int = 0

    @property
    def cells(self) -> list[Cell]:
        """All cells that are known, first seeds of all rows first."""
        cells = [cell for row in self.cells_by_row.values() for cell in row]
        return sorted([*self.tried(), *cells], key=lambda cell: cell.seed)

    def tried(self) -> list[Cell]:
        """All cells that try rates."""
        cells = (c for rates in self.trials.values() for tried in rates.values() for c in tried)
        return list({cell.key: cell for cell in cells}.values())

    def best_rate(self, row: str, output: str | Path) -> float | None:
        """The rate of a row's lowest mean perplexity; None before all of its rates were tried."""
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

    Where a target tries rates, its trial seeds (1, if it names no number) train every row at each
    of them. The best is the row's, and the seeds after those are trained at it, which did not
    choose it: plan again when the trials are done.

    Args:
        target: its name, or one of your own.
        scale: its name, or one of your own.
        seeds: how many, from the target's first; None takes the scale's number.
        settings: `section.key=value` for all rows, after those of scale and row.
        output: folder of all cells, where trials of rates are looked for; None has none.

    Raises:
        TrainingError: no such target or scale, or settings that do not fit.

    Example:
        >>> from benchmarks.paper.cells import plan_target
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
    trials: dict[str, dict[float, tuple[Cell, ...]]] = {}
    trial_seeds = range(1, 1 + target.trial_seeds)
    to_come = 0
    # Those that others start or learn from first; the result keeps the order of the rows.
    for row in sorted(target.rows, key=lambda row: (bool(row.rate_of), bool(row.origins))):
        count = _seeds(row, scale, seeds)
        origins = {way: cells[name] for way, name in row.origins.items()}
        if not all(origins.values()):
            cells[row.name], trials[row.name] = (), {}
            to_come += (0 if row.rate_of else len(target.rates) * target.trial_seeds) + count
            continue
        paid = None
        if row.flops_of is not None:
            (other,) = (entry for entry in target.rows if entry.name == row.flops_of)
            (cell,) = _Group(other, scale, settings, {}).cells([1])
            paid = training_flops(cell.spec, cell.tokens)
        group = _Group(row, scale, settings, origins, paid)
        if not target.rates:
            first = target.first_seed
            cells[row.name] = group.cells(range(first, first + count))
            continue
        tried = trials[row.rate_of] if row.rate_of else _tried(group, target, trial_seeds, output)
        best = None if output is None else _best_rate(tried, output)
        trials[row.name] = tried
        if best is None:
            cells[row.name] = ()
            to_come += count
        else:
            first = trial_seeds.stop
            cells[row.name] = group.cells(range(first, first + count), best)
    in_order = {row.name: cells[row.name] for row in target.rows}
    return TargetPlan(target, scale, in_order, trials, to_come)


def _tried(
    group: _Group, target: Target, seeds: Iterable[int], output: str | Path | None
) -> dict[float, tuple[Cell, ...]]:
    """The cells of every rate, rising: the target's, and those beyond an end that was the best."""
    tried = {rate: group.cells(seeds, rate) for rate in target.rates}
    while target.widen_rates and output is not None and len(tried) < MOST_RATES:
        best = _best_rate(tried, output)
        beyond = {min(tried): min(tried) / 2, max(tried): max(tried) * 2}.get(best or 0.0)
        if beyond is None:
            break
        tried[beyond] = group.cells(seeds, beyond)
    return dict(sorted(tried.items()))


def _best_rate(tried: Mapping[float, tuple[Cell, ...]], output: str | Path) -> float | None:
    if not tried or not all(cell.is_done(output) for cells in tried.values() for cell in cells):
        return None
    return min(tried, key=lambda rate: mean_perplexity(tried[rate], output))


def mean_perplexity(cells: Sequence[Cell], output: str | Path) -> float:
    """Over seeds; infinite where one diverged."""
    return sum(cell.perplexity(output) for cell in cells) / len(cells)


@dataclass(frozen=True)
class _Group:
    """The cells of a row."""

    row: Row
    scale: Scale
    settings: tuple[str, ...]
    origins: Mapping[str, tuple[Cell, ...]]
    paid: float | None = None  # the training FLOPs; None is the row's tokens

    def cells(self, seeds: Iterable[int], rate: float | None = None) -> tuple[Cell, ...]:
        """One per seed, at a rate or at the recipe's own."""
        row = self.row
        first = {way: cells[0] for way, cells in self.origins.items()}
        recipe = _recipe(row, self.scale, self.settings)
        if rate is not None:
            optimizer = dataclasses.replace(recipe.optimizer, learning_rate=rate)
            recipe = dataclasses.replace(recipe, optimizer=optimizer)
        label = self.scale.label(row.label, row.model)
        if self.paid is not None:
            training = recipe.training
            teacher = first["distill_from"].as_teacher if first else None
            tokens = affordable_tokens(
                spec_for(recipe, label), self.paid, training.tokens_per_step, teacher
            )
            training = dataclasses.replace(training, tokens=tokens)
            recipe = dataclasses.replace(recipe, training=training)
        digest = _digest(recipe, {way: cell.key for way, cell in first.items()})
        group = f"{row.model}-t{row.context_length}-{digest}"
        return tuple(Cell(label, seed, recipe, group, self._nearest(seed)) for seed in seeds)

    def _nearest(self, seed: int) -> dict[str, Cell]:
        """Origins of the same seed, else of the nearest."""
        return {
            way: min(cells, key=lambda cell: abs(cell.seed - seed))
            for way, cells in self.origins.items()
        }


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


def _digest(recipe: Recipe, origins: Mapping[str, str]) -> str:
    """A hash of the differences from the defaults: a setting added later renames no cell."""
    defaults = recipe_to_dict(Recipe())
    differing = {
        key: value
        for key, value in _flat(recipe_to_dict(recipe)).items()
        if _flat(defaults).get(key) != value
    }
    text = json.dumps({**differing, **origins}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]


def _flat(tree: dict[str, Any]) -> dict[str, Any]:
    return {
        f"{section}.{key}": value
        for section, values in tree.items()
        for key, value in (values if isinstance(values, dict) else {"": values}).items()
    }
