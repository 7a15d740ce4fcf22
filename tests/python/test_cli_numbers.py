"""Every number on every command line has bounds, and what lies outside of them is one line."""

import inspect
import math
import typing
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from aero import cli


def commands(app, path=()):
    for entry in app.registered_commands:
        yield (*path, entry.name or entry.callback.__name__), entry.callback
    for group in app.registered_groups:
        yield from commands(group.typer_instance, (*path, group.name))


def numbers():
    for path, function in commands(cli.app):
        hints = typing.get_type_hints(function, include_extras=True)
        for name, parameter in inspect.signature(function).parameters.items():
            if hints[name] is typer.Context:
                continue
            kind, option = typing.get_args(hints[name])
            kinds = {int, float} & {kind, *typing.get_args(kind)}
            kinds |= {int for part in typing.get_args(kind) if part == list[int]}
            if kinds:
                (number,) = kinds
                yield pytest.param(option, number, parameter.default, id=" ".join((*path, name)))


NUMBERS = list(numbers())


def test_there_are_such_options_in_every_room():
    rooms = {number.id.split()[0] for number in NUMBERS}
    assert rooms == {
        "train", "prune", "evaluate", "analyze", "show", "convert", "cost", "private"
    }  # fmt: skip


@pytest.mark.parametrize(("option", "kind", "default"), NUMBERS)
def test_each_number_has_two_bounds_and_refuses_what_lies_outside(option, kind, default, capsys):
    assert option.callback is not None, "give it a callback of aero.cli.arguments"
    bounds, named = option.callback.bounds, SimpleNamespace(opts=["--it"])
    assert math.isfinite(bounds.least) and math.isfinite(bounds.most)
    assert option.callback(named, default) == default
    assert option.callback(named, kind(bounds.most)) == bounds.most
    outside = [bounds.least - 1, bounds.most + 1e3, 10**400, math.nan, math.inf, -math.inf]
    for value in (*outside, [kind(bounds.most), -math.inf]):
        with pytest.raises(typer.Exit) as ended:
            option.callback(named, value)
        assert ended.value.exit_code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("aero: --it must be ") and len(line) < 200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", ".", "--max-tokens", "-1"], "--max-tokens must be >= 1, got -1"),
        (["prune", "score", ".", "--max-loss-increase", "nan"], "--max-loss-increase must be >= 0"),
        (["train", "--label", "SM", "--seed", "1", "--seed", "-1"], "--seed must be >= 0, got -1"),
        (["convert", ".", "--label", "SM", "--max-condition", "inf"], "must be <= 1e+16, got inf"),
    ],
)
def test_a_bad_number_is_one_line(arguments, message):
    result = CliRunner().invoke(cli.app, arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert message in line
