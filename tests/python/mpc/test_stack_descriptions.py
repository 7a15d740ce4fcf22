"""Stacks described in files: what they change, and how bad ones are refused."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from aero import _core, mpc

GOOD: dict[str, Any] = {"format": 1, "name": "mine", "base": "spu-2024"}


def written(folder: Path, **entries: Any) -> Path:
    path = folder / "mine.json"
    path.write_text(json.dumps({**GOOD, **entries}), encoding="utf-8")
    return path


def test_the_shipped_description_halves_what_bumblebee_sends_in_layers() -> None:
    # arXiv 2508.19525, abstract: a 2x reduction against BumbleBee. Bytes are whole per operation.
    ours = mpc.simulate("SM+LN+G", stack="blb")
    bumblebee = mpc.simulate("SM+LN+G", stack="openbumblebee")
    for layer, base in zip(ours.by_layer, bumblebee.by_layer, strict=True):
        assert layer.comm_bytes == pytest.approx(base.comm_bytes / 2, abs=len(ours.operations))
        assert layer.flights == base.flights
    assert ours.by_kind["embed"] == bumblebee.by_kind["embed"]
    assert any("quotes" in note for note in ours.unchecked)
    assert "2508.19525" in ours.description.source


def test_every_shipped_description_is_valid_and_says_where_it_is_from() -> None:
    for name in mpc.described_stack_names():
        description = mpc.stack_description(name)
        assert description.name == name
        assert description.source
        assert mpc.simulate("SM+LN+G", stack=name).stack == name


def test_fields_and_prices_are_those_of_the_file(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        fields={"exp_squarings": 6},
        prices={"softmax": {"bytes_per_row": 7, "bytes_per_output": 1000, "flights": 9}},
        source="a paper",
    )
    report = mpc.simulate("SM", model="tiny", context_length=4, stack=path)
    assert report.stack == "mine"
    assert report.stack_fields["exp_squarings"] == 6
    assert report.changed_fields() == {}
    softmax = report.by_kind["softmax"]
    assert softmax.comm_bytes == 2 * (8 * 7 + 8 * 4 * 1000)  # two layers of 2 heads x 4 rows
    assert (softmax.flights, softmax.ots) == (18, 0)
    changed = mpc.simulate("SM", model="tiny", stack=str(path), exp_squarings=7)
    assert changed.changed_fields() == {"exp_squarings": 7}
    again = mpc.simulate(report.spec, stack=mpc.load_stack(path))
    assert again == report


def test_yaml_and_json_are_read_alike(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("format: 1\nname: mine\nbase: spu-2024\nfields: {mul_share: true}\n")
    assert mpc.load_stack(path) == mpc.load_stack(written(tmp_path, fields={"mul_share": True}))


def test_everything_that_can_be_priced_is_in_the_documentation() -> None:
    module = importlib.import_module("aero.mpc.described_stacks")
    for name in (*_core.priced_operation_names(), *_core.price_fields()):
        assert name in str(module.__doc__)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"format": 2}, "format must be 1, got 2"),
        ({"name": ""}, "name must be a text, got ''"),
        ({"name": "spu-2024"}, "name must not be that of a stack, got 'spu-2024'"),
        ({"base": "spu"}, 'stack must be "spu-2024", .*, got "spu"'),
        ({"base": None}, "base must be a text, got None"),
        ({"price": {}}, "has no entry 'price'; did you mean 'prices'"),
        ({"fields": [1]}, "fields must be a mapping, got list"),
        ({"fields": {"exp_squaring": 5}}, 'no field "exp_squaring"; did you mean "exp_squarings"'),
        ({"fields": {"exp_squarings": 18}}, "must be an integer from 1 to 17, got 18"),
        ({"fields": {"exp_squarings": None}}, "fields.exp_squarings must be a bool, a number or"),
        ({"prices": {"gelu": {"flights": 1}}}, "source must be a text, got None"),
        (
            {"prices": {"gel": {"flights": 1}}, "source": "x"},
            'prices has no operation "gel"; did you mean "gelu"',
        ),
        (
            {"prices": {"gelu": {"flight": 1}}, "source": "x"},
            'prices.gelu has no field "flight"; did you mean "flights"',
        ),
        (
            {"prices": {"gelu": {"bytes_factor": -1}}, "source": "x"},
            "prices.gelu.bytes_factor must be a number from 0 to 1000.*, got -1",
        ),
        (
            {"prices": {"gelu": {"bytes_factor": "half"}}, "source": "x"},
            "prices.gelu.bytes_factor must be a number, got 'half'",
        ),
        (
            {"prices": {"gelu": {"bytes_factor": 1, "flights": 1}}, "source": "x"},
            "either bytes_factor and flights_factor",
        ),
        ({"prices": {"gelu": 3}, "source": "x"}, "prices.gelu must be a mapping of prices, got 3"),
    ],
)
def test_bad_descriptions_name_the_entry(
    tmp_path: Path, entries: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"stack description mine.json.*{message}"):
        mpc.load_stack(written(tmp_path, **entries))


def test_files_that_are_no_descriptions_say_so(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    with pytest.raises(ValueError, match=r"mine.yaml: cannot be read"):
        mpc.load_stack(path)
    path.write_text("- a list")
    with pytest.raises(ValueError, match=r"mine.yaml: must be a mapping, got list"):
        mpc.load_stack(path)
    path.write_text("{")
    with pytest.raises(ValueError, match=r"mine.yaml: is not valid"):
        mpc.load_stack(path)
