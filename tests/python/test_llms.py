"""docs/llms.txt, which assistants read: its code runs, its commands and pages exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from aero.cli import app
from aero.mpc import simulate

from .test_manual_pages import assert_command_exists

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "llms.txt").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = [
    line for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()
]


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_a_snippet_runs_and_prints_what_its_comment_says(
    snippet: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(compile(snippet, "llms.txt", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    promised = re.findall(r"^print\(.*# +([\d.]+)$", snippet, re.MULTILINE)
    assert promised == [f"{float(line):.1f}" for line in printed[: len(promised)]]


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_and_its_options_exist(line: str) -> None:
    assert line.startswith("aero ")
    assert_command_exists(line)


def test_commands_that_print_json_do() -> None:
    (sentence,) = re.findall(r"units; (.+?) take `--json`", TEXT)
    command: Any = typer.main.get_command(app)
    for name in re.findall(r"`(?:aero )?(\w+)`", sentence):
        inner = command.commands[name]
        for each in getattr(inner, "commands", {"": inner}).values():
            assert "--json" in [word for option in each.params for word in option.opts], name


def test_pages_exist() -> None:
    pages = re.findall(r"\]\(([^)]+)\)", TEXT)
    assert pages
    for page in pages:
        assert (DOCS / page).with_suffix(".md").exists(), page


def test_labels_and_presets_exist() -> None:
    for label in re.findall(r"`((?:EReg\()?SM[^`]*)`", TEXT):
        assert simulate(label).comm_bytes > 0
    for preset in re.findall(r"`\"([\w-]+)\"`|model=\"([\w-]+)\"", TEXT):
        assert simulate("SM", model="".join(preset)).comm_bytes > 0
