"""`aero.architecture`: the value's Python side, and the paper's tables against its counts."""

from __future__ import annotations

import copy
import importlib.resources
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.python.refusals import assert_refused

from aero.architecture import ArchitectureSpec

# --- random labels and specs ------------------------------------------------------------

_FFNS = ["", "+G", "+R", "+LR(layer)", "+LR(global)", "+FuFFN", "+ScFFN", "+ScFuFFN"] + [
    f"+{norm}FFN{layers}"
    for norm in ("WN", "SN")
    for layers in ("", "(qk)", "(qk+ffn)", "(qkv+ffn)", "(qkvo+ffn)")
]


@st.composite
def labels(draw: st.DrawFn, max_pruned: int = 2) -> str:
    net = (
        "SM"
        + draw(st.sampled_from(["", "(t)", "(t:head)", "(t:scalar)"]))
        + draw(st.sampled_from(["", "+LN", "+FN", "+FN(scalar)"]))
        + draw(st.sampled_from(_FFNS))
    )
    shaped = draw(st.sampled_from(["", "SOTA:"]))
    if not shaped:  # which takes no convolution
        net += draw(st.sampled_from(["", "+C4", "+D8", "+S2"]))
    pruned = draw(st.integers(0, max_pruned))
    net += f"_i{pruned}" if pruned else ""
    return shaped + (f"EReg({net})" if draw(st.booleans()) else net)


@st.composite
def specs(draw: st.DrawFn) -> ArchitectureSpec:
    num_heads = draw(st.integers(1, 9))
    return ArchitectureSpec.from_label(
        draw(labels()),
        model=draw(st.sampled_from(ArchitectureSpec.preset_names())),
        num_layers=draw(st.integers(2, 40)),
        num_heads=num_heads,
        head_dim=draw(st.sampled_from([8, 16, 64, 80])),
        width=num_heads * draw(st.integers(1, 200)),
        hidden_width=draw(st.integers(1, 5000)),
        context_length=draw(st.integers(1, 4096)),
        vocab_size=draw(st.integers(1, 200_000)),
        tied_embeddings=draw(st.booleans()),
        rotary_fraction=draw(st.sampled_from([0.0, 0.25, 0.5, 1.0, 0.26])),
        final_norm=draw(st.sampled_from(["none", "layer", "foldable"])),
    )


@given(labels(max_pruned=12))
def test_labels_print_as_they_were_read(label: str) -> None:
    assert ArchitectureSpec.from_label(label).label == label
    assert ArchitectureSpec.from_label(label.lower()).label == label
    assert ArchitectureSpec.from_label(label.upper()).label == label


@given(specs())
def test_specs_survive_every_way_of_writing_them_down(spec: ArchitectureSpec) -> None:
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert copy.deepcopy(spec) == spec
    assert ArchitectureSpec.from_json(spec.to_json()) == spec
    assert ArchitectureSpec.from_dict(spec.to_dict()) == spec
    assert ArchitectureSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    assert eval(repr(spec), {"ArchitectureSpec": ArchitectureSpec}) == spec
    assert spec.replace() == spec
    assert spec.replace(**spec.to_dict()) == spec


def test_a_spec_from_before_there_were_convolutions_has_none() -> None:
    spec = ArchitectureSpec.from_label("SM+LN+G", model="mini")
    fields = spec.to_dict()
    del fields["convolution"], fields["convolution_taps"]
    assert ArchitectureSpec.from_dict(fields) == spec
    assert "convolution" in spec.to_dict()


def spec(label: str, **arguments: Any) -> Callable[[], ArchitectureSpec]:
    return lambda: ArchitectureSpec.from_label(label, **arguments)


def replaced(label: str = "SM", **fields: Any) -> Callable[[], ArchitectureSpec]:
    return lambda: ArchitectureSpec.from_label(label).replace(**fields)


TAPS = "convolution_taps"


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (replaced("SOTA:SM+C4"), ("convolution", '"none" for shaped attention')),
        (replaced(convolution="full"), (TAPS, "an integer from 2 to 8")),
        (replaced(convolution_taps=4), (TAPS, '1 where convolution is "none"')),
        (replaced("SM+C4", convolution_taps=9), (TAPS, "an integer from 1 to 8", "got 9")),
        (replaced("SM+C4", convolution="wide"), ("convolution", "depthwise", 'got "wide"')),
        (replaced(num_head=6), ('no field "num_head"', 'did you mean "num_heads"?')),
        (replaced(num_heads=0), ("num_heads", "an integer from 1 to 65536", "got 0")),
        (replaced(num_heads=7), ("num_heads", "a divisor of width = 768 unless head_dim is given")),
        (replaced(width=True), ("width", "an integer from 1 to 16777216", "got True")),
        (replaced(width=10**30), ("width", "an integer from 1 to 16777216")),
        (replaced(width=None), ("width", "a bool, an int, a float or a str", "got NoneType")),
        (replaced(tied_embeddings=1), ("tied_embeddings", "True or False", "got 1")),
        (replaced(ffn="gelo"), ("ffn", 'did you mean "gelu"?', "gelo")),
        (replaced(num_pruned_ffns=13), ("num_pruned_ffns", "an integer from 0 to num_layers = 12")),
        (replaced(rotary_fraction=float("nan")), ("rotary_fraction", "a number from 0 to 1")),
        (spec("SM+LR"), ('position 6 (after "SM+LR")', '"(layer)" or "(global)"', "got the end")),
        (spec("SM+ScFuFNN"), ('nearest valid label: "SM+ScFuFFN"',)),
        (spec("openai/GPT2"), ("which names a model", "the folder with its config.json")),
        (spec("meta-llama/Llama-3-8B"), ("which names a model", "the folder with its config.json")),
        (spec("SmolLM2-135M"), ("which names a model", "the folder with its config.json")),
        (spec("SM_i13"), ("num_pruned_ffns", "from 0 to num_layers = 12", "got 13")),
        (
            spec("SM", model="gpt3"),
            ("model", '"gpt2-18l", "gpt2-medium"', '"mini" or "tiny"', "gpt3"),
        ),
        (spec("SM", modell="gpt2"), ('no field "modell"',)),
        (spec("SM", norm="layer"), ("norm", "is stated by the label")),
    ],
)
def test_what_no_network_has_is_named(
    call: Callable[[], ArchitectureSpec], named: tuple[str, ...]
) -> None:
    assert_refused(call, *named)


def test_a_network_loses_its_taps_with_its_convolution() -> None:
    spec = ArchitectureSpec.from_label("SM+R+C4", model="mini")
    assert spec.replace(convolution="none").label == "SM+R"
    assert spec.replace(convolution="token_shift").label == "SM+R+S4"


@given(specs(), specs())
def test_equal_fields_are_equal_specs_with_equal_hashes(
    first: ArchitectureSpec, second: ArchitectureSpec
) -> None:
    assert (first == second) == (first.to_dict() == second.to_dict())
    moved = first.replace(**second.to_dict())
    assert moved == second
    assert hash(moved) == hash(second)
    assert len({first, moved, second}) == (1 if first == second else 2)


@given(specs(), st.integers(1, 5000))
def test_replace_changes_one_field_and_not_the_original(
    spec: ArchitectureSpec, vocab_size: int
) -> None:
    before = spec.to_dict()
    assert spec.replace(vocab_size=vocab_size).to_dict() == before | {"vocab_size": vocab_size}
    assert spec.to_dict() == before


@given(specs())
def test_the_label_of_a_replaced_spec_is_read_back_to_the_same_choices(
    spec: ArchitectureSpec,
) -> None:
    again = ArchitectureSpec.from_label(spec.label, num_layers=spec.num_layers)
    for name in (
        "norm", "ffn", "normalized_layers", "num_pruned_ffns",
        "temperature", "entropy_regularized", "shaped_attention",
    ):  # fmt: skip
        assert getattr(again, name) == getattr(spec, name)


def test_specs_differ_from_other_things() -> None:
    spec = ArchitectureSpec.from_label("SM")
    assert spec != "SM"
    assert spec != ArchitectureSpec.from_label("SM+G")


def test_fields_are_read_only() -> None:
    spec = ArchitectureSpec.from_label("SM")
    for name in [*spec.to_dict(), "label", "anything"]:
        with pytest.raises(AttributeError):
            setattr(spec, name, 1)


def test_index_types_are_integers() -> None:
    numpy = pytest.importorskip("numpy")
    spec = ArchitectureSpec.from_label("SM")
    assert spec.replace(num_heads=numpy.int64(6)) == spec.replace(num_heads=6)


# --- errors ------------------------------------------------------------


def test_incomplete_or_broken_json_is_an_error() -> None:
    spec = ArchitectureSpec.from_label("SM")
    fields = spec.to_dict()
    del fields["width"]
    for text in (json.dumps(fields), "[1]", "{", json.dumps(spec.to_dict() | {"depth": 3})):
        with pytest.raises(ValueError):
            ArchitectureSpec.from_json(text)


# --- the paper's tables ------------------------------------------------------------

_ROWS: list[dict[str, Any]] = json.loads(
    (importlib.resources.files("aero") / "data" / "paper_tables.json").read_text()
)
_COST_ROWS = [row for row in _ROWS if "flops_ffn" in row]


def _spec_of(row: dict[str, Any]) -> ArchitectureSpec:
    names = ("context_length", "vocab_size", "final_norm")
    sizes = {name: row[name] for name in names}
    return ArchitectureSpec.from_label(row["label"], model=row["model"], **sizes)


def _row_id(row: dict[str, Any]) -> str:
    return f"table{row['table']}-{row['label']}"


def test_the_tables_have_all_their_rows() -> None:
    tables = [row["table"] for row in _ROWS]
    assert {table: tables.count(table) for table in tables} == {
        2: 6, 3: 3, 4: 10, 5: 9, 6: 8, 7: 8, 8: 10, 9: 10,
    }  # fmt: skip
    assert len(_COST_ROWS) == 35


@pytest.mark.parametrize("row", _ROWS, ids=_row_id)
def test_rows_describe_networks_that_exist(row: dict[str, Any]) -> None:
    spec = _spec_of(row)
    assert spec.label == row["label"]
    assert spec.num_layers == row["num_layers"]
    assert (row["perplexity"] is None) == row["diverged"]


def _billions(flops: int) -> str:
    return f"{flops / 1e9:.1f}B"


@pytest.mark.parametrize("row", _COST_ROWS, ids=_row_id)
def test_flops_are_the_papers_to_the_printed_digit(row: dict[str, Any]) -> None:
    flops = _spec_of(row).flops("paper")
    assert _billions(flops.attention) == row["flops_attention"]
    if (row["table"], row["label"]) == (4, "SOTA:SM+ScFuFFN_i1"):
        # 1.2B are left by four pruned FFNs, not by one.
        four_pruned = _spec_of(row).replace(num_pruned_ffns=4)
        assert _billions(flops.ffn) == "1.7B"
        assert _billions(four_pruned.flops().ffn) == row["flops_ffn"]
    elif row["table"] == 7 and row["flops_ffn"] == "7.3B":
        # 7.248B: the paper rounds an eighth of its already rounded 58.0B.
        assert flops.ffn == 7_247_757_312
        assert _billions(8 * flops.ffn) == "58.0B"
        assert 58.0 / 8 == 7.25
    else:
        assert _billions(flops.ffn) == row["flops_ffn"]


@pytest.mark.parametrize("row", _COST_ROWS, ids=_row_id)
def test_nonlinear_operations_are_the_papers(row: dict[str, Any]) -> None:
    assert str(_spec_of(row).nonlinear_operations()) == row["nonlinear_operations"]


def test_counts_have_named_parts() -> None:
    spec = ArchitectureSpec.from_label("SM+LN+G", final_norm="none")
    operations = spec.nonlinear_operations()
    assert (operations.softmax.count, operations.softmax.shape) == (144, (128, 128))
    assert (operations.layernorm.count, operations.layernorm.shape) == (24, (128, 768))
    assert (operations.activation.count, operations.activation.shape) == (12, (128, 3072))
    assert operations.activation_symbol == "G"
    executed = spec.flops("executed")
    assert executed.total == executed.ffn + executed.attention + executed.lm_head
    assert executed.lm_head == 2 * 128 * 768 * 50257
    with pytest.raises(ValueError, match='must be "paper" or "executed"'):
        spec.flops("measured")


@given(specs())
def test_thresholds_are_the_only_parameters_of_training_alone(spec: ArchitectureSpec) -> None:
    thresholds = spec.num_layers * spec.num_heads if spec.entropy_regularized else 0
    assert spec.parameter_count(training=True) == spec.parameter_count() + thresholds
