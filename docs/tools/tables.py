"""The tables of settings, from the code's own tables: unit, values, default and meaning of each."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import re
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from aero import _core, mpc
from aero.architecture import ArchitectureSpec
from aero.network.primitives import PRIMITIVES, READERS
from aero.private.settings import RANGES, REVEALS, SPU_FIELDS, STACKS, UNITS, PrivateSettings
from aero.tables import markdown_table
from aero.train.recipes.recipe import Recipe
from aero.train.recipes.recipe_sections import Bounds


@dataclass(frozen=True)
class Setting:
    """A row: a setting, the values that it takes, its unit if it is a number, and its meaning."""

    name: str
    values: str
    unit: str
    default: str
    meaning: str


def recipe_settings() -> list[Setting]:
    """Every setting of a recipe, as `--set section.key=value` names it."""
    return [
        row
        for section in dataclasses.fields(Recipe)
        if dataclasses.is_dataclass(kind := typing.get_type_hints(Recipe)[section.name])
        for row in _settings_of(kind, f"{section.name}.")
    ]


def _settings_of(section: Any, prefix: str) -> Iterator[Setting]:
    meanings, hints = attributes_of(section), typing.get_type_hints(section)
    for entry in dataclasses.fields(section):
        bounds, choices = entry.metadata.get("bounds"), entry.metadata.get("choices")
        kinds = set(typing.get_args(hint := hints[entry.name]) or [hint])
        values = (
            _range(bounds, int in kinds)
            if bounds
            else _words(choices or ("true", "false"))
            if choices or bool in kinds
            else "text"
        )
        empty = ", or `null`" if types.NoneType in kinds else ""
        default = _shown(entry.default)
        unit = entry.metadata.get("unit", "")
        yield Setting(prefix + entry.name, values + empty, unit, default, meanings[entry.name])


def attributes_of(described: type) -> dict[str, str]:
    """The section `Attributes:` of a docstring by name, each as one paragraph."""
    text = inspect.getdoc(described) or ""
    section = re.search(r"^Attributes:\n((?:    .*\n?|\n)+)", text, re.MULTILINE)
    assert section, described
    entries = re.split(r"^    (?=\w+: )", section[1], flags=re.MULTILINE)[1:]
    pairs = (entry.split(": ", 1) for entry in entries)
    return {name: " ".join(meaning.split()) for name, meaning in pairs}


def private_settings() -> list[Setting]:
    """Every setting of a private run, and every field of SPU that it takes."""
    meanings, rows = attributes_of(PrivateSettings), []
    for entry in dataclasses.fields(PrivateSettings):
        if entry.name in RANGES:
            values = "{} to {}, whole".format(*RANGES[entry.name])
        elif entry.type == "bool":
            values = _words(("true", "false"))
        else:
            values = {
                "protocol": _words(STACKS),
                "reveal": _words(REVEALS),
                "timeout_seconds": "> 0",
                "spu_fields": "the names below",
            }[entry.name]
        default = "{}" if entry.name == "spu_fields" else _shown(entry.default)
        unit = UNITS.get(entry.name, "")
        rows.append(Setting(entry.name, values, unit, default, meanings[entry.name]))
    for name, field in SPU_FIELDS.items():
        accepted = (*field.values, field.default)
        values = _words(sorted(accepted, key=int) if field.unit else accepted)
        rows.append(Setting(name, values, field.unit, _shown(field.default), field.meaning + "."))
    return rows


def stack_fields() -> list[Setting]:
    """Every field of a stack; the default is that of `spu-2024`."""
    defaults = mpc.stack_fields("spu-2024")
    return [
        Setting(name, _accepted(name, defaults[name]), unit, _shown(defaults[name]), meaning + ".")
        for name, (unit, meaning) in _core.stack_field_documents().items()
    ]


def _accepted(name: str, value: object) -> str:
    """The values that a field of a stack takes, as the error of a wrong one lists them."""
    if isinstance(value, bool) and name != "absorb_ffn":
        return _words(("true", "false"))
    wrong: Any = -1 if isinstance(value, int) and not isinstance(value, bool) else "?"
    try:
        mpc.simulate("SM", stack="spu-2024", **{name: wrong})
    except ValueError as error:
        (found,) = re.findall(r"must be (?:an integer from )?(.*), got", str(error))
        return found.replace("True", "true").replace("False", "false").replace('"', "`")
    raise AssertionError(f"{name} takes {wrong!r}")


def spec_fields() -> list[Setting]:
    """Every field of an `ArchitectureSpec`; the default is that of `SM` at GPT-2's size."""
    spec = ArchitectureSpec.from_label("SM", model="gpt2")
    return [
        Setting(name, _accepted_by_spec(spec, name), unit, _shown(default), meaning + ".")
        for (name, (unit, meaning)), default in zip(
            _core.spec_field_documents().items(), spec.to_dict().values(), strict=True
        )
    ]


def _accepted_by_spec(spec: ArchitectureSpec, name: str) -> str:
    if isinstance(getattr(spec, name), bool):
        return _words(("true", "false"))
    try:
        spec.replace(**{name: "?"})
    except ValueError as error:
        (found,) = re.findall(r"must be (?:an? (?:integer|number) from )?(.*), got", str(error))
        return found.replace('"', "`")
    raise AssertionError(f"{name} takes '?'")


def primitives() -> str:
    """Every operation of a description, and the readers that know it."""
    return markdown_table(
        ["operation", "what it computes", "fields", "weights", *READERS],
        [
            [
                f"`{name}`",
                primitive.meaning,
                _words(primitive.fields),
                _words(primitive.weights),
                *("yes" if name in known else "no" for known in READERS.values()),
            ]
            for name, primitive in PRIMITIVES.items()
        ],
    )


def as_markdown(rows: Iterable[Setting]) -> str:
    """A table of settings."""
    cells = [
        [f"`{row.name}`", row.values, row.unit, f"`{row.default}`", _sentence(row.meaning)]
        for row in rows
    ]
    return markdown_table(["setting", "values", "unit", "default", "meaning"], cells)


def _sentence(text: str) -> str:
    """A meaning that begins with a capital letter, unless with code or a symbol of one letter."""
    return text[0].upper() + text[1:] if re.match(r"a |[a-z]{2}", text) else text


def _range(bounds: Bounds, whole: bool) -> str:
    least = ("> " if bounds.above else "≥ ") + _short(bounds.least)
    most = ("< " if bounds.below else "≤ ") + _short(bounds.most)
    return f"{least}, {most}" + (", whole" if whole else "")


def _short(number: float) -> str:
    return f"{number:g}" if float(f"{number:g}") == number else f"{number:,}"


def _words(words: Iterable[object]) -> str:
    return ", ".join(f"`{_shown(word)}`" for word in words)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def by_section(rows: Iterable[Setting]) -> str:
    """A table per section of a recipe, under a heading with the section's first sentence."""
    parts, sections = [], typing.get_type_hints(Recipe)
    for section, group in itertools.groupby(rows, lambda row: row.name.split(".")[0]):
        first = (inspect.getdoc(sections[section]) or "").split("\nAttributes:")[0].strip()
        parts.append(f"## {section}\n\n{first}\n\n{as_markdown(group)}")
    return "\n\n".join(parts)
