"""Run folders as the report reads them: one record per trained network and seed."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from aero.analysis.files import StoredAnalysis, read_analysis
from aero.architecture import ArchitectureSpec
from aero.internals.atomic_files import CHECKSUM_FILE, damage, run_damage
from aero.internals.records import as_record, read_record
from aero.internals.run_files import Divergence, Evaluation, Metrics, RunInfo, Sample, read_metrics
from aero.reading import UnreadableFileError, one_line, read_json

_RUN_FORMAT = 1


@dataclass(frozen=True, eq=False)
class RunRecord:
    """One run folder.

    Attributes:
        folder: where it lies.
        info: `run.json`.
        spec: the network.
        metrics: `metrics.jsonl` by kind of line.
        evaluation: `evaluation.json`, None if the run was not evaluated.
        analysis: `analysis.json` and `.npz`, None if the run was not analysed.
        sample: `sample.json`, None if the run was not analysed.
        warnings: files that could not be read completely, in words.
        unchecked: what no checksum vouches for, in words; empty where all files were compared.
    """

    folder: Path
    info: RunInfo
    spec: ArchitectureSpec
    metrics: Metrics
    evaluation: Evaluation | None
    analysis: StoredAnalysis | None
    sample: Sample | None
    warnings: list[str] = field(default_factory=list)
    unchecked: str = ""

    @property
    def finished(self) -> bool:
        """True if training ran to its end with finite numbers."""
        return self.info.status == "finished"

    @property
    def tokens(self) -> int:
        """Tokens seen in training, repeats counted."""
        return self.info.steps_done * (self.info.tokens_per_step or 0)

    @property
    def way(self) -> str:
        """How the network came about, in words; empty for one trained from random weights alone."""
        parts = []
        source, teacher = self.info.start, self.info.distilled_from
        if source:
            verb = "continued from" if source.annealing.schedule == "none" else "annealed from"
            parts.append(f"{verb} {source.label or Path(source.path).name}")
        if teacher:
            parts.append(f"taught by {teacher.label or Path(teacher.path).name}")
        if self.info.selected_from:
            parts.append(f"chosen from {self.info.selected_from.label} by private bytes")
        return ", ".join(parts)

    @property
    def ending(self) -> str | None:
        """How an unfinished run ended, in words; None for a finished one."""
        info = self.info
        if self.finished:
            return None
        if info.status == "diverged" and info.diverged:
            return divergence_text(info.diverged)
        return f"{info.status} at step {info.steps_done} of {info.steps_total}"


def divergence_text(diverged: Divergence) -> str:
    """Returns "NaN at step N (layer l, head h)" from a run's divergence record."""
    parts = {"layer": diverged.layer, "head": diverged.head}
    place = ", ".join(f"{name} {index}" for name, index in parts.items() if index is not None)
    place = place or diverged.what or ""
    return f"NaN at step {diverged.step}" + (f" ({place})" if place else "")


def find_runs(paths: Iterable[str | Path]) -> list[Path]:
    """Returns the run folders among and directly below the given folders, each once, by name.

    Args:
        paths: run folders (with a `run.json`), or folders of run folders.

    Raises:
        ValueError: a path is no folder, or there is no run in it.
    """
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise ValueError(f"report: {path} is not a folder")
        runs = [path] if (path / "run.json").exists() else sorted(path.glob("*/run.json"))
        if not runs:
            raise ValueError(
                f"report: {path} holds no run (a folder with a run.json); `aero train` makes one"
            )
        for run in runs:
            folder = run if run.is_dir() else run.parent
            found.setdefault(folder.resolve(), folder)
    if not found:
        raise ValueError("report: expected at least one folder of runs, got none")
    return list(found.values())


def read_run(folder: str | Path) -> RunRecord:
    """Reads one run folder.

    Args:
        folder: holds `run.json`, usually `metrics.jsonl`, `evaluation.json` and `analysis.json`.

    Returns:
        The record; missing parts are None or empty.

    Raises:
        ValueError: `run.json` is missing, damaged, of another format, or another file is damaged,
            the network's among them. Checkpoints are not looked at.

    Example:
        >>> from aero.report import read_run
        >>> read_run("no/such/folder")
        Traceback (most recent call last):
        ...
        ValueError: report: no/such/folder holds no run.json; it is not a run folder
    """
    folder = Path(folder)
    if not (folder / "run.json").exists():
        raise ValueError(f"report: {folder} holds no run.json; it is not a run folder")
    content = read_json(folder / "run.json", {"format": int})
    if content["format"] != _RUN_FORMAT:
        raise ValueError(
            f"report: {folder / 'run.json'} has format {content['format']}, this version reads "
            f"format {_RUN_FORMAT}"
        )
    info = as_record(content, RunInfo, str(folder / "run.json"))
    try:
        spec = ArchitectureSpec.from_dict(info.spec)
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(
            f"report: {folder / 'run.json'} holds a bad spec: {one_line(error)}"
        ) from error
    unchecked = _require_whole(folder, info.status)
    heads = info.selected_from.num_heads if info.selected_from else spec.num_heads
    metrics, warnings = _read_metrics(folder / "metrics.jsonl", spec.num_layers, heads)
    evaluation = folder / "evaluation.json"
    return RunRecord(
        folder=folder,
        info=info,
        spec=spec,
        metrics=metrics,
        evaluation=read_record(evaluation, Evaluation) if evaluation.exists() else None,
        analysis=read_analysis(folder),
        sample=_read_sample(folder / "sample.json", spec),
        warnings=warnings,
        unchecked=unchecked,
    )


def _read_sample(path: Path, spec: ArchitectureSpec) -> Sample | None:
    if not path.exists():
        return None
    sample = read_record(path, Sample)
    rows = list(range(1, 1 + len(sample.tokens)))
    heads = [head for layer in sample.attention for head in layer]
    if (
        [len(layer) for layer in sample.attention] != [spec.num_heads] * spec.num_layers
        or any([len(row) for row in head] != rows for head in heads)
        or not rows
    ):
        raise UnreadableFileError(
            f"report: {path}: attention must be [L][H] = [{spec.num_layers}][{spec.num_heads}] "
            f"triangles of {len(rows)} rows, one per token"
        )
    return sample


def _require_whole(folder: Path, status: str) -> str:
    """Compares a run with its checksums and returns what has none, in words."""
    if not (folder / CHECKSUM_FILE).is_file():
        return "all files"
    has_network = (folder / "model").is_dir()
    problems = run_damage(folder, status)
    problems += damage(folder / "model") if has_network else []
    if problems:
        raise ValueError(f"report: {problems[0]}; `aero verify {folder}` lists all that is damaged")
    return "" if has_network or status != "finished" else "the network, which is gone"


def _read_metrics(path: Path, layers: int, heads: int) -> tuple[Metrics, list[str]]:
    """Lines by kind. A last line cut off by a crash is left out; any other damage is an error."""
    if not path.exists():
        missing = f"{path.parent.name} holds no metrics.jsonl: it is missing in the curves"
        return Metrics([], [], []), [missing]
    metrics, cut_off = read_metrics(path)
    for line in metrics.entropy:
        sizes = {len(layer) for layer in line.head_entropy}
        if len(line.head_entropy) != layers or sizes != {heads}:
            raise UnreadableFileError(
                f"{path}, step {line.step}: head_entropy: expected {layers} lists of "
                f"{heads} numbers, got {len(line.head_entropy)} of {sorted(sizes)[:4]}"
            )
    warnings = [f"the last line of {path.parent.name}/metrics.jsonl is cut off"] if cut_off else []
    return metrics, warnings
