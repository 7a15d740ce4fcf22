"""What users may call is what the record of public names says, in the modules that run.

`test_public_surface.py` reads the sources; this reads what Python made of them, so that a change
to a parameter shows where a module was changed in memory, as `make mutants` does it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

LINE = re.compile(r"aero\.([a-z_]+)\.(\w+)\((.*)\)")
RECORD = Path(__file__).with_name("public_surface.txt").read_text(encoding="utf-8")
RECORDED = [line for line in map(LINE.fullmatch, RECORD.splitlines()) if line]


def pattern(parameter: inspect.Parameter) -> str:
    """Of a parameter's place in a recorded line, with the default as a group."""
    stars = {parameter.VAR_KEYWORD: r"\*\*", parameter.VAR_POSITIONAL: r"\*"}
    default = "" if parameter.default is parameter.empty else f"=(?P<{parameter.name}>.+?)"
    only = r" \(by name\)" if parameter.kind == parameter.KEYWORD_ONLY else ""
    return stars.get(parameter.kind, "") + parameter.name + default + only


@pytest.mark.parametrize("room", sorted({line[1] for line in RECORDED}))
def test_every_function_takes_the_recorded_parameters(room: str) -> None:
    module = importlib.import_module(f"aero.{room}")
    for line in (line for line in RECORDED if line[1] == room):
        function = getattr(module, line[2])
        if not inspect.isfunction(function):
            continue
        parameters = inspect.signature(function).parameters
        assert all(one.kind != one.POSITIONAL_ONLY for one in parameters.values()), line[0]
        found = re.fullmatch(", ".join(map(pattern, parameters.values())), line[3])
        assert found, f"{line[0]}: there are {', '.join(map(str, parameters.values()))}"
        for name, text in found.groupdict().items():
            try:
                written = ast.literal_eval(text)
            except (ValueError, SyntaxError):
                continue  # a constant of the module, or a function
            assert parameters[name].default == written, f"{line[0]}: {name}"
