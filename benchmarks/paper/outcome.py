"""The results of a target's finished cells: numbers next to the paper's, verdicts, figures, files.

An outcome, format 2, as `OUTPUT/results/SCALE/TARGET.json` holds it:

- `format`, `target`, `title`, `paper`, `scale`, `show`, `seeds` (asked for), `steps` (rows, each
  one change away from the one before)
- `rows`: `name`, `label` (at this scale's depth), `model`, `context_length`, `paper` (numbers by
  statistic), `statistics` (by name: mean, standard_deviation, minimum, maximum, values and their
  seeds; None without a finite number), `change` and `paper_change` (perplexity relative to the
  baseline, None without), `cells` (`key`, `seed`, `status`), and where rates were tried `rates`:
  `tried` (mean perplexity of the trial seeds by rate, None where it is not finite), `best` and
  `cells`;
  `documents`: `nll` (means over seeds) and `tokens` of each validation document, or None
- `claims`: `claim`, `where`, `verdict`, `reasons`, `seeds` (the fewest of a comparison that has
  any) and `differences`, one per comparison: `verdict`, `effect`, `low`, `high` (of perplexities in
  logarithms), `seeds`, `freedom`, `low_over_documents`, `high_over_documents`
- `figures`: `name`, `caption`
- `private`: of targets with a front, the result of `benchmarks.paper.fronts.describe_fronts`
- `training`: `seconds`, the distinct `hardware`, `versions`, `corpora`, `git_commits`, and
  `recipe` and `steps` of the first row
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from aero.internals.atomic_files import write_bytes_atomically, write_json_atomically
from aero.internals.errors import TrainingError
from aero.internals.records import as_dict
from aero.internals.run_files import Evaluation
from aero.report.contents import without_folder
from aero.report.networks import spread_of
from aero.report.runs import RunRecord, read_run
from aero.train.recipes.recipe_files import recipe_to_dict
from benchmarks.paper.cells import Cell, TargetPlan, mean_perplexity
from benchmarks.paper.document import target_section
from benchmarks.paper.figures import draw_figures
from benchmarks.paper.fronts import describe_fronts
from benchmarks.paper.run_statistics import measure
from benchmarks.paper.targets import Row, Target, load_target
from benchmarks.paper.verdicts import Rows, judge_claims

_FORMAT = 2

# Statistic -> row -> seed -> value.
Values = dict[str, dict[str, dict[int, float]]]


def collect_target(
    plan: TargetPlan, output: str | Path, *, beside: Sequence[TargetPlan] = ()
) -> dict[str, Any]:
    """Returns the results of the finished cells of a target, as JSON-ready values.

    Args:
        plan: the target at a scale.
        output: folder of all cells.
        beside: other targets at the same scale, whose networks add to the spread over seeds.
    """
    records = _records(plan, output)
    rows = _rows(plan, records, output)
    others = [(p.target, _rows(p, _records(p, output), output)) for p in beside if p is not plan]
    return {
        "format": _FORMAT,
        "target": plan.target.name,
        "title": plan.target.title,
        "paper": plan.target.paper,
        "scale": plan.scale.name,
        "show": list(plan.target.show),
        "steps": list(plan.target.steps),
        "seeds": max(map(len, plan.cells_by_row.values())),
        "rows": rows,
        "claims": _describe_claims(plan.target, rows, others),
        "private": describe_fronts(records) if "front" in plan.target.figures else None,
        "training": _training(plan, _every_run(plan, records, output)),
    }


def _describe_claims(
    target: Target, rows: Rows, beside: Iterable[tuple[Target, Rows]]
) -> list[dict[str, Any]]:
    return [
        {
            "claim": entry.claim.text,
            "where": entry.claim.where,
            "verdict": entry.verdict,
            "reasons": list(entry.reasons),
            "seeds": min((d.seeds for d in entry.differences if d.seeds), default=0),
            "differences": [_finite(asdict(d)) for d in entry.differences],
        }
        for entry in judge_claims(target, rows, beside)
    ]


def judge_again(outcomes: Sequence[dict[str, Any]]) -> None:
    """Judges the rows of outcomes again with today's claims and test, and replaces `claims`.

    Args:
        outcomes: of one scale, as `collect_target` returned them.

    Raises:
        TrainingError: another format, or a target that no longer exists.
    """
    for outcome in outcomes:
        if outcome["format"] != _FORMAT:
            raise TrainingError(
                f"reproduce: {outcome['target']} has format {outcome['format']}, not {_FORMAT}; "
                "collect it again from its runs"
            )
    pairs = [(load_target(outcome["target"]), outcome["rows"]) for outcome in outcomes]
    for pair, outcome in zip(pairs, outcomes, strict=True):
        others = [other for other in pairs if other is not pair]
        outcome["claims"] = _describe_claims(*pair, others)


def write_target(
    plan: TargetPlan, output: str | Path, *, beside: Sequence[TargetPlan] = ()
) -> dict[str, Any]:
    """Writes a target's Markdown, JSON and figures to `output/results/<scale>`.

    Args:
        plan: the target at a scale.
        output: folder of all cells.
        beside: as of `collect_target`.

    Returns:
        The outcome, with `figures`.

    Raises:
        OSError: the folder cannot be written.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from benchmarks.paper.cells import plan_target
        >>> from benchmarks.paper.outcome import write_target
        >>> with TemporaryDirectory() as output:
        ...     outcome = write_target(plan_target("figure6", "mini"), output)
        >>> outcome["claims"][0]["verdict"]
        'not tested'
    """
    folder = Path(output) / "results" / plan.scale.name
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    outcome = collect_target(plan, output, beside=beside)
    pictures = draw_figures(plan.target, _records(plan, output))
    outcome["figures"] = [
        {"name": f"{plan.target.name}-{picture.name}", "caption": picture.caption}
        for picture in pictures
    ]
    for picture, entry in zip(pictures, outcome["figures"], strict=True):
        write_bytes_atomically(folder / "figures" / f"{entry['name']}.svg", picture.svg.encode())
    text = target_section(outcome, figures="figures")
    write_bytes_atomically(folder / f"{plan.target.name}.md", text.encode())
    write_json_atomically(folder / f"{plan.target.name}.json", outcome)
    return outcome


def _records(plan: TargetPlan, output: str | Path) -> dict[str, list[RunRecord]]:
    return {
        name: [read_run(cell.folder(output).path) for cell in cells if cell.is_done(output)]
        for name, cells in plan.cells_by_row.items()
    }


def _every_run(
    plan: TargetPlan, records: Mapping[str, Sequence[RunRecord]], output: str | Path
) -> list[RunRecord]:
    """The trials of rates, then the networks."""
    trials = [read_run(cell.folder(output).path) for cell in plan.tried() if cell.is_done(output)]
    return [*trials, *(run for runs in records.values() for run in runs)]


def _values(target: Target, records: Mapping[str, Sequence[RunRecord]]) -> Values:
    """Values of every run that has one."""
    claimed = [
        name for claim in target.claims for part in claim.comparisons for name in part.statistics
    ]
    names = dict.fromkeys(["perplexity", "diverged", *target.show, *claimed])
    names.pop("change", None)
    found: Values = {}
    for name in names:
        found[name] = {}
        for row, runs in records.items():
            measured = {run.info.seed: measure(name, run) for run in runs}
            found[name][row] = {s: value for s, value in measured.items() if value is not None}
    return found


def _rows(
    plan: TargetPlan, records: Mapping[str, Sequence[RunRecord]], output: str | Path
) -> list[dict[str, Any]]:
    values = _values(plan.target, records)
    return [_described(row, plan, values, records[row.name], output) for row in plan.target.rows]


def _described(
    row: Row, plan: TargetPlan, values: Values, runs: Sequence[RunRecord], output: str | Path
) -> dict[str, Any]:
    cells = plan.cells_by_row[row.name]
    baseline = plan.target.baseline_of(row)
    return {
        "name": row.name,
        "label": plan.scale.label(row.label, row.model),
        "model": row.model,
        "context_length": row.context_length,
        "paper": dict(row.paper),
        "statistics": {name: _over_seeds(by_row[row.name]) for name, by_row in values.items()},
        "change": None if baseline is None else _change(row, baseline, values["perplexity"]),
        "paper_change": None
        if baseline is None
        else _relative(row.paper.get("perplexity"), baseline.paper.get("perplexity")),
        "cells": _stands(cells, output),
        "rates": _rates(plan, row, output),
        "documents": _documents(runs),
    }


def _documents(runs: Sequence[RunRecord]) -> dict[str, Any] | None:
    """Validation losses by document, means over seeds; None where a run has none, or diverged."""
    found = [run.evaluation or Evaluation() for run in runs]
    tokens = [evaluation.document_tokens for evaluation in found]
    losses = [evaluation.document_nll for evaluation in found]
    if not found or not tokens[0] or min(tokens[0]) < 1 or any(t != tokens[0] for t in tokens):
        return None
    if any(len(each) != len(tokens[0]) for each in losses):
        return None
    means = np.array(losses, dtype=np.float64).mean(axis=0)
    if not np.isfinite(means).all():
        return None
    return {"nll": [round(float(mean), 4) for mean in means], "tokens": tokens[0]}


def _rates(plan: TargetPlan, row: Row, output: str | Path) -> dict[str, Any] | None:
    """The results of the trials; None for a target without trials."""
    if not plan.target.rates:
        return None
    trials = plan.trials[row.name]
    tried = {f"{rate:g}": mean_perplexity(cells, output) for rate, cells in trials.items()}
    return {
        "tried": _finite(tried),
        "best": plan.best_rate(row.name, output),
        "cells": _stands(itertools.chain(*trials.values()), output),
    }


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers, None for those that are not finite."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }


def _stands(cells: Iterable[Cell], output: str | Path) -> list[dict[str, Any]]:
    return [{"key": cell.key, "seed": cell.seed, "status": cell.status(output)} for cell in cells]


def _over_seeds(values: Mapping[int, float]) -> dict[str, Any] | None:
    finite = {seed: value for seed, value in values.items() if math.isfinite(value)}
    found = spread_of(finite.values())
    return None if found is None else {**as_dict(found), "seeds": list(finite)}


def _change(
    row: Row, baseline: Row, perplexities: Mapping[str, Mapping[int, float]]
) -> float | None:
    means = [
        found["mean"] if (found := _over_seeds(perplexities[name])) else None
        for name in (row.name, baseline.name)
    ]
    return _relative(*means)


def _relative(value: float | None, reference: float | None) -> float | None:
    return None if value is None or reference is None else value / reference - 1.0


def _training(plan: TargetPlan, runs: Sequence[RunRecord]) -> dict[str, Any]:
    def distinct(name: str) -> list[Any]:
        found: list[Any] = []
        for run in runs:
            if getattr(run.info, name) not in (*found, None):
                found.append(getattr(run.info, name))
        return found

    cell = plan.cells[0]
    corpora = [as_dict(without_folder(corpus)) for corpus in distinct("corpus")]
    return {
        "seconds": sum(run.info.seconds or 0.0 for run in runs),
        "hardware": distinct("hardware"),
        "versions": distinct("versions"),
        "corpora": corpora,
        "git_commits": distinct("git_commit"),
        "recipe": recipe_to_dict(cell.recipe),
        "steps": cell.recipe.steps,
    }
