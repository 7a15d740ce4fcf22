"""Names that users type stay, or the record of it changes in the same commit.

tests/python/public_surface.txt holds every public name with its parameters and their defaults, and
the public methods and attributes of classes. Renew it after a change that is meant, and write the
change into CHANGELOG.md:

    python -m tests.python.test_public_surface
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator
from pathlib import Path

import griffe

PYTHON = Path(__file__).parents[2] / "python"
RECORD = Path(__file__).with_name("public_surface.txt")


def shown(name: str, item: griffe.Object | griffe.Alias) -> Iterator[str]:
    """One line for a name, and one for each public member of a class."""
    if item.is_function:
        given = ", ".join(_parameter(p) for p in item.parameters)
        yield f"{name}({given})"
    elif item.is_class:
        yield f"class {name}({', '.join(_parameter(p) for p in item.parameters)})"
        for member, held in sorted(item.members.items()):
            if not member.startswith("_") and not held.is_alias:
                yield from shown(f"{name}.{member}", held)
    else:
        yield name


def _parameter(parameter: griffe.Parameter) -> str:
    star = {
        griffe.ParameterKind.var_positional: "*",
        griffe.ParameterKind.var_keyword: "**",
    }.get(parameter.kind, "")
    default = "" if parameter.default is None or star else f"={parameter.default}"
    only = " (by name)" if parameter.kind is griffe.ParameterKind.keyword_only else ""
    return f"{star}{parameter.name}{default}{only}"


def surface() -> list[str]:
    """Every public name of `aero` and its public packages, as the sources declare them."""
    package = griffe.load("aero", search_paths=[PYTHON], allow_inspection=False)
    lines: list[str] = []
    for exported in names_of(PYTHON / "aero"):
        is_module = _declared(package, exported).is_module
        inner = names_of(PYTHON / "aero" / exported) if is_module else [""]
        for name in (f"{exported}.{name}".rstrip(".") for name in inner):
            lines += shown(f"aero.{name}", _declared(package, name))
    return sorted(set(lines))


def names_of(module: Path) -> list[str]:
    """The exports of a module: the names of its stub where it has one, else its `__all__`."""
    stub = module / "__init__.pyi"
    if stub.is_file():
        return re.findall(r" as (\w+)$", stub.read_text(encoding="utf-8"), re.MULTILINE)
    source = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
    tree = ast.parse(source.read_text(encoding="utf-8"))
    (found,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    return [*found]


def _declared(package: griffe.Module, name: str) -> griffe.Object | griffe.Alias:
    """Where a name comes from: its own file, behind the stub that hands it on."""
    held = package[name]
    return held.final_target if held.is_alias else held


def test_the_public_surface_is_the_recorded_one() -> None:
    recorded, found = RECORD.read_text(encoding="utf-8").splitlines(), surface()
    changes = [*difflib.unified_diff(recorded, found, "recorded", "found", lineterm="", n=0)]
    assert not changes, "\n".join([*changes, "renew the record: see the docstring of this file"])


def test_a_change_of_a_parameter_a_default_or_a_method_is_seen(tmp_path: Path) -> None:
    def lines(text: str) -> list[str]:
        (tmp_path / "some.py").write_text(text)
        found = griffe.load("some", search_paths=[tmp_path], allow_inspection=False)
        return [line for n in ("f", "C") for line in shown(n, found[n])]

    before = lines(
        "def f(a, b=1, *, c=None, **d): ...\nclass C:\n    x: int\n    def m(self): ...\n"
    )
    assert before == [
        "f(a, b=1, c=None (by name), **d)", "class C()", "C.m(self)", "C.x",
    ]  # fmt: skip
    after = lines("def f(a, b=2, c=None, **d): ...\nclass C:\n    def n(self, y): ...\n")
    assert after == ["f(a, b=2, c=None, **d)", "class C()", "C.n(self, y)"]


#: What opens a fragment, where a sentence says what the name is or does.
FRAGMENTS = {"Another", "As", "By", "How", "Of", "What", "Whether", "Whom", "Whose", "With"}


def _documented() -> Iterator[tuple[str, griffe.Object | griffe.Alias]]:
    """Every public name that has a docstring, and its public members that have one."""
    package = griffe.load("aero", search_paths=[PYTHON], allow_inspection=False)
    for line in surface():
        name = re.split(r"[( ]", line.removeprefix("class "))[0].removeprefix("aero.")
        held = package
        for part in name.split("."):
            held = held[part].final_target if held[part].is_alias else held[part]
        if held.docstring is not None:
            yield name, held


def test_docstrings_open_with_a_sentence_and_those_of_functions_with_its_verb() -> None:
    openings = {name: (held, held.docstring.value.split()[0]) for name, held in _documented()}
    assert len(openings) > 100
    fragments = {name: word for name, (_, word) in openings.items() if word in FRAGMENTS}
    # "Returns", "Computes"; a property is named by what it is.
    fragments |= {
        name: word
        for name, (held, word) in openings.items()
        if held.is_function and not re.fullmatch(r"[A-Z][a-z]+s,?", word)
    }
    assert not fragments


if __name__ == "__main__":
    RECORD.write_text("\n".join(surface()) + "\n", encoding="utf-8")
