"""`python -m benchmarks.paper`: costs, options that do not fit, and where it is found."""

import inspect
import json
import math
import subprocess
import sys
import typing
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.paper import command
from benchmarks.paper.cost_tables import reproduce_costs

ROOT = Path(__file__).parents[3]


def run(*arguments):
    return CliRunner().invoke(command.app, [*map(str, arguments)])


def test_costs_print_the_tables_and_write_the_figures(tmp_path):
    output = ("costs", "--output", tmp_path)
    done = run(*output)
    assert done.exit_code == 0
    assert done.stdout == reproduce_costs().to_text() + "\n"
    assert {path.name for path in (tmp_path / "costs").iterdir()} == {
        *(f"costs.{ending}" for ending in ("html", "txt", "json")),
        "figure-1.svg",
        "figure-15.svg",
    }
    assert len(json.loads(run(*output, "--json").stdout)["rows"]) == 27
    assert run(*output, "--stack", "spu").exit_code == 2
    nowhere = run("costs", "--output", "/dev/null/x")
    assert nowhere.exit_code == 2
    assert nowhere.stderr.count("\n") == 1
    assert "/dev/null/x/costs" in nowhere.stderr


@pytest.mark.parametrize(
    ("ignored", "option"),
    [
        (["table2", "--json", "--collect"], "--json"),
        (["table2", "--stack", "spu-0.9.5", "--collect"], "--stack"),
        (["list", "--jobs", "2"], "--jobs"),
        (["judge", "--dry-run"], "--dry-run"),
        (["costs", "--seeds", "2"], "--seeds"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(ignored, option):
    other = run(*ignored)
    assert other.exit_code == 2
    assert f"reproduce: {option} means nothing for" in other.stderr


@pytest.mark.parametrize("line", [(), ("--nope",), ("all", "--jobs", "0"), ("nope",)])
def test_a_wrong_line_ends_in_one_line(line):
    done = run(*line)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("aero: ") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["seeds", "jobs"])
def test_each_number_has_two_bounds(name):
    hints = typing.get_type_hints(command.reproduce, include_extras=True)
    _, option = typing.get_args(hints[name])
    least, most = option.min, option.max
    assert 1 == least < most < math.inf
    for outside in (least - 1, most + 1):
        refused = run("table2", f"--{name}", outside)
        assert refused.exit_code == 2 and f"--{name}" in refused.stderr


def test_no_other_option_is_a_number():
    hints = typing.get_type_hints(command.reproduce, include_extras=True)
    kinds = {
        name: {int, float} & {hint, *typing.get_args(hint)}
        for name in inspect.signature(command.reproduce).parameters
        if hints[name] is not typer.Context
        for hint in typing.get_args(hints[name])[:1]
    }
    assert [name for name, kind in kinds.items() if kind] == ["seeds", "jobs"]


def test_a_checkout_has_the_command_and_nothing_outside_does(tmp_path):
    program = [sys.executable, "-m", "benchmarks.paper", "list"]
    inside = subprocess.run(program, cwd=ROOT, capture_output=True, text=True)
    assert inside.returncode == 0 and inside.stdout.startswith("table2    ")
    outside = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True)
    assert outside.returncode == 1 and "No module named" in outside.stderr
