"""How many of the deepest FFNs can be pruned, found by training as the paper does (Section 4.2).

One FFN after the other goes, the deepest first. Each stage is a run of its own, so a search that
was killed goes on where it stopped: finished stages are reused, an interrupted one is resumed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aero.atomic_files import write_json_atomically
from aero.reading import read_json
from aero.train.errors import Bounds, TrainingError, disk_errors
from aero.train.planning import PlannedRun, plan_runs, spec_for
from aero.train.progress import LOG
from aero.train.recipe import AnnealingSection, Recipe
from aero.train.run_folder import RunFolder, run_slug

_RESULTS = {
    "evaluation.json": {"loss": float | None},
    "analysis.json": {"quarters": {"log_context": [float]}},
}


@dataclass(frozen=True)
class PruningStage:
    """One stage of a search.

    Attributes:
        pruned: how many FFNs are gone.
        folder: the run.
        ending: `finished`, or how training broke off.
        loss: on the validation split, nats per token; None if training broke off.
        collapsed_heads: share of the attention heads with an entropy below a quarter of log T;
            None if training broke off.
        verdict: `kept`, or why the search went back.
    """

    pruned: int
    folder: str
    ending: str
    loss: float | None
    collapsed_heads: float | None
    verdict: str


@dataclass(frozen=True)
class PruningSearch:
    """The result of a search.

    Attributes:
        label: the network with as many FFNs pruned as the bounds allow.
        stages: in the order they were trained.
        max_loss_increase: over the first stage, nats per token.
        max_collapsed_heads: share of all heads.
        table: the file the stages are written to.
    """

    label: str
    stages: tuple[PruningStage, ...]
    max_loss_increase: float
    max_collapsed_heads: float
    table: Path

    def to_text(self) -> str:
        """The stages as a table."""
        lines = ["pruned     loss  collapsed heads  verdict"]
        for stage in self.stages:
            loss = "-" if stage.loss is None else f"{stage.loss:.4f}"
            share = "-" if stage.collapsed_heads is None else f"{stage.collapsed_heads:.0%}"
            lines.append(f"{stage.pruned:6}  {loss:>7}  {share:>15}  {stage.verdict}")
        return "\n".join([*lines, f"{self.label} keeps within the bounds"])


def search_prunable_ffns(
    recipe: Recipe,
    label: str,
    *,
    seed: int,
    output: str | Path,
    cache_dir: str | Path,
    start_from: str | Path | None = None,
    max_loss_increase: float = 0.05,
    max_collapsed_heads: float = 0.25,
    say: Callable[[str], None] = LOG.info,
) -> PruningSearch:
    """Trains with more and more of the deepest FFNs pruned until it goes wrong, and backs off.

    A stage goes wrong when training meets NaN, when too many heads collapse, or when the validation
    loss is too far above that of the first stage. The first stage is the label itself.

    Args:
        recipe: of each stage.
        label: of the network that the search starts from, pruned or not.
        seed: of all stages.
        output: run folders, and `<slug>-pruning-seed<seed>.json` with the table.
        cache_dir: corpora and tokenizers.
        start_from: a trained network of any label that can become `label`; each stage then
            continues with the network of the stage before. None trains each from random weights.
        max_loss_increase: nats per token.
        max_collapsed_heads: share of all heads below a quarter of log T.
        say: called with one line of text about each stage. Default: the logger `aero.train`.

    Returns:
        All stages and the best label.

    Raises:
        TrainingError: bad data or labels, or the first stage goes wrong by itself.
        StopRequestedError: Ctrl-C, SIGTERM or SIGHUP; the same call goes on.

    Example:
        >>> from aero.train import search_prunable_ffns
        >>> from aero.train import load_recipe
        >>> recipe = load_recipe("demo", settings=["data.source=./x"])
        >>> search_prunable_ffns(recipe, "SM+ScFuFFN", seed=0, output="no", cache_dir="no")
        Traceback (most recent call last):
        ...
        aero.train.errors.TrainingError: train: data must be 'stdlib', a folder or a file, got ./x
    """
    from aero.train.runs import train_runs

    Bounds(0, 100).check("prune: max_loss_increase", max_loss_increase)
    Bounds(0, 1).check("prune: max_collapsed_heads", max_collapsed_heads)
    spec = spec_for(recipe, label)
    table = Path(output) / f"{run_slug(spec.label)}-pruning-seed{seed}.json"
    bounds = (max_loss_increase, max_collapsed_heads)
    stages: list[PruningStage] = []
    source = start_from
    for pruned in range(spec.num_pruned_ffns, spec.num_layers + 1):
        stage_label = spec.replace(num_pruned_ffns=pruned).label
        # Beyond the first stage only an FFN is missing, which no annealing brings back.
        staged = recipe if source == start_from else _cutting(recipe)
        (run,) = plan_runs(staged, [stage_label], [seed], output=output, start_from=source)
        train_runs([run], cache_dir=cache_dir, say=say)
        stages.append(_judged(run, pruned, stages, *bounds))
        found = PruningSearch(_best(spec, stages), tuple(stages), *bounds, table)
        with disk_errors(
            "the search's table", output, "run the same command again", command="prune"
        ):
            _write(found)
        if stages[-1].verdict != "kept":
            break
        if start_from is not None:
            source = run.folder.path
    if stages[0].verdict != "kept":
        raise TrainingError(
            f"prune: {spec.label} goes wrong before anything is pruned ({stages[0].verdict}, "
            f"{stages[0].folder}); start from a healthier network or change the bounds"
        )
    return found


def _cutting(recipe: Recipe) -> Recipe:
    return dataclasses.replace(recipe, annealing=AnnealingSection(schedule="none"))


def _judged(
    run: PlannedRun,
    pruned: int,
    before: Sequence[PruningStage],
    max_loss_increase: float,
    max_collapsed_heads: float,
) -> PruningStage:
    info, folder = run.folder.info(), run.folder
    broken = info.get("diverged")
    if info["status"] != "finished" or broken:
        ending = f"NaN at step {broken['step']}" if broken else str(info["status"])
        return PruningStage(pruned, str(folder.path), ending, None, None, ending)
    loss = _read(folder, "evaluation.json")["loss"]
    quarters = _read(folder, "analysis.json")["quarters"]
    collapsed = float(quarters["log_context"][0])
    increase = 0.0 if not before or before[0].loss is None else loss - before[0].loss
    verdict = "kept"
    if loss is None or not increase <= max_loss_increase:
        verdict = f"loss grew by {increase:.4f}"
    elif not collapsed <= max_collapsed_heads:
        verdict = f"{collapsed:.0%} of the heads collapsed"
    return PruningStage(pruned, str(folder.path), "finished", loss, collapsed, verdict)


def _best(spec: Any, stages: Sequence[PruningStage]) -> str:
    kept = [stage.pruned for stage in stages if stage.verdict == "kept"]
    best: str = spec.replace(num_pruned_ffns=max(kept, default=spec.num_pruned_ffns)).label
    return best


def _read(folder: RunFolder, name: str) -> dict[str, Any]:
    folder.require_whole(name)
    values: dict[str, Any] = read_json(folder.path / name, _RESULTS[name])
    return values


def _write(found: PruningSearch) -> None:
    values = {
        "format": 1,
        "label": found.label,
        "max_loss_increase": found.max_loss_increase,
        "max_collapsed_heads": found.max_collapsed_heads,
        "stages": [asdict(stage) for stage in found.stages],
    }
    write_json_atomically(found.table, values)
