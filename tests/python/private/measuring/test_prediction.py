"""The simulator's predictions for the pieces of a private run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparison import predicted
from measured_rows import set_up_row

import aero
from aero import mpc
from aero.architecture import ArchitectureSpec
from aero.mpc.simulation import described_pass, described_spec
from aero.network.files import read_network
from aero.network.numpy_reader import forward
from aero.private.measuring.run_reports import run_report
from aero.private.parties.job import Generated
from aero.private.prediction import (
    likeliest_cost,
    most_sent,
    network_fields,
    predicted_costs,
    predicted_operations,
    set_up_cost,
    total_cost,
)
from aero.private.settings import STACK, PrivateSettings

from ...export.conftest import trained


def described(label: str, exact_gelu: bool = False, **sizes: Any) -> dict[str, Any]:
    spec = ArchitectureSpec.from_label(label, model="tiny", **sizes)
    return {"spec": spec.to_dict(), **described_spec(spec, exact_gelu=exact_gelu)}


def test_a_run_and_a_measurement_expect_the_same_set_up(tmp_path: Path) -> None:
    counts = {"client_bytes": [1.0], "server_bytes": [1.0]}
    (tmp_path / "set-up.json").write_text(json.dumps({"parts": {"set-up": counts}}))
    row = set_up_row(tmp_path)
    assert row is not None
    cost = predicted_costs(described("SM+ScFuFFN"), 8, PrivateSettings())["set-up"]
    predicted = row.predicted_client_bytes, row.predicted_server_bytes
    assert (cost.client_bytes, cost.server_bytes) == predicted
    # Measured between two parties of one thread each: 22.733 MB.
    assert row.predicted_bytes / 1e6 == pytest.approx(22.733, rel=2e-4)


def test_every_thread_sets_up_its_own_oblivious_transfers() -> None:
    one, four = (set_up_cost(PrivateSettings(threads=threads)) for threads in (1, 4))
    keys, more = (mpc.operation_cost("setup", threads=n).comm_bytes for n in (1, 4))
    truncated = mpc.operation_cost("truncation", 3 * 2048, stack=STACK).comm_bytes
    assert four.comm_bytes - one.comm_bytes == pytest.approx(more - keys + truncated, rel=1e-9)


def test_the_exact_gelu_of_an_export_is_priced() -> None:
    settings = PrivateSettings()
    exact, tanh = (
        predicted_costs(described("SM+G", exact), 8, settings) for exact in (True, False)
    )
    elements = 8 * 128
    for cost, kind in ((exact, "erf"), (tanh, "tanh")):
        gelu = mpc.operation_cost("gelu", elements, stack=STACK, gelu=kind)
        rest = cost["layer 0"].comm_bytes - gelu.comm_bytes
        # Bytes of an operation are whole ones.
        assert rest == pytest.approx(
            predicted_costs(described("SM"), 8, settings)["layer 0"].comm_bytes, abs=10
        )


def test_the_factor_of_shaped_attention_is_a_weight() -> None:
    settings = PrivateSettings()
    costs = predicted_costs(described("SOTA:SM"), 8, settings)
    fields = settings.stack_fields() | {"secret_shape_factors": False}
    public = mpc.simulate("SOTA:SM", model="tiny", context_length=8, stack=STACK, **fields)
    scores = 2 * 8 * 8
    factor = total_cost(
        mpc.operation_cost(name, scores, stack=STACK) for name in ("product", "truncation")
    )
    more = costs["layer 0"].comm_bytes - public.by_layer[0].comm_bytes
    assert more == pytest.approx(factor.comm_bytes, abs=2)


def test_the_likeliest_tokens_are_priced_instead_of_the_argmax() -> None:
    network = described("SM+ScFuFFN")
    vocabulary = network["spec"]["vocab_size"]
    token, three = (
        predicted_costs(network, 8, PrivateSettings(**policy))
        for policy in ({}, {"reveal": "top-k", "top_k": 3})
    )
    assert token.keys() - three.keys() == {"argmax"} and three.keys() - token.keys() == {"top-k"}
    assert {k: v for k, v in token.items() if k != "argmax"} == {
        k: v for k, v in three.items() if k != "top-k"
    }
    # Three argmaxes, three one-hot rows, three choices, and the first two are taken out.
    row, choice = (
        mpc.operation_cost(name, *sizes, stack=STACK)
        for name, sizes in (("equality", (vocabulary, 64)), ("multiplexer", (vocabulary,)))
    )
    expected = 3 * token["argmax"].comm_bytes + 3 * row.comm_bytes + 5 * choice.comm_bytes
    assert three["top-k"].comm_bytes == pytest.approx(expected, abs=9)  # those of passes are whole
    assert three["top-k"] == likeliest_cost(vocabulary, 3, PrivateSettings())


def test_a_party_may_send_a_share_more_and_more_for_each_round_and_thread() -> None:
    network = described("SM+ScFuFFN")
    for threads in (1, 3):
        settings = PrivateSettings(threads=threads)
        cost = set_up_cost(settings) + total_cost(
            operation.cost
            for length, rows in ((8, 8), (9, 1))
            for operation in predicted_operations(network, length, settings, rows)
        )
        limits = most_sent(network, (8, 1), settings)
        assert limits is not None
        for most, sent in zip(limits, (cost.client_bytes, cost.server_bytes), strict=True):
            room = most - 1.01 * sent
            assert room == pytest.approx(512 * cost.rounds + 2**22 * threads, abs=2)


def priced(operation: Any, name: str, sizes: list[int]) -> None:
    """Its bytes are those of one operation of these sizes, but whole."""
    expected = mpc.operation_cost(name, *sizes, stack=STACK)
    assert operation.cost.comm_bytes == pytest.approx(expected.comm_bytes, abs=2)
    assert operation.cost.rounds == expected.rounds


@pytest.mark.parametrize("label", ["SM+LN+G", "EReg(SM(t)+ScFuFFN_i1)"])
def test_a_pass_over_new_tokens_is_priced_by_its_rows_and_all_keys(label: str) -> None:
    network, stack = described(label), {"stack": STACK, "setup": False}
    operations = network["operations"]
    whole = described_pass(operations, rows=12, keys=12, **stack)
    report = mpc.simulate({"label": label, **network}, context_length=12, **stack)
    assert [one.cost for one in whole] == [one.cost for one in report.operations]
    some = described_pass(operations, rows=3, keys=12, **stack)
    assert [one.name for one in some] == [one.name for one in whole]
    for one in some:
        sizes = [int(number) for number in re.findall(r"\d+", one.shape)]
        if one.kind in ("QK", "PV"):  # heads x rows x inner x columns
            assert sizes[1] == 3 and 12 in sizes[2:]
            priced(one, "head_product", sizes)
        elif one.kind == "softmax":
            assert sizes[1] == 12
            priced(one, "softmax", sizes)
        elif one.kind in ("ffn", "lm head") or one.name == "projection":
            assert sizes[0] == 3
            priced(one, "weight_product", sizes)
        elif one.kind == "argmax":
            assert one.cost == whole[-1].cost


def test_of_the_head_the_last_of_the_new_tokens_alone_is_priced() -> None:
    operations = described("SM+LN+G")["operations"]
    stack = {"stack": STACK, "setup": False, "last_token_head": True}
    head = [
        [one.cost for one in described_pass(operations, rows=rows, keys=12, **stack)][-3:]
        for rows in (1, 3, 12)
    ]
    assert head[0] == head[1] == head[2]


def test_a_last_layer_of_one_row_has_one_row_of_the_new_tokens() -> None:
    operations = described("SM+LN+G")["operations"]
    stack = {"stack": STACK, "setup": False, "last_layer_one_row": True}
    one, some = (described_pass(operations, rows=rows, keys=12, **stack) for rows in (1, 3))
    for single, each in zip(one, some, strict=True):
        if each.layer == 1 and each.name not in ("norm before attention", "queries, keys, values"):
            assert (each.shape, each.cost) == (single.shape, single.cost)
        elif each.layer is not None:
            assert each.cost.ots > single.cost.ots


def test_rotary_positions_are_priced_over_several_new_tokens() -> None:
    spec = ArchitectureSpec.from_label("SM+ScFuFFN", model="pythia-70m", context_length=16)
    operations = described_spec(spec)["operations"]
    found = described_pass(operations, rows=3, keys=12, stack=STACK)
    turned = [one for one in found if one.name.startswith("queries times")]
    # 3 rows of 8 heads, of whose 64 channels a quarter turns, times cos and times sin.
    assert {one.shape for one in turned} == {str(3 * 8 * 16)} and len(turned) == 2 * 6
    for one in turned:
        priced(one, "truncation", [3 * 8 * 16])


def test_operations_stand_in_an_order_in_which_they_can_run() -> None:
    settings = PrivateSettings(reveal="top-k", top_k=64)
    network = described("SM+ScFuFFN", vocab_size=16)
    operations = predicted_operations(network, 8, settings)
    for index, operation in enumerate(operations):
        assert all(before < index for before in operation.inputs)
    assert operations[-1].shape == "16 of 16"  # no more than there are
    assert operations[-1].inputs == (len(operations) - 2,)


@pytest.mark.parametrize("changes", [{}, {"top_k": 2}])
def test_a_comparison_prices_the_likeliest_tokens(changes: dict[str, int]) -> None:
    spec = described("SM+ScFuFFN")["spec"]
    cell = {"length": 8, "link": "wan-100mbps", "changes": {}, "threads": 1}
    token = predicted(spec, cell)
    best = predicted(spec, {**cell, "changes": {"reveal": "top-k", **changes}})
    one = mpc.operation_cost("argmax", spec["vocab_size"], stack=STACK)
    count = changes.get("top_k", PrivateSettings().top_k)
    more = likeliest_cost(spec["vocab_size"], count, PrivateSettings())
    for name, extra in (
        ("client_bytes", more.client_bytes - one.client_bytes),
        ("server_bytes", more.server_bytes - one.server_bytes),
        ("rounds", more.rounds - one.rounds),
    ):
        found = best[f"predicted_{name}"] - token[f"predicted_{name}"]
        assert found == pytest.approx(extra, abs=9)
    assert best["predicted_seconds"] > token["predicted_seconds"]
    assert best["predicted_parts"].keys() == token["predicted_parts"].keys()


def test_a_report_compares_the_tokens_with_the_plaintext_network(tmp_path: Path) -> None:
    network = read_network(aero.export_weights(trained("SM+ScFuFFN"), tmp_path))
    logits = forward(network, [[5, 6]])[0].astype(np.float32)
    best = int(logits[-1].argmax())
    for token in (best, best ^ 1):
        report = run_report(
            network, [[5, 6]], PrivateSettings(), Generated([token], [logits], [[]])
        )
        assert report.plaintext_tokens == ((best,),)
        assert report.same_tokens == (token == best)
        assert report.passes[0].largest_difference < 1e-5


def test_a_network_says_where_its_gelu_is_exact() -> None:
    assert network_fields(described("SM+G", exact_gelu=True)) == {"gelu": "erf"}
    assert network_fields(described("SM+G")) == {}
