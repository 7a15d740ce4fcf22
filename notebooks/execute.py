"""Executes the notebooks: reads the reviewed `*.py`, writes `*.ipynb` with outputs beside it.

`make notebooks` calls it from the repository's root; trained networks go to `runs/notebooks` and
are reused by the next call. A cell tagged `gallery=NAME` also writes its figure to
`docs/images/NAME.png`.
"""

from __future__ import annotations

import base64
import re
import sys
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient

from aero.internals.atomic_files import write_bytes_atomically

FOLDER = Path(__file__).parent
IMAGES = FOLDER.parent / "docs" / "images"
# Progress bars, and tqdm's advice that they could be prettier, are for who waits.
PROGRESS = re.compile(r"\d+%\|.*\||^\s*$|IProgress not found|import tqdm as notebook_tqdm")


def sources() -> list[Path]:
    """The reviewed text form of every notebook."""
    return sorted(FOLDER.glob("[0-9]_*.py"))


def execute(source: Path, working_directory: Path) -> Any:
    """The notebook with its outputs, as Jupyter starts it; raises at the first cell that fails."""
    notebook = jupytext.read(source)
    kernel = notebook.metadata["kernelspec"]
    NotebookClient(
        notebook,
        timeout=3600,
        kernel_name=kernel["name"],
        resources={"metadata": {"path": str(working_directory)}},
        record_timing=False,
        coalesce_streams=True,
    ).execute()
    notebook.metadata = nbformat.from_dict({"kernelspec": kernel})
    for index, cell in enumerate(notebook.cells):
        cell.id = f"cell-{index}"  # random ones would differ each time
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not is_progress(output)]
    return notebook


def is_progress(output: Any) -> bool:
    """True if an output only says how far the work is."""
    if output.output_type != "stream" or output.name != "stderr":
        return False
    return all(PROGRESS.search(line) for line in re.split(r"[\r\n]", output.text))


def write(notebook: Any, path: Path) -> None:
    """Writes the notebook whole or not at all."""
    nbformat.validate(notebook)
    write_bytes_atomically(path, (nbformat.writes(notebook) + "\n").encode())


def gallery_images(notebook: Any) -> dict[str, bytes]:
    """Name -> PNG, of the cells that are tagged for the gallery."""
    found = {}
    for cell in notebook.cells:
        for tag in cell.metadata.get("tags", []):
            if tag.startswith("gallery="):
                (png,) = (
                    o.data["image/png"] for o in cell.outputs if "image/png" in o.get("data", {})
                )
                found[tag.removeprefix("gallery=")] = base64.b64decode(png)
    return found


def main(names: list[str]) -> None:
    """Executes all notebooks, or those whose file name begins with one of `names`."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    for source in sources():
        if not names or source.name.startswith(tuple(names)):
            print(f"executing {source.name}", flush=True)
            notebook = execute(source, FOLDER)
            for name, png in gallery_images(notebook).items():
                write_bytes_atomically(IMAGES / f"{name}.png", png)
            write(notebook, source.with_suffix(".ipynb"))


if __name__ == "__main__":
    main(sys.argv[1:])
