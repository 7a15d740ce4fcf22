"""Every notebook runs from top to bottom; the committed notebook is the reviewed text's."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import inspect
import re
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import pytest
import yaml

import aero

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
# A path from the root of some machine: no such thing is the same elsewhere.
ABSOLUTE_PATH = re.compile(r"(?<![\w.:/<])/(?:\w[\w.-]*/)+\w|\b[A-Z]:\\")


def the_executor() -> Any:
    spec = importlib.util.spec_from_file_location("execute_notebooks", FOLDER / "execute.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def committed(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def written_text(cell: Any) -> str:
    texts = [output.get("text", "") for output in cell.outputs]
    texts += [
        "".join(content)
        for output in cell.outputs
        for kind, content in output.get("data", {}).items()
        if kind.startswith("text/")
    ]
    return "\n".join(texts)


def pictures(cell: Any) -> list[Any]:
    return [output for output in cell.outputs if "image/png" in output.get("data", {})]


def check_outputs(notebook: Any) -> None:
    for cell in code_cells(notebook):
        assert len(pictures(cell)) == cell.source.count("plt.show()")
        if "print(" in cell.source and "def " not in cell.source:
            assert written_text(cell)
        kinds = {(output.output_type, output.get("name")) for output in cell.outputs}
        assert kinds <= {("stream", "stdout"), ("display_data", None), ("execute_result", None)}
        assert not ABSOLUTE_PATH.search(written_text(cell)), written_text(cell)


def test_there_are_five_notebooks_and_each_has_its_text() -> None:
    assert [name[0] for name in NAMES] == ["1", "2", "3", "4", "5"]
    assert [path.stem for path in the_executor().sources()] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_notebook_and_text_are_in_step(name: str) -> None:
    text = jupytext.read(FOLDER / f"{name}.py")
    notebook = committed(name)
    for ours, theirs in zip(text.cells, notebook.cells, strict=True):
        assert (ours.cell_type, ours.source) == (theirs.cell_type, theirs.source), (
            "run `make notebooks`"
        )
        assert ours.metadata.get("tags") == theirs.metadata.get("tags")
    assert text.metadata["kernelspec"] == notebook.metadata["kernelspec"]


@pytest.mark.parametrize("name", NAMES)
def test_a_committed_notebook_can_be_read_without_running_it(name: str) -> None:
    notebook = committed(name)
    check_outputs(notebook)
    numbers = [cell.execution_count for cell in code_cells(notebook)]
    assert numbers == list(range(1, len(numbers) + 1)), "executed from top to bottom"
    headings = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    assert "**Question.**" in headings[0] and "## Conclusion" in "\n".join(headings[1:])


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_imports_aero_alone_and_types_public_names(name: str) -> None:
    tree = ast.parse((FOLDER / f"{name}.py").read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert all(not alias.name.startswith("aero.") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # The paper's tables are a module that nothing exports.
            is_ours = str(node.module).split(".")[0] == "aero"
            assert not is_ours or ast.unparse(node) == "from aero import paper", ast.unparse(node)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "aero":
                assert node.attr in aero.__all__, ast.unparse(node)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value).startswith("aero."):
            package = getattr(aero, ast.unparse(node.value).removeprefix("aero."), None)
            if inspect.ismodule(package):
                assert node.attr in package.__all__, ast.unparse(node)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_begins_with_one_number_and_few_lines_of_set_up(name: str) -> None:
    cells = jupytext.read(FOLDER / f"{name}.py").cells
    assert cells[0].source.count("**The number.**") == 1
    first = next(cell for cell in cells if cell.cell_type == "code").source
    lines = [line for line in first.splitlines() if line and "import " not in line]
    assert name[0] == "5" or len(lines) <= 5, first  # the fifth loads its models there


@pytest.mark.parametrize("name", NAMES)
def test_a_committed_notebook_is_below_one_megabyte(name: str) -> None:
    assert (FOLDER / f"{name}.ipynb").stat().st_size < 1_000_000


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_from_top_to_bottom(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = yaml.safe_load((FOLDER / "bytes.yaml").read_text("utf-8"))
    settings["data"]["source"] = str(Path(asyncio.__file__).parent)
    settings["training"]["tokens"] = 8192
    settings["evaluation"]["final_tokens"] = 4096
    settings["logging"]["entropy_every_steps"] = 4
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "bytes.yaml").write_text(yaml.safe_dump(settings), "utf-8")
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    executed = the_executor().execute(FOLDER / f"{name}.py", tmp_path / "notebooks")
    check_outputs(executed)


def test_gallery_pictures_come_from_the_committed_notebooks() -> None:
    executor = the_executor()
    drawn = {
        f"{name}.png": png
        for notebook in NAMES
        for name, png in executor.gallery_images(committed(notebook)).items()
    }
    assert drawn == {path.name: path.read_bytes() for path in executor.IMAGES.glob("*.png")}


@pytest.mark.parametrize(
    ("text", "is_noise"),
    [
        ("training:  62%|####  | 7/12 [00:11<00:07, 1.5step/s]\r", True),
        ("auto.py:21: TqdmWarning: IProgress not found.\n  import tqdm as notebook_tqdm\n", True),
        ("UserWarning: the loss is not finite\n", False),
    ],
)
def test_only_progress_is_left_out_of_the_outputs(text: str, is_noise: bool) -> None:
    executor = the_executor()
    for name, may_go in (("stderr", is_noise), ("stdout", False)):
        output = nbformat.v4.new_output("stream", name=name, text=text)
        assert executor.is_progress(output) is may_go


@pytest.mark.parametrize(
    ("text", "is_path"),
    [
        ("saved to /home/somebody/run", True),
        ("C:\\Users\\somebody", True),
        ("'/usr/lib/python3/asyncio'", True),
        ("entropy / log(i + 1), 3 / 4 MB/s and tokens/step", False),
        ("../runs/notebooks/bytes", False),
        ("https://arxiv.org/abs/2410.13060", False),
    ],
)
def test_paths_of_a_machine_are_told_from_other_slashes(text: str, is_path: bool) -> None:
    assert bool(ABSOLUTE_PATH.search(text)) is is_path
