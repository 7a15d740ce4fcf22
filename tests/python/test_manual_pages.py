"""The short pages of the manual: their commands exist, and the errors they explain are ours."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from aero.cli import app

from .report.test_accessibility import contrast

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    DOCS / "which_part.md",
    DOCS / "limits.md",
    DOCS / "quickstart.md",
    *(DOCS / "how_to" / f"{name}.md" for name in (
        "entropy_in_jupyter", "watch_a_run", "troubleshooting",
    )),
]  # fmt: skip
BLOCKS = {
    page: [
        body
        for kind, body in re.findall(
            r"^```(\w*)\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
        )
        if kind in ("", "sh")
    ]
    for page in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
}
COMMANDS = [
    line.strip()
    for blocks in BLOCKS.values()
    for block in blocks
    for line in block.splitlines()
    if line.strip().removeprefix(".venv/bin/").startswith("aero ") and "--help" not in line
]
# In place of `aero`: makes the folder of a training, whose network has to be there.
TRAINS = """#!{python}
import sys
from pathlib import Path
from aero.train.recipes.recipe_files import load_recipe
from aero.train.runs.planning import training_way
from aero.train.runs.run_folder import run_slug

command, *words = sys.argv[1:]
given = dict(zip(words[::2], words[1::2]))
starts = "--from" in given
assert not starts or Path(given["--from"]).is_dir(), words
if command == "train":
    recipe = load_recipe("demo", settings=[given["--set"]] if "--set" in given else ())
    way = training_way(recipe, start_from=starts)
    Path(given["--output"], run_slug(given["--label"]) + way + "-seed0").mkdir(parents=True)
"""


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_and_its_options_exist(line: str) -> None:
    assert_command_exists(line)


def assert_command_exists(line: str) -> None:
    """Checks that a line of a shell is a command of ours with options that it has."""
    words = shlex.split(line.partition(" | ")[0], comments=True)[1:]
    command: Any = typer.main.get_command(app)
    context = typer.Context(command)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
        context = typer.Context(command, parent=context)
    command.make_context("aero", words, parent=context)


def test_trainings_in_a_row_start_from_the_folders_that_they_make(tmp_path: Path) -> None:
    (block,) = (one for one in BLOCKS[DOCS / "how_to" / "convert.md"] if "--from" in one)
    program = tmp_path / "bin" / "aero"
    program.parent.mkdir()
    program.write_text(TRAINS.format(python=sys.executable))
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", "-e", "-c", block]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PATH": path}, text=True,
                          capture_output=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "runs" / "pruning").iterdir())) == 4


def texts() -> str:
    """All that the package can say: the literals of Python, joined as it joins them, and C++."""
    said = []
    for path in (ROOT / "python" / "aero").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                said.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = [p.value if isinstance(p, ast.Constant) else "\0" for p in node.values]
                said.append("".join(map(str, parts)))
    said += [path.read_text("utf-8") for path in (ROOT / "csrc").rglob("*.[ch]p*")]
    said += [path.read_text("utf-8") for path in (ROOT / "csrc").rglob("*.h")]
    return "\n".join(said)


def test_the_errors_that_the_manual_explains_are_those_of_the_package() -> None:
    page = (DOCS / "how_to" / "troubleshooting.md").read_text("utf-8")
    rows = re.findall(r"^\| (.+?) \|", page, re.MULTILINE)
    quoted = {text for row in rows for text in re.findall("`([^`]+)`", row)}
    quoted -= {"aero doctor", "aero: command not found"}  # the shell says that one
    assert len(quoted) > 15
    said = texts()
    assert {text for text in quoted if text not in said} == set()


def test_settings_that_the_manual_changes_exist() -> None:
    known = yaml.safe_load((ROOT / "tests" / "data" / "settings.yaml").read_text("utf-8"))
    for page in PAGES:
        for name in re.findall(
            r"`((?:optimizer|regularization|model)\.\w+)", page.read_text("utf-8")
        ):
            assert name in known["recipe"], name


def test_links_can_be_read_on_the_dark_page() -> None:
    css = (DOCS / "manual.css").read_text("utf-8")
    rules = [r for r in css.split("}") if 'scheme="slate"' in r and "--md-typeset-a-color" in r]
    (color,) = re.findall(r"--md-typeset-a-color: #(\w{6})", "".join(rules))
    assert contrast(f"#{color}", "#1e2129") >= 4.5  # on the theme's dark page


#: Words that said less than the plain ones, each with what to write: a page of prose has none.
TICS = {
    r"\b(?:less|more) perplexity\b": "a lower or higher perplexity",
    r"\bdecides? nothing\b": "undecided",
    r"\btold\b": "says, shows, distinguishes",
    r"\b(?:apart|lever|levers|budget|budgets)\b": "separate, widely; setting; limit, tokens",
    r"\bstands? (?:apart|there|out|in `)": "is",
    r"\blies? (?:above|below|far)\b": "exceeds, is lower, differs",
}
PROSE = [ROOT / "README.md", *sorted(DOCS.rglob("*.md")), *sorted(ROOT.glob("notebooks/*_*.py"))]


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.stem)
def test_prose_says_it_plainly(page: Path) -> None:
    text = page.read_text("utf-8")
    if page.suffix == ".py":
        text = "\n".join(line for line in text.splitlines() if line.startswith("# "))
    text = re.sub(r"```.*?```|`[^`\n]+`|\]\([^)]*\)", "", text, flags=re.DOTALL)
    found = {match[0]: say for tic, say in TICS.items() for match in re.finditer(tic, text)}
    assert found == {}


#: A saving of bytes by a network without activation, beside the baseline's.
SAVES = re.compile(
    r"fewer bytes|(?:half|third|fourth|quarter|fifth|sixth|tenth) of (?:its|the)[^.]*\bbytes"
)


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.stem)
def test_what_relu_alone_would_save_is_said_where_softmax_only_saves(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    lines = [line for line in re.split(r"\n+", text) if not line.startswith("|")]
    saving = [
        line
        for line in lines
        if re.search(r"ScFuFFN|softmax[- ]only|without activation", line, re.IGNORECASE)
        and re.search(r"baseline|SM\+LN\+G", line)
        and SAVES.search(line)
    ]
    assert [line for line in saving if not re.search(r"ReLU|\+R\b", line)] == []


def commands(command: Any, path: str) -> list[str]:
    """Every command that does something, as it is typed."""
    inner = getattr(command, "commands", {})
    found = [commands(each, f"{path} {name}") for name, each in inner.items()]
    return [name for names in found for name in names] or [path]


@pytest.mark.parametrize("name", commands(typer.main.get_command(app), "aero"))
def test_a_page_of_the_manual_uses_every_command(name: str) -> None:
    pages = [ROOT / "README.md", *DOCS.rglob("*.md")]
    assert any(re.search(rf"{name}\b", page.read_text("utf-8")) for page in pages)
