"""`analysis.json` and `analysis.npz` of a run folder: written and read here, nowhere else."""

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aero.analysis.summary import EntropySummary
from aero.atomic_files import atomic_binary_file, write_json_atomically

__all__ = ["StoredAnalysis", "read_analysis", "write_analysis"]


@dataclass(frozen=True, eq=False)
class StoredAnalysis:
    """An analysis read back: `values` is `analysis.json`, `arrays` is `analysis.npz`."""

    values: dict[str, Any]
    arrays: dict[str, NDArray[np.float32]]


def write_analysis(run_dir: str | Path, summary: EntropySummary) -> None:
    """Writes `analysis.npz` and then `analysis.json` into a run folder, each whole or not at all.

    Args:
        run_dir: an existing folder.
        summary: what `summarize_entropies` returned.

    Raises:
        OSError: the folder is missing or the disk is full; earlier files stay as they were.

    Example:
        >>> import tempfile
        >>> from aero.analysis import summarize_entropies
        >>> folder = tempfile.TemporaryDirectory()
        >>> write_analysis(folder.name, summarize_entropies(np.ones((2, 1, 3, 4))))
        >>> read_analysis(folder.name).values["head_entropy"]
        [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """
    folder = Path(run_dir)
    with atomic_binary_file(folder / "analysis.npz") as file:
        np.savez_compressed(file, **summary.arrays())  # type: ignore[arg-type]
    write_json_atomically(folder / "analysis.json", summary.to_dict())


def read_analysis(run_dir: str | Path) -> StoredAnalysis | None:
    """Reads the analysis of a run folder.

    Args:
        run_dir: the folder.

    Returns:
        The analysis, or None if the run was not analysed.

    Raises:
        ValueError: the files are there but cannot be read.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> read_analysis(folder.name) is None
        True
    """
    folder = Path(run_dir)
    path = folder / "analysis.json"
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        arrays: dict[str, NDArray[np.float32]] = {}
        path = folder / "analysis.npz"
        if path.exists():
            with np.load(path, allow_pickle=False) as stored:
                arrays = dict(stored)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} cannot be read ({error}); run `aero analyze {folder}` to write it again"
        ) from error
    if not isinstance(values, dict) or "head_entropy" not in values:
        raise ValueError(
            f"{folder / 'analysis.json'} holds no head_entropy; "
            f"run `aero analyze {folder}` to write it again"
        )
    return StoredAnalysis(values, arrays)
