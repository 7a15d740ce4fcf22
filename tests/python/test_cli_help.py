"""Help: commands below headings, an example of each, and the unit of every number."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from aero.cli import app

APP: Any = typer.main.get_command(app)
#: Words by which an option says what it counts or measures.
UNITS = re.compile(
    r"\b(?:tokens?|nats|seconds|milliseconds|bit/s|GB|windows|prompts|connections|seeds?"
    r"|condition number)\b",
    re.IGNORECASE,
)


def leaves(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that does something, with the words that call it."""
    for name, inner in getattr(command, "commands", {}).items():
        if getattr(inner, "commands", None):
            yield from leaves(inner, (*path, name))
        else:
            yield (*path, name), inner


COMMANDS = dict(leaves(APP, ()))


def help_of(*path: str) -> str:
    result = CliRunner().invoke(app, [*path, "--help"])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_the_help_of_a_command_shows_an_example_that_it_takes(path: tuple[str, ...]) -> None:
    (example,) = re.findall(r"^  Example: (aero .+)$", help_of(*path), re.MULTILINE)
    program, *words = shlex.split(example)
    assert tuple(words[: len(path)]) == path
    command, context = APP, typer.Context(APP)
    for name in path:
        command = command.commands[name]
        context = typer.Context(command, parent=context)
    command.make_context(program, words[len(path) :], parent=context.parent)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_a_number_names_its_unit(path: tuple[str, ...]) -> None:
    numbers = re.findall(
        r"^  (--[\w-]+) .*?(?:<\w*\[?(?:int|float)|INTEGER|FLOAT)", help_of(*path), re.M
    )
    helps = {option.opts[0]: option.help for option in COMMANDS[path].params}
    for name in numbers:
        assert UNITS.search(helps[name]), (name, helps[name])


def test_commands_stand_below_headings() -> None:
    listed = help_of()
    places = [listed.index(f"\n{heading}:") for heading in (
        "Start", "Train and measure", "Convert", "Price", "Run privately",
    )]  # fmt: skip
    assert places == sorted(places) and "\nCommands:" not in listed
    for name in APP.commands:
        assert len(re.findall(rf"^  {name} ", listed, re.MULTILINE)) == 1


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("co", {"convert", "cost"}),
        ("cost sh", {"show"}),
        ("private pu", {"publish"}),
        ("evaluate --fixed", {"--fixed-point"}),
    ],
)
def test_the_shell_completes_commands_and_options(typed: str, offered: set[str]) -> None:
    asked = {
        "_AERO_COMPLETE": "complete_bash",
        "COMP_WORDS": f"aero {typed}",
        "COMP_CWORD": str(len(typed.split())),
    }
    # As the script of `aero --show-completion` asks; the name of the program says for whom.
    program = "import sys; sys.argv = ['aero']; from aero.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **asked}, capture_output=True, text=True
    )
    assert done.stderr == "" and set(done.stdout.split()) == offered


def test_help_says_how_completion_is_switched_on() -> None:
    assert "--install-completion" in help_of()
    page = (Path(__file__).parents[2] / "docs/reference/command_line.md").read_text("utf-8")
    assert "aero --install-completion" in page
