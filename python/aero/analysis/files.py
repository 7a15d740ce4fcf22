"""`analysis.json` and `analysis.npz` of a run folder: written and read here, nowhere else."""

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aero.analysis.summary import EntropySummary
from aero.internals.atomic_files import atomic_binary_file, write_json_atomically
from aero.internals.records import read_record
from aero.internals.run_files import Analysis
from aero.reading import UnreadableFileError, library_errors, printable

_MOST_BYTES = 1 << 28  # of all arrays; a network of 24 layers, 16 heads and T = 2048 has 6 MB


@dataclass(frozen=True, eq=False)
class StoredAnalysis:
    """An analysis read back: `values` is `analysis.json`, `arrays` is `analysis.npz`."""

    values: Analysis
    arrays: dict[str, NDArray[np.float32]]


def write_analysis(run_dir: str | Path, summary: EntropySummary) -> None:
    """Writes `analysis.npz` and then `analysis.json` into a run folder, each whole or not at all.

    Raises:
        OSError: the folder is missing or the disk is full; earlier files stay as they were.
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
        >>> from aero.analysis.files import read_analysis
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
        values = read_record(path, Analysis)
        arrays = _read_arrays(folder / "analysis.npz")
    except UnreadableFileError as error:
        way_out = f"run `aero analyze {printable(str(folder))}` to write it again"
        raise UnreadableFileError(f"{error}; {way_out}") from error
    return StoredAnalysis(values, arrays)


def _read_arrays(path: Path) -> dict[str, NDArray[np.float32]]:
    if not path.exists():
        return {}
    with library_errors(path, "NumPy arrays"):
        with zipfile.ZipFile(path) as packed:
            size = sum(entry.file_size for entry in packed.infolist())
        if size > _MOST_BYTES:
            raise UnreadableFileError(
                f"{printable(str(path))}: expected at most {_MOST_BYTES:,} bytes of arrays, got "
                f"{size:,}"
            )
        with np.load(path, allow_pickle=False) as stored:
            return dict(stored)
