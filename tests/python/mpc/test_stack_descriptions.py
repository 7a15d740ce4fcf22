"""Stacks described in files: their changes, and how bad ones are refused."""

from __future__ import annotations

import html
import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from tests.python.refusals import assert_refused

from aero import _core, mpc
from aero.mpc.described_stacks import described_stack_names, load_stack, stack_description
from aero.mpc.optimization_tables import optimization_table
from aero.report import to_html, to_text

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
        assert layer.rounds == base.rounds
    assert ours.by_kind["embed"] == bumblebee.by_kind["embed"]
    assert any("quotes" in note for note in ours.unchecked)
    assert "2508.19525" in ours.description.source


# Bytes that SIGMA's code counted at one party (sent and received), in all and of softmax, GELU and
# LayerNorm; github.com/ponyyuhan/SUF_new, results/resume_*_2026-01-27. Its networks end with the
# last layer.
SIGMA_RUNS = [
    ("gpt2", 128, True, (885146258, 140990976, 171048960, 119510928)),
    ("gpt2", 256, True, (2129103506, 559987200, 342097920, 239021712)),
    ("gpt2", 512, True, (5693055122, 2231599104, 684195840, 478043280)),
    ("bert-base", 128, False, (1062390674, 278148096, 171048960, 119510928)),
    ("bert-base", 512, False, (8552955026, 4446314496, 684195840, 478043280)),
    ("bert-large", 128, False, (2832800546, 741728256, 456130560, 318454560)),
]
# Of the same network: rounds at T = 64, 128 and 256.
SIGMA_ROUNDS = {64: 1104, 128: 1128, 256: 1152}


@pytest.mark.parametrize(("network", "length", "causal", "counted"), SIGMA_RUNS)
def test_sigmas_quoted_prices_give_what_its_code_counted(
    network: str, length: int, causal: bool, counted: tuple[int, ...]
) -> None:
    sizes = {"num_layers": 24, "num_heads": 16, "width": 1024, "hidden_width": 4096}
    report = mpc.simulate(
        "SM+LN+G",
        context_length=length,
        stack="sigma",
        causal_skip=causal,
        **(sizes if network == "bert-large" else {}),
    )
    inside = [one for one in report.operations if one.layer is not None]

    def bytes_of(*kinds: str) -> float:
        return sum(one.cost.comm_bytes for one in inside if one.kind in kinds)

    total, softmax, gelu, layernorm = counted
    assert bytes_of("act") == gelu
    # Half a byte of rounding per operation; the price per element has nine digits.
    assert bytes_of("layernorm") == pytest.approx(layernorm, abs=len(inside))
    # Per row it is the price at T = 128 under a mask: elsewhere rows cost up to 36 bytes less or 11
    # more, of 117.75 T.
    assert bytes_of("softmax") == pytest.approx(softmax, rel=3e-3)
    products = bytes_of("qkv/proj", "QK", "PV", "ffn")
    # Two bytes are not an operation's: the parties meet before they start.
    assert products == pytest.approx(total - softmax - gelu - layernorm - 2, abs=len(inside))


def test_sigmas_quoted_rounds_are_those_of_its_code() -> None:
    for length, rounds in SIGMA_ROUNDS.items():
        report = mpc.simulate("SM+LN+G", context_length=length, stack="sigma")
        assert sum(layer.rounds for layer in report.by_layer) == rounds


# Llama 2 7B's layers: in them the paper's protocols have a price for everything.
LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "intermediate_size": 11008, "max_position_embeddings": 4096,
}  # fmt: skip


@pytest.mark.parametrize("stack", described_stack_names())
@pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh", "relu2", "label", "relu"])
def test_every_part_of_a_layer_has_a_price_of_the_named_stack(stack: str, activation: str) -> None:
    given = "SM+LN+G" if activation == "label" else {**LLAMA, "hidden_act": activation}
    report = mpc.simulate(given, stack=stack)
    outside = ("embed", "argmax") if stack == "sigma" else ("embed", "argmax", "setup")
    assert report.base_bytes == sum(report.by_kind[kind].comm_bytes for kind in outside)


def test_sigmas_assumed_prices_are_what_its_code_opens() -> None:
    def lookup(ring: int, entries: int) -> float:  # fss/gpu_gelu.cu, both ways
        return (1 + ring - 2 * 12 + 7 + 2 + entries + 1 + 2 * ring) / 4

    # GELU of GPT-2 and, in a ring of 37 bits, of BERT-tiny, as counted.
    assert lookup(50, 8) * 12 * 128 * 3072 == 171048960 and lookup(37, 8) * 2 * 128 * 512 == 3473408
    assert mpc.operation_cost("silu", 100, stack="sigma").comm_bytes == 100 * lookup(50, 10)
    layernorm, rmsnorm = (
        mpc.operation_cost(name, 64, 768, stack="sigma").comm_bytes
        for name in ("layernorm", "rmsnorm")
    )
    assert layernorm - rmsnorm - 6 == pytest.approx(64 * 90 / 4, abs=0.1)  # the means
    assert mpc.operation_cost("rotary", 100, stack="sigma").comm_bytes == 100 * 51 / 4


def test_a_total_says_how_much_of_it_another_stack_makes(tmp_path: Path) -> None:
    path = written(tmp_path, prices={"gelu": {"bytes_per_output": 10}}, source="a paper")
    report, own = (mpc.simulate("SM+LN+G", stack=stack) for stack in (path, "spu-2024"))
    left = report.comm_bytes - report.by_kind["act"].comm_bytes
    assert report.base_bytes == left and own.base_bytes == 0
    lines = to_text(report).splitlines()
    total = next(i for i, line in enumerate(lines) if line.startswith("total"))
    words = f"{left / 1e9:,.3f} of {report.comm_bytes / 1e9:,.3f} GB are spu-2024's"
    assert lines[total + 1] == words
    assert html.escape(words) in to_html(report) and words not in to_text(own)
    compared = own.compare(report)
    assert f"second: {words}" in to_text(compared)
    assert html.escape(f"second: {words}") in to_html(compared)
    # A fifth may pass: Llama's layers are SIGMA's own.
    assert "openbumblebee's" not in to_text(mpc.simulate(LLAMA, stack="sigma"))


def test_the_keys_of_a_dealer_are_told_of_the_networks_that_were_run_alone() -> None:
    def said(given: Any, **fields: Any) -> str:
        return " ".join(mpc.simulate(given, stack="sigma", **fields).notes)

    # github.com/ponyyuhan/SUF_new, key_bytes: 14.292 and 86.687 GiB, and 48,799,535,104 B.
    assert "15.3 GB" in said("SM+LN+G") and "93.1 GB" in said("gpt2", context_length=512)
    large = {"model_type": "bert", "vocab_size": 30522, "hidden_size": 1024,
             "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096,
             "max_position_embeddings": 512}  # fmt: skip
    assert "48.8 GB" in said(large)
    others = said("SM+LN+R"), said("gpt2", context_length=64), said("gpt2-medium"), said(LLAMA)
    assert all("keys" in one and "not known" in one and " GB" not in one for one in others)
    assert "keys" not in " ".join(mpc.simulate("SM+LN+G", stack="blb").notes)
    swept = " ".join(mpc.sweep("SM+LN+G", stacks=["sigma"], context_length=[64, 128]).notes)
    assert "15.3 GB" in swept and "not known" in swept
    resized = mpc.sweep("SM+LN+G", stacks=["sigma"], num_layers=[6, 12])
    assert "15.3 GB" not in " ".join(resized.notes)
    assert "GB" not in mpc.simulate("SM", stack="sigma").trust


def test_the_report_names_what_a_description_has_no_price_for() -> None:
    notes = mpc.simulate("SM+LN+G", stack="sigma").unchecked
    assert any(note.startswith("embed, argmax: the stack's description") for note in notes)
    assert not any("segment GELU" in note for note in mpc.simulate("SM", stack="sigma").unchecked)
    assert not any("no price" in note for note in mpc.simulate("SM", stack="spu-2024").unchecked)


def test_a_description_works_wherever_a_stack_does(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        prices={"gelu": {"bytes_per_output": 10}},
        source="a paper",
        fields={"setup": False},
    )
    report = mpc.simulate("SM+LN+G", model="tiny", stack=path)
    gelu = report.by_kind["act"]
    assert mpc.operation_cost("gelu", 50, stack=path).comm_bytes == 500
    assert mpc.operation_cost("gelu", 50, stack=load_stack(path)).ots == 0
    assert mpc.operation_cost("softmax", 4, 4, stack=str(path)) == mpc.operation_cost(
        "softmax", 4, 4
    )
    assert report.latency().by_kind["act"].seconds == pytest.approx(gelu.comm_bytes * 4.8e-9)
    assert report.latency().schedule().makespan_ns > 0
    assert report.compare(mpc.simulate("SM+LN+G", model="tiny")).rows()[-1]["second_bytes"] > (
        report.comm_bytes
    )
    (row,) = mpc.sweep(["SM+LN+G"], model="tiny", stacks=[path], networks=["lan-1gbps"]).rows
    assert row.cost == report.total
    assert row.values["stack"] == "mine"
    generated = mpc.simulate_generation("SM+LN+G", model="tiny", stack=path, new_tokens=2)
    assert generated.by_kind["act"].comm_bytes == gelu.comm_bytes * 129 / 128
    table = optimization_table("SM+LN+G", model="tiny", sizes=[(128, None)], stack=str(path))
    assert table.cumulative[0].comm_bytes == (report.comm_bytes,)


def test_every_priced_operation_can_be_asked_for_alone(tmp_path: Path) -> None:
    sizes = {
        "setup": (),
        "embedding": (4, 50, 8),
        "weight_product": (4, 8, 8),
        "head_product": (2, 4, 4, 4),
        "truncation": (9,),
        "softmax": (4, 4),
        "layernorm": (4, 8),
        "gelu": (9,),
        "relu": (9,),
        "argmax": (50,),
        "rmsnorm": (4, 8),
    }
    sizes |= {name: (9,) for name in _core.quotable_names() if name not in sizes}
    assert sorted(sizes) == sorted(_core.quotable_names())
    path = written(
        tmp_path, prices={name: {"bytes_per_call": 77} for name in sizes}, source="a paper"
    )
    for name, one in sizes.items():
        assert mpc.operation_cost(name, *one, stack=path).comm_bytes == 77
        assert mpc.operation_cost(name, *one).comm_bytes != 77


def test_every_shipped_description_is_valid_and_says_where_it_is_from() -> None:
    for name in described_stack_names():
        description = stack_description(name)
        assert description.name == name
        assert description.source
        assert mpc.simulate("SM+LN+G", stack=name).stack == name


def test_fields_and_prices_are_those_of_the_file(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        fields={"exp_squarings": 6},
        prices={"softmax": {"bytes_per_row": 7, "bytes_per_output": 1000, "rounds": 9}},
        source="a paper",
    )
    report = mpc.simulate("SM", model="tiny", context_length=4, stack=path)
    assert report.stack == "mine"
    assert report.stack_fields["exp_squarings"] == 6
    assert report.changed_fields() == {}
    softmax = report.by_kind["softmax"]
    assert softmax.comm_bytes == 2 * (8 * 7 + 8 * 4 * 1000)  # two layers of 2 heads x 4 rows
    assert (softmax.rounds, softmax.ots) == (18, 0)
    changed = mpc.simulate("SM", model="tiny", stack=str(path), exp_squarings=7)
    assert changed.changed_fields() == {"exp_squarings": 7}
    again = mpc.simulate(report.spec, stack=load_stack(path))
    assert again == report


def test_yaml_and_json_are_read_alike(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("format: 1\nname: mine\nbase: spu-2024\nfields: {mul_share: true}\n")
    stack = load_stack(path)
    assert stack == load_stack(written(tmp_path, fields={"mul_share": True}))
    assert stack == load_stack(written(tmp_path, fields={"mul_share": True}, format=1.0))


def test_everything_that_can_be_priced_is_in_the_documentation() -> None:
    module = importlib.import_module("aero.mpc.described_stacks")
    for name in (*_core.quotable_names(), *_core.price_fields()):
        assert name in str(module.__doc__)


def of_gelu(**prices: Any) -> dict[str, Any]:
    return {"prices": {"gelu": prices}, "source": "x"}


@pytest.mark.parametrize(
    ("entries", "named"),
    [
        ({"format": 2}, ("format", "1", "got 2")),
        ({"format": None}, ("format", "1", "got None")),
        ({"name": ""}, ("name", "a text", "got ''")),
        ({"name": " "}, ("name", "a text", "got ' '")),
        ({"name": "spu-2024"}, ("name", "not be that of a stack", "got 'spu-2024'")),
        ({"name": "aero-optimized"}, ("name", "not be that of a stack", "got 'aero-optimized'")),
        ({"base": "spu"}, ("stack", '"spu-2024"', 'got "spu"')),
        ({"base": None}, ("base", "a text", "got None")),
        ({"source": 3}, ("source", "a text", "got 3")),
        ({"price": {}}, ("'price'", "did you mean 'prices'")),
        ({"keys": [{"networks": ["gpt2"]}]}, ("keys", "'num_layers'", "got none")),
        ({"fields": [1]}, ("fields", "a mapping", "got list")),
        ({"fields": {"exp_squaring": 5}}, ('"exp_squaring"', 'did you mean "exp_squarings"')),
        ({"fields": {"exp_squarings": 18}}, ("exp_squarings", "an integer from 1 to 17", "got 18")),
        ({"fields": {"exp_squarings": 0}}, ("exp_squarings", "an integer from 1 to 17", "got 0")),
        ({"fields": {"exp_squarings": None}}, ("fields.exp_squarings", "a number or", "got None")),
        ({"fields": {"exp_squarings": [5]}}, ("fields.exp_squarings", "a number or", "got list")),
        ({"prices": {"gelu": {"rounds": 1}}}, ("source", "a text", "got None")),
        ({"prices": {"gel": {"rounds": 1}}, "source": "x"}, ('"gel"', 'did you mean "gelu"')),
        (of_gelu(round=1), ('prices.gelu has no field "round"', 'did you mean "rounds"')),
        (of_gelu(bytes_factor=-1), ("gelu.bytes_factor", "a number from 0 to 1000", "got -1")),
        (
            {"prices": {"softmax": {"rounds_per_level": -2}}, "source": "x"},
            ("prices.softmax.rounds_per_level", "a number from 0 to 1e+06", "got -2"),
        ),
        (of_gelu(bytes_factor="half"), ("prices.gelu.bytes_factor", "a number", "got 'half'")),
        (of_gelu(rounds=True), ("prices.gelu.rounds", "a number", "got True")),
        (of_gelu(bytes_factor=1, rounds=1), ("either bytes_factor and rounds_factor",)),
        (of_gelu(), ("prices.gelu", "a mapping of prices", "got {}")),
        ({"prices": {"gelu": 3}, "source": "x"}, ("prices.gelu", "a mapping of prices", "got 3")),
    ],
)
def test_bad_descriptions_name_the_entry(
    tmp_path: Path, entries: dict[str, Any], named: tuple[str, ...]
) -> None:
    path = written(tmp_path, **entries)
    assert_refused(lambda: load_stack(path), "stack description mine.json", *named)


@pytest.mark.parametrize(
    ("content", "named"),
    [(None, "cannot be read"), ("- a list", "a mapping, got a list"), ("{", "valid YAML")],
)
def test_files_that_are_no_descriptions_say_so(
    tmp_path: Path, content: str | None, named: str
) -> None:
    path = tmp_path / "mine.yaml"
    if content is not None:
        path.write_text(content)
    assert_refused(lambda: load_stack(path), "mine.yaml", named)
