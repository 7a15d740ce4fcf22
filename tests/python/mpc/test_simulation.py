"""`aero.mpc`: sums, graph, arguments and the contents of a report."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.python.refusals import assert_refused

from aero import mpc, paper
from aero.architecture import ArchitectureSpec
from aero.mpc.cost import Cost
from aero.mpc.described_stacks import described_stack_names
from aero.mpc.simulation import cheetah_stack_names, optimized_stack_names
from aero.report import to_text
from aero.report.cost_pages import to_fragment

LABELS = [
    "SM", "SM+LN+G", "SM+LN+R", "SM+G", "SM+LR(layer)", "SM+LR(global)", "SM+WNFFN", "SM+SNFFN(qk)",
    "SM+ScFFN", "SM+ScFuFFN_i1", "EReg(SM(t)+FuFFN)", "SM+FN+R", "SM+FN(scalar)+ScFuFFN",
    "SOTA:SM+ScFFN", "SOTA:SM+LN+R", "SOTA:SM+ScFuFFN_i1", "SM(t:head)+LN+ScFuFFN",
    "SOTA:SM+FN+R",
]  # fmt: skip
STACKS = [*cheetah_stack_names(), *optimized_stack_names(), *described_stack_names()]
FLAGS = [
    "mul_share", "one_bit_product_error", "private_weights", "exp_clip", "batch_heads",
    "extra_score_truncation", "broadcast_reciprocal", "client_one_hot", "last_token_head",
    "last_layer_one_row", "causal_skip", "static_max", "secret_temperature", "argmax",
    "setup", "cheapest_layouts", "share_ciphertexts", "fill_ciphertexts", "pack_triangle",
    "fold_score_scale", "program_steps", "secret_shape_factors",
]  # fmt: skip


@st.composite
def reports(draw: st.DrawFn) -> mpc.CostReport:
    """A random network on a random stack with random measures."""
    heads = draw(st.integers(1, 4))
    fields: dict[str, Any] = {
        "num_layers": draw(st.integers(1, 4)),
        "num_heads": heads,
        "width": heads * draw(st.integers(1, 40)),
        "head_dim": 2 * draw(st.integers(1, 40)),
        "hidden_width": draw(st.integers(1, 300)),
        "rotary_fraction": draw(st.sampled_from([0.0, 1.0])),
    }
    label = draw(st.sampled_from(LABELS))
    fields |= {flag: draw(st.booleans()) for flag in draw(st.sets(st.sampled_from(FLAGS)))}
    if draw(st.booleans()):
        fields["gelu"] = draw(st.sampled_from(["tanh", "segment", "piecewise", "erf", "erfc"]))
        fields["silu"] = draw(st.sampled_from(["tanh", "logistic"]))
        fields["exp_ring_bits"] = draw(st.sampled_from([32, 64]))
        fields["clip_bits"] = draw(st.integers(5, 64))
        fields["comparison_bits"] = draw(st.integers(20, 64))
    if not label.startswith("SOTA"):
        fields["parallel_residual"] = draw(st.booleans())
    return mpc.simulate(
        label,
        context_length=draw(st.integers(1, 300)),
        vocab_size=draw(st.integers(1, 5000)),
        stack=draw(st.sampled_from(STACKS)),
        **fields,
    )


def add(costs: list[Cost]) -> dict[str, float]:
    """Sums by name, in the given order of addition."""
    names = Cost().to_dict()
    return {name: sum(cost.to_dict()[name] for cost in costs) for name in names}


@settings(max_examples=60, deadline=None)
@given(reports())
def test_operations_layers_parts_and_parties_add_up_exactly(report: mpc.CostReport) -> None:
    total = report.total.to_dict()
    operations = [operation.cost for operation in report.operations]
    assert add(operations) == total
    assert add(operations[::-1]) == total
    assert add([*report.by_layer, report.outside_layers]) == total
    assert add(list(report.by_kind.values())) == total
    assert report.client_bytes + report.server_bytes == report.comm_bytes
    for layer, cost in enumerate(report.by_layer):
        inside = [operation.cost for operation in report.operations if operation.layer == layer]
        assert add(inside) == cost.to_dict()
    for kind, cost in report.by_kind.items():
        inside = [operation.cost for operation in report.operations if operation.kind == kind]
        assert add(inside) == cost.to_dict()
    assert all(count >= 0 for cost in operations for count in cost.to_dict().values())


@settings(max_examples=30, deadline=None)
@given(reports())
def test_reports_are_json_and_show_themselves(report: mpc.CostReport) -> None:
    data = json.loads(json.dumps(report.to_dict()))
    assert data["comm_bytes"] == report.comm_bytes
    assert ArchitectureSpec.from_dict(data["spec"]) == report.spec
    again = mpc.simulate(report.spec, stack=data["stack"], **data["stack_fields"])
    assert again == report
    text = to_text(report)
    assert report.spec.label in text
    assert f"{report.rounds:,}" in text
    assert all(kind in text for kind in report.by_kind)
    assert all(note in text for note in report.unchecked)


@settings(max_examples=30, deadline=None)
@given(reports())
def test_inputs_come_before_their_operations(report: mpc.CostReport) -> None:
    for index, operation in enumerate(report.operations):
        assert all(0 <= source < index for source in operation.inputs)


def test_a_spec_is_priced_at_its_own_sizes() -> None:
    spec = ArchitectureSpec.from_label("SM+R", model="mini", context_length=48)
    assert mpc.simulate(spec) == mpc.simulate("SM+R", model="mini", context_length=48)
    assert mpc.simulate(spec, context_length=64).spec.context_length == 64
    assert mpc.simulate("SM+R", model="tiny").spec.context_length == 128


def test_keywords_change_the_stack_and_the_network() -> None:
    report = mpc.simulate("SM", exp_squarings=5, num_heads=6, final_norm="layer", threads=1)
    assert report.changed_fields() == {"exp_squarings": 5, "threads": 1}
    assert (report.spec.num_heads, report.spec.head_dim) == (6, 128)
    assert report.spec.final_norm == "layer"
    assert "exp_squarings=5" in to_text(report)


def test_every_field_of_a_stack_can_be_overridden() -> None:
    for stack in STACKS:
        fields = mpc.stack_fields(stack)
        assert mpc.simulate("SM+ScFuFFN", **fields).stack_fields == fields


def test_folded_norms_and_normalized_weights_are_free() -> None:
    plain = mpc.simulate("SM+R").total
    assert mpc.simulate("SM+FN+R").total == plain
    assert mpc.simulate("SM+FN(scalar)+R").total == plain
    linear = mpc.simulate("SM").total
    for label in ("SM+WNFFN(qkvo+ffn)", "SM+SNFFN", "SM+ScFFN"):
        assert mpc.simulate(label).total == linear


def test_a_leaky_relu_costs_one_truncation_more_than_relu() -> None:
    relu = mpc.simulate("SM+R").by_kind["act"]
    leaky = mpc.simulate("SM+LR(global)").by_kind["act"]
    assert leaky.ots - relu.ots == 12 * 128 * 3072
    assert leaky.rounds - relu.rounds == 12 * 2
    assert mpc.simulate("SM+LR(layer)").by_kind["act"] == leaky


def test_a_parallel_block_spends_what_a_sequential_one_does() -> None:
    sequential = mpc.simulate("SM+LN+R")
    parallel = mpc.simulate("SM+LN+R", parallel_residual=True)
    assert parallel.total == sequential.total


def test_pythia_is_priced_with_its_vocabulary() -> None:
    report = mpc.simulate("SM+LN+G", model="pythia-70m")
    assert (report.spec.vocab_size, len(report.by_layer)) == (50304, 6)
    learned = mpc.simulate("SM+LN+G", model="pythia-70m", rotary_fraction=0.0)
    # Queries and keys times cos and sin: 16 of 64 channels of 8 heads at 128 positions.
    rotated = mpc.operation_cost("truncation", 8 * 128 * 16).comm_bytes
    more = report.comm_bytes - learned.comm_bytes
    assert more == pytest.approx(6 * 4 * rotated, abs=6 * 4)
    assert report.rounds - learned.rounds == 6 * 4 * 2


def priced(**fields: Any) -> Callable[[], Any]:
    return partial(mpc.simulate, fields.pop("given", "SM+R"), **fields)


OF_TOKENS, OF_SQUARINGS = "context_length", ("exp_squarings", "an integer from 1 to 17")
OPERATION = partial(partial, mpc.operation_cost)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (priced(num_head=6), ("'num_head'", "did you mean 'num_heads'")),
        (priced(exp_squaring=5), ("'exp_squaring'", "did you mean 'exp_squarings'")),
        (priced(stacks="spu-2024"), ("'stacks'", "did you mean 'stack'")),
        (priced(stack="spu"), ("stack", '"blb" or "sigma", or the path of a .yaml', 'got "spu"')),
        (priced(context_length=0), (OF_TOKENS, "an integer from 1 to", "got 0")),
        (priced(context_length=2**70), (OF_TOKENS,)),
        (priced(num_heads=5), ("num_heads", "head_dim")),
        (priced(vocab_size=-1), ("vocab_size", "an integer from 1 to", "got -1")),
        (priced(exp_squarings=0), (*OF_SQUARINGS, "got 0")),
        (priced(exp_squarings=2.5), (*OF_SQUARINGS, "got 2.5")),
        (priced(exp_squarings=2**70), OF_SQUARINGS),
        (priced(clip_bits=65), ("clip_bits", "an integer from 5 to 64", "got 65")),
        (priced(threads=True), ("threads", "an integer from 1 to 4096", "got True")),
        (priced(mul_share=1), ("mul_share", "True or False", "got 1")),
        (priced(mul_share=None), ("mul_share", "a bool, a number or a str", "got NoneType")),
        (priced(gelu="exact"), ("gelu", '"segment", "piecewise", "erf" or "erfc"', 'got "exact"')),
        (priced(silu="exact"), ("silu", '"tanh" or "logistic"', 'got "exact"')),
        (priced(absorb_ffn=True), ("absorb_ffn", "False unless every FFN is one fused")),
        (priced(model="gpt3"), ("model",)),
        (priced(context_length=2**24), ("cannot be counted exactly",)),
        (priced(given=3), ("label_or_model", "a label, an ArchitectureSpec", "got int")),
        (priced(given=ArchitectureSpec.from_label("SM"), model="tiny"), ("model", "for labels")),
        *(
            (priced(stack="spu-aby3", **{name: value}), (f"simulate: {name} must be left alone",))
            for name, value in (("mul_share", True), ("clip_bits", 50), ("gelu", "segment"))
        ),
        (OPERATION("sigmoid", 1), ("name", '"argmax"', 'got "sigmoid"')),
        (OPERATION("relu"), ("relu", "1 size(s)", "got 0")),
        (OPERATION("relu", 0), ("sizes of relu", "integers from 1 to 2^40", "got 0")),
        (OPERATION("softmax", 4), ("softmax", "2 size(s)", "got 1")),
        (OPERATION("matmul", 2**40, 2**40, 1), ("more than 2^53 elements",)),
        (OPERATION("top_k", 2, 4, 5), ("top_k", "from 1 to all", "got 5 of 4")),
        (priced(given="pythia-70m", model="tiny"), ("model", "pythia-70m", "got tiny")),
        (partial(mpc.sweep, "pythia-70m", model="tiny"), ("model", "pythia-70m", "got tiny")),
        (
            partial(mpc.sweep, [ArchitectureSpec.from_label("SM")], model="tiny"),
            ("model", "for labels", "got tiny"),
        ),
        (partial(paper.compare_with_paper, [3]), ("tables", "4, 5, 6, 7")),
    ],
)
def test_bad_arguments_are_named_with_what_they_may_be(
    call: Callable[[], Any], named: tuple[str, ...]
) -> None:
    assert_refused(call, *named)


def test_html_has_every_part_and_escapes_labels() -> None:
    report = mpc.simulate("SM+ScFuFFN")
    page = to_fragment(report)
    assert all(page.count(f"<td>{kind}</td>") == 1 for kind in report.by_kind)


def test_a_part_that_one_network_lacks_counts_as_nothing() -> None:
    first, second = (mpc.simulate(label, model="tiny") for label in ("SM+LN+G", "SM"))
    for a, b in ((first, second), (second, first)):
        rows = {row.pop("part"): row for row in a.compare(b).rows("lan-1gbps")}
        times = a.latency("lan-1gbps"), b.latency("lan-1gbps")
        assert rows.keys() == {*a.by_kind, *b.by_kind, "total"}
        for kind, row in rows.items():
            expected: dict[str, float | None] = {}
            for name, report, timed in zip(("first", "second"), (a, b), times, strict=True):
                cost, duration = report.by_kind.get(kind), timed.by_kind.get(kind)
                if kind == "total":
                    cost, duration = report.total, timed.total
                expected[f"{name}_bytes"] = cost.comm_bytes if cost else 0
                expected[f"{name}_rounds"] = cost.rounds if cost else 0
                expected[f"{name}_seconds"] = duration.seconds if duration else 0
            divisor = expected["second_bytes"]
            expected["ratio"] = expected["first_bytes"] / divisor if divisor else None
            assert row == expected
    lacking = [row for row in rows.values() if row["first_bytes"] == 0]
    assert lacking and all(row["first_rounds"] == row["first_seconds"] == 0 for row in lacking)
