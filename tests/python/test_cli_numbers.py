"""Every number on every command line has bounds, and what lies outside of them is one line."""

import inspect
import math
import typing

import pytest
import typer
from typer.testing import CliRunner

from aero import cli


def commands(command, path=()):
    for name, inner in command.commands.items():
        if hasattr(inner, "commands"):
            yield from commands(inner, (*path, name))
        else:
            yield (*path, name), inspect.unwrap(inner.callback)


def numbers():
    for path, function in commands(typer.main.get_command(cli.app)):
        hints = typing.get_type_hints(function, include_extras=True)
        for name, parameter in inspect.signature(function).parameters.items():
            if hints[name] is typer.Context:
                continue
            kind, option = typing.get_args(hints[name])
            kinds = {int, float} & {kind, *typing.get_args(kind)}
            kinds |= {int for part in typing.get_args(kind) if part == list[int]}
            if kinds:
                default = parameter.default
                yield pytest.param(hints[name], option, default, id=" ".join((*path, name)))


NUMBERS = list(numbers())


def test_there_are_such_options_in_every_room():
    rooms = {number.id.split()[0] for number in NUMBERS}
    assert rooms == {
        "train", "prune", "evaluate", "analyze", "show", "convert", "cost", "private"
    }  # fmt: skip


@pytest.mark.parametrize(("hint", "option", "default"), NUMBERS)
def test_each_number_has_two_bounds_and_refuses_what_lies_outside(hint, option, default):
    assert math.isfinite(option.min) and math.isfinite(option.max), "give it min and max"
    app, got = typer.Typer(), []

    @app.command()
    def command(it: hint = default):
        got.append(it)

    given = (option.default, *(option.param_decls or ()))  # typer's first one is `default`
    name = next((name for name in given if str(name).startswith("--")), "--it")
    for inside in (option.min, option.max):
        assert CliRunner().invoke(app, [f"{name}={inside}"]).exit_code == 0
        assert got.pop() in (inside, [inside])
    for outside in (option.min - 1, option.max * 2, 10**400, math.inf, -math.inf):
        assert CliRunner().invoke(app, [f"{name}={outside}"]).exit_code == 2, outside
    assert not got
