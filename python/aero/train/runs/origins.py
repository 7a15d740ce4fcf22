"""Trained networks that a run starts from or learns from: their places and the facts about them.

Torch is not imported, so a wrong folder is reported at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from aero.internals.atomic_files import sha256_of
from aero.internals.errors import TrainingError
from aero.internals.run_files import OriginRecord, RunInfo
from aero.reading import read_json
from aero.train.runs.run_folder import RunFolder, checkpoint_step, corpus_folder

Record = TypeVar("Record", bound=OriginRecord)


@dataclass(frozen=True)
class Origin:
    """A trained network on this machine.

    Attributes:
        path: as the user named it, absolute.
        weights: the folder to load it from.
        tokenizer: the folder of its tokenizer.
        label: of AERO networks, else None.
        steps: optimizer steps it was trained for, where a run says so.
        tokens: training tokens, likewise.
        flops_per_token: of a forward pass, likewise.
    """

    path: Path
    weights: Path
    tokenizer: Path
    label: str | None = None
    steps: int | None = None
    tokens: int | None = None
    flops_per_token: float | None = None

    def record(self, kind: type[Record], **further: Any) -> Record:
        """Returns it as a record of `run.json`, with the digest of its weights."""
        return kind(
            path=str(self.path),
            label=self.label,
            steps=self.steps,
            tokens=self.tokens,
            flops_per_token=self.flops_per_token,
            sha256=sha256_of(*sorted(self.weights.glob("*.safetensors"))),
            **further,
        )


def find_origin(path: str | Path, option: str) -> Origin:
    """Returns the trained network in a folder.

    Args:
        path: a run folder, one of its checkpoints, or a folder that `save_pretrained` wrote.
        option: the option that the user gave, for errors.

    Raises:
        TrainingError: there is no trained network.
        UnreadableFileError: a file is damaged.
    """
    folder = Path(path).expanduser().resolve()
    if (folder / "run.json").is_file():
        return _run(folder, option)
    if (folder / "config.json").is_file():
        config = read_json(folder / "config.json", finite=False)
        for key, middle in (("annealed_from", "an annealing"), ("gated_parts", "a selection")):
            if config.get(key) is not None:
                raise TrainingError(
                    f"train: {option} {folder} is in the middle of {middle}; resume its run, or "
                    "name a network that has ended"
                )
        return _checkpoint(folder)
    raise TrainingError(
        f"train: {option} must be a run folder, a checkpoint checkpoints/step-N or a folder with a "
        f"network that save_pretrained wrote (config.json), got {path}"
    )


def _run(folder: Path, option: str) -> Origin:
    run = RunFolder(folder)
    info = run.info()
    if info.status != "finished" or not run.model.is_dir():
        known = run.complete_checkpoints()
        way_out = (
            f"name a checkpoint, such as {known[-1]}" if known else "train it to the end first"
        )
        raise TrainingError(
            f"train: {option} {folder} holds no trained network (its status is "
            f"{info.status!r}); {way_out}"
        )
    steps = info.steps_done
    return Origin(
        folder, run.model, run.model, info.label, steps, _tokens(info, steps), _flops(info)
    )


def _checkpoint(folder: Path) -> Origin:
    """A checkpoint of a run; anything else keeps its tokenizer next to the weights."""
    run = RunFolder(folder.parents[1])
    if folder.parent != run.checkpoints or not run.exists():
        return Origin(folder, folder, folder, _label_of(folder))
    info, steps = run.info(), checkpoint_step(folder)
    tokenizer = corpus_folder(info, run.path) / "tokenizer"
    return Origin(folder, folder, tokenizer, info.label, steps, _tokens(info, steps), _flops(info))


def _tokens(info: RunInfo, steps: int) -> int | None:
    return None if info.tokens_per_step is None else steps * info.tokens_per_step


def _flops(info: RunInfo) -> float:
    """Operations of a forward pass per token of a full window."""
    from aero.architecture import ArchitectureSpec

    spec = ArchitectureSpec.from_dict(info.spec)
    return float(spec.flops("executed").total) / spec.context_length


def _label_of(folder: Path) -> str | None:
    from aero.architecture import ArchitectureSpec

    config = read_json(folder / "config.json", finite=False)
    if config.get("model_type") != "aero":
        return None
    names = ArchitectureSpec.from_label("SM", model="mini").to_dict()
    fields = {name: config[name] for name in names if name in config}
    fields["temperature"] = config.get("attention_temperature", "none")
    try:
        return ArchitectureSpec.from_dict({**names, **fields}).label
    except ValueError:
        return None
