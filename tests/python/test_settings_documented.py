"""Help and manual describe every setting: unit, default and meaning.

Values, units and defaults are held against tests/data/settings.yaml. Renew it after a change that
is meant, and say so in its commit:

    python tests/python/test_settings_documented.py
"""

from __future__ import annotations

import json
import pydoc
import re
import sys
from pathlib import Path

import pytest
import yaml

import aero
from aero import _core, mpc
from aero.architecture import ArchitectureSpec
from aero.private.settings import SPU_FIELDS

sys.path.append(str(Path(__file__).parents[2] / "docs" / "tools"))
from tables import (
    Setting,
    private_settings,
    recipe_settings,
    spec_fields,
    stack_fields,
)

TABLES = {
    "recipe": recipe_settings(),
    "stack": stack_fields(),
    "spec": spec_fields(),
    "private": private_settings(),
}
SETTINGS = [(name, setting) for name, table in TABLES.items() for setting in table]
PROMISED = Path(__file__).parents[1] / "data" / "settings.yaml"


def values_units_and_defaults() -> dict[str, dict[str, list[str]]]:
    return {
        name: {row.name: [row.values, row.unit, row.default] for row in table}
        for name, table in TABLES.items()
    }


def test_values_units_and_defaults_are_those_promised() -> None:
    promised = yaml.safe_load(PROMISED.read_text("utf-8"))
    for name, table in values_units_and_defaults().items():
        assert table == promised[name]


@pytest.mark.parametrize(("table", "setting"), SETTINGS, ids=lambda part: getattr(part, "name", ""))
def test_a_setting_has_values_default_and_meaning(table: str, setting: Setting) -> None:
    assert setting.values and setting.default, setting
    assert len(setting.meaning.split()) > 1, setting
    assert setting.meaning.strip() == setting.meaning
    assert not re.search(r"\s{2}|\n", setting.meaning), setting.meaning


@pytest.mark.parametrize(("table", "setting"), SETTINGS, ids=lambda part: getattr(part, "name", ""))
def test_a_number_has_a_unit(table: str, setting: Setting) -> None:
    number = setting.default not in ("true", "false") and re.search(r"(?<!\w)\d", setting.values)
    assert bool(setting.unit) == bool(number), setting


def test_no_field_is_left_out() -> None:
    assert [row.name for row in TABLES["stack"]] == list(mpc.stack_fields("spu-2024"))
    assert [row.name for row in TABLES["spec"]] == list(ArchitectureSpec.from_label("SM").to_dict())
    recipe = aero.train.load_recipe("demo")
    sections = {name: part for name, part in vars(recipe).items() if hasattr(part, "__dict__")}
    names = [f"{section}.{name}" for section, part in sections.items() for name in vars(part)]
    assert [row.name for row in TABLES["recipe"]] == names
    private = [*aero.private.PrivateSettings().to_dict(), *SPU_FIELDS]
    assert [row.name for row in TABLES["private"]] == private


def test_help_of_a_spec_explains_every_word_of_labels_and_every_field() -> None:
    text = pydoc.render_doc(aero.ArchitectureSpec, renderer=pydoc.plaintext)
    for word, meaning in _core.label_words().items():
        assert f"`{word}`: {meaning}." in text
    for name, (_, meaning) in _core.spec_field_documents().items():
        assert name in text and meaning[1:] in text
    assert 'label := ["SOTA:"] (net | "EReg(" net ")")' in text


def test_every_word_of_labels_is_one_that_labels_have() -> None:
    for word in _core.label_words():
        if word.startswith("("):
            place = {"(t": "SM{}", "(c": "SM+FN{}", "(s": "SM+FN{}", "(l": "SM+LR{}"}
            label = place.get(word[:2], "SM+LR{}" if word == "(global)" else "SM+WNFFN{}")
            ArchitectureSpec.from_label(label.format(word))
        elif word in ("SM", "SOTA:", "EReg(...)", "_iK", "LR"):
            whole = {"SM": "SM", "SOTA:": "SOTA:SM", "EReg(...)": "EReg(SM(t))", "_iK": "SM_i2"}
            ArchitectureSpec.from_label(whole.get(word, "SM+LR(layer)"))
        else:
            ArchitectureSpec.from_label(f"SM+{word}")


if __name__ == "__main__":
    lines = []
    for name, table in values_units_and_defaults().items():
        lines.append(f"{name}:")
        lines += [f"  {row}: {json.dumps(of, ensure_ascii=False)}" for row, of in table.items()]
    PROMISED.write_text("\n".join(lines) + "\n", "utf-8")
