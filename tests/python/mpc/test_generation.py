"""`simulate_generation`: prompts, then one position at a time."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.python.refusals import assert_refused

from aero import mpc
from aero.mpc.cost import Cost
from aero.mpc.described_stacks import described_stack_names
from aero.mpc.simulation import optimized_stack_names
from aero.report import to_text


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(1, 5),
    st.integers(1, 70),
    st.sampled_from(["argmax", "client"]),
    st.sampled_from([*mpc.stack_names(), *optimized_stack_names(), *described_stack_names()]),
    st.sampled_from(["SM", "SM+LN+G", "SOTA:SM+ScFuFFN", "EReg(SM(t)+R)"]),
)
def test_tokens_parts_and_reports_add_up_exactly(
    new_tokens: int, batch: int, length: int, sampling: Any, stack: str, label: str
) -> None:
    report = mpc.simulate_generation(
        label,
        new_tokens=new_tokens,
        batch=batch,
        sampling=sampling,
        model="tiny",
        context_length=length,
        stack=stack,
    )
    assert len(report.per_token) == new_tokens
    for name, value in report.total.to_dict().items():
        assert sum(cost.to_dict()[name] for cost in report.per_token) == value
        assert sum(cost.to_dict()[name] for cost in report.by_kind.values()) == value
    for token, cost in enumerate(report.per_token):
        assert report.token_report(token).total == cost
    assert report.token_report(0) == report.prefill
    assert ("argmax" in report.by_kind) == (sampling == "argmax")
    assert json.loads(json.dumps(report.to_dict()))["comm_bytes"] == report.comm_bytes


def test_a_token_for_the_client_is_chosen_where_a_stack_counts_no_argmax() -> None:
    with_argmax, without = (
        mpc.simulate_generation("SM", new_tokens=2, model="tiny", stack="spu-2024", argmax=counted)
        for counted in (True, False)
    )
    assert without.by_kind["argmax"] == with_argmax.by_kind["argmax"]
    assert without.by_kind["argmax"].comm_bytes > 0
    assert without.by_kind["reveal"] == with_argmax.by_kind["reveal"]


def test_the_cache_grows_by_one_key_per_token() -> None:
    report = mpc.simulate_generation("SM", new_tokens=4, model="tiny", context_length=9)
    shapes = [
        next(op.shape for op in report.token_report(token).operations if op.kind == "softmax")
        for token in range(4)
    ]
    assert shapes == ["18x9", "2x10", "2x11", "2x12"]


def test_the_set_up_is_paid_once() -> None:
    report = mpc.simulate_generation("SM", new_tokens=3, model="tiny")
    assert "setup" in report.prefill.by_kind
    assert "setup" not in report.token_report(1).by_kind
    assert report.by_kind["setup"] == report.prefill.by_kind["setup"]


def test_opening_logits_is_eight_bytes_each_from_the_server() -> None:
    report = mpc.simulate_generation("SM", new_tokens=1, batch=3, sampling="client", model="tiny")
    assert report.by_kind["reveal"].to_dict()["server_bytes"] == 8 * 3 * 256
    assert report.by_kind["reveal"].client_bytes == 0
    assert report.by_kind["reveal"].rounds == 1


def test_more_tokens_and_larger_batches_are_never_cheaper() -> None:
    def comm_bytes(new_tokens: int, batch: int) -> float:
        return mpc.simulate_generation(
            "SM+R", new_tokens=new_tokens, batch=batch, model="mini"
        ).comm_bytes

    sizes = [1, 2, 5, 17]
    for batch in (1, 4):
        totals = [comm_bytes(count, batch) for count in sizes]
        assert totals == sorted(totals)
    totals = [comm_bytes(3, batch) for batch in (1, 2, 4, 8)]
    assert totals == sorted(totals)
    # Prompts side by side share ciphertexts and rounds.
    assert totals[-1] < 8 * totals[0]


def test_a_token_halves_where_heads_share_ciphertexts_and_again_where_they_are_filled() -> None:
    def token(**fields: Any) -> dict[str, Cost]:
        report = mpc.simulate_generation(
            "SM+ScFuFFN", new_tokens=2, stack="aero-optimized-generation", **fields
        )
        return report.token_report(1).by_kind

    def megabytes(kinds: dict[str, Cost]) -> float:
        return sum(cost.comm_bytes for cost in kinds.values()) / 1e6

    alone, shared = token(), token(share_ciphertexts=True)
    filled = token(share_ciphertexts=True, fill_ciphertexts=True)
    assert [round(megabytes(kinds)) for kinds in (alone, shared, filled)] == [417, 185, 108]
    # Twelve heads each send a ciphertext each way in both cross terms, or all of them one; the rest
    # of a product is its truncation, 25 bits and an OT for each of twelve heads' 129 scores.
    pair, layers = 184957 + 254358, 12
    truncation = mpc.operation_cost("truncation", 12 * 129).comm_bytes
    assert shared["QK"].comm_bytes == pytest.approx(layers * (2 * pair + truncation), abs=layers)
    assert alone["QK"].comm_bytes == pytest.approx(layers * (24 * pair + truncation), abs=layers)
    # More words of a product are zeros.
    assert shared["QK"].ct_pt_products > alone["QK"].ct_pt_products
    assert shared["softmax"] == alone["softmax"]


def test_the_summary_shows_prompt_tokens_and_parts() -> None:
    report = mpc.simulate_generation("SM+R", new_tokens=5, model="tiny", context_length=7)
    text = to_text(report)
    assert "prompts of 7 tokens" in text
    assert all(kind in text for kind in report.by_kind)
    assert f"{report.rounds:,}" in text


COUNTS = [
    (name, value, ("an integer", f"got {value!r}"))
    for name in ("new_tokens", "batch")
    for value in (True, "3", 1.5)
]


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        *COUNTS,
        ("new_tokens", 0, ("an integer from 1 to 1000000", "got 0")),
        ("batch", 0, ("an integer from 1 to 65536", "got 0")),
        ("sampling", "beam", ('"argmax" or "client"', 'got "beam"')),
        ("stak", "x", ("unknown keyword 'stak'",)),
        ("context_length", 0, ("got 0",)),
    ],
)
def test_bad_arguments_are_named(name: str, value: Any, named: tuple[str, ...]) -> None:
    asked = {"new_tokens": 1, name: value}
    assert_refused(lambda: mpc.simulate_generation("SM", **asked), name, *named)
