"""A dataset of the Hugging Face hub as a local .jsonl file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aero.internals.atomic_files import atomic_binary_file
from aero.internals.errors import TrainingError
from aero.train.data.corpus_files import TEXT_FIELDS
from aero.train.progress import progress_bar


def download_dataset(name: str, folder: Path) -> Path:
    """Writes the training split of a hub dataset to a .jsonl file, once.

    Returns:
        The file, one JSON object with the field `text` per line.

    Raises:
        TrainingError: `datasets` is not installed, the hub cannot be reached, the dataset does not
            exist or has no text.
    """
    target = downloaded_file(name, folder)
    if target.is_file():
        return target
    rows = _training_split(name)
    fields = [field for field in TEXT_FIELDS if field in rows.column_names]
    if not fields:
        raise TrainingError(
            f"train: dataset {name!r} has no field {' or '.join(TEXT_FIELDS)}, "
            f"only {', '.join(rows.column_names)}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with (
        atomic_binary_file(target) as file,
        progress_bar(f"storing {name}", len(rows), "document") as bar,
    ):
        for row in rows:
            file.write(json.dumps({"text": row[fields[0]]}).encode() + b"\n")
            bar.update(1)
    return target


def downloaded_file(name: str, folder: Path) -> Path:
    """Returns where `download_dataset` puts a dataset."""
    return folder / f"{name.replace('/', '--')}.jsonl"


def require_dataset(name: str) -> None:
    """Asks the hub for a dataset without downloading it.

    Raises:
        TrainingError: `datasets` is not installed, the hub cannot be reached, or has no such name.
    """
    _asked(name, lambda datasets: datasets.load_dataset_builder(name))


def _training_split(name: str) -> Any:
    return _asked(name, lambda datasets: datasets.load_dataset(name, split="train"))


def _asked(name: str, question: Callable[[Any], Any]) -> Any:
    not_local = f"train: data {name!r} is neither 'stdlib' nor a file or folder on this machine"
    try:
        import datasets
    except ImportError as error:
        raise TrainingError(
            f"{not_local}; to take it as the name of a hub dataset install `datasets` "
            "(pip install datasets)"
        ) from error
    try:
        return question(datasets)
    except Exception as error:  # the hub client raises many kinds, offline and online
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise TrainingError(
            f"{not_local}, and the hub gave no dataset of that name: {reason}"
        ) from error
