"""Routers of mixtures: each step against single operations, and quickselect against all orders."""

from __future__ import annotations

import itertools
import statistics
from typing import Any

import pytest
from tests.python.families.configurations import CONFIGURATIONS
from transformers import AutoConfig

from aero import mpc

TOKENS = 16


def compared(order: tuple[int, ...], chosen: int) -> int:
    """How many numbers SPU compares to find the `chosen` largest of one order."""
    numbers, low, high, count = [*order], 0, len(order) - 1, 0
    while high > low + 1:
        first, rest = numbers[low], numbers[low + 1 : high + 1]
        count += len(rest)
        larger = [one for one in rest if one > first]
        numbers[low : high + 1] = [*larger, first, *(one for one in rest if one < first)]
        place = low + len(larger)
        if place >= chosen - 1:
            high = place - 1
        if place <= chosen - 1:
            low = place + 1
    return count + (high == low + 1)


@pytest.mark.parametrize(("columns", "chosen"), [(1, 1), (2, 1), (5, 1), (5, 4), (6, 2), (6, 6)])
def test_a_quickselect_costs_the_mean_over_all_orders(columns: int, chosen: int) -> None:
    mean = statistics.mean(
        compared(order, chosen) for order in itertools.permutations(range(columns))
    )
    # Values and places are shuffled, two words of each party and a counter; a comparison and a
    # word of each party that opens it. ABY3 has four words, one more in three for the places.
    semi2k = mpc.operation_cost("top_k", 3, columns, chosen, stack="spu-semi2k").comm_bytes
    assert semi2k == pytest.approx(3 * (2 * (32 * columns + 10) + (112 + 16) * mean))
    aby3 = mpc.operation_cost("top_k", 3, columns, chosen, stack="spu-aby3").comm_bytes
    assert aby3 == pytest.approx(3 * ((32 + 56) * columns + (108 + 3) * mean))


@pytest.mark.parametrize("stack", ["spu-0.9.5", "spu-semi2k", "spu-aby3", "spu-securenn"])
def test_more_to_choose_from_costs_more(stack: str) -> None:
    sent = [
        mpc.operation_cost("top_k", 4, columns, 2, stack=stack).comm_bytes
        for columns in (2, 3, 4, 8, 9, 16, 64, 200)
    ]
    assert sent == sorted(sent) and sent[0] > 0


def chosen_by(family: str, stack: str, **more: Any) -> list[tuple[str, float]]:
    """Shape and bytes of each step of the choice in the last layer."""
    revealed = {name: more.pop(name) for name in ("revealed_routing",) if name in more}
    config = AutoConfig.for_model(family, **{**CONFIGURATIONS[family], **more})
    report = mpc.simulate(config, context_length=TOKENS, stack=stack, **revealed)
    return [
        (one.shape, one.cost.comm_bytes)
        for one in report.operations
        if one.name == "router's choice" and one.layer == 2
    ]


def priced(*steps: tuple[Any, ...], stack: str) -> list[float]:
    return [mpc.operation_cost(name, *sizes, stack=stack).comm_bytes for name, *sizes in steps]


@pytest.mark.parametrize("stack", ["spu-0.9.5", "spu-semi2k", "spu-aby3", "spu-securenn"])
def test_every_step_of_a_router_has_the_price_of_its_operation(stack: str) -> None:
    choice = ("top_k", TOKENS, 4, 2)
    masked = ("one_hot", TOKENS * 2 * 4)
    product = sum(priced(("product", TOKENS * 2), ("truncation", TOKENS * 2), stack=stack))
    softmax, reciprocal = ("softmax", TOKENS, 4), ("reciprocal", TOKENS)

    def sent(*steps: tuple[Any, ...]) -> list[float]:
        return priced(*steps, stack=stack)

    expected: dict[str, list[float]] = {
        "mixtral": [*sent(softmax, choice, reciprocal), product, *sent(masked)],
        "qwen3_moe": sent(softmax, choice, masked),
        "gpt_oss": sent(choice, ("softmax", TOKENS, 2), masked),
        "deepseek_v2": sent(softmax, choice, masked),
        "deepseek_v3": [
            *sent(("logistic", TOKENS * 4), choice, reciprocal), product, *sent(masked)
        ],
    }  # fmt: skip
    for family, steps in expected.items():
        found = [one for _, one in chosen_by(family, stack, num_experts_per_tok=2)]
        assert found == pytest.approx(steps, abs=1), family  # reports have whole bytes


def test_a_choice_among_groups_is_priced_before_that_of_experts() -> None:
    stack = "spu-semi2k"
    grouped = {"n_group": 2, "topk_group": 1, "num_experts_per_tok": 1, "norm_topk_prob": False}
    found = chosen_by("deepseek_v3", stack, n_routed_experts=8, **grouped)
    assert [shape for shape, _ in found] == [
        "128", "32x4x2", "16x2x1", "32", "128", "16x8x1", "128",
    ]  # fmt: skip
    # The two best of a group are wanted for their sum, without their places.
    values = 2 * TOKENS * (32 * 4 + 10)
    both = mpc.operation_cost("top_k", 2 * TOKENS, 4, 2, stack=stack).comm_bytes
    assert found[1][1] == pytest.approx(both - values)


@pytest.mark.parametrize(
    ("stack", "each"), [("spu-0.9.5", 16), ("spu-semi2k", 16), ("spu-aby3", 24)]
)
def test_a_revealed_choice_is_opened_to_all_parties(stack: str, each: int) -> None:
    *_, (shape, sent) = chosen_by("mixtral", stack, revealed_routing=True)
    assert (shape, sent) == (str(2 * TOKENS), each * 2 * TOKENS)


def test_a_price_with_chance_in_it_says_so() -> None:
    for family, said in (("mixtral", True), ("llama", False)):
        config = AutoConfig.for_model(family, **CONFIGURATIONS[family])
        doubts = " ".join(mpc.simulate(config, stack="spu-securenn").unchecked)
        assert ("is chance" in doubts) is ("choice under SecureNN" in doubts) is said


def test_a_choice_that_groups_do_not_allow_is_refused() -> None:
    for wrong, name in (
        ({"n_group": 3}, "n_group"), ({"topk_group": 2}, "topk_group"),
        ({"n_group": 4, "num_experts_per_tok": 2}, "num_experts_per_tok"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"configuration: {name} of deepseek_v3"):
            chosen_by("deepseek_v3", "spu-semi2k", **wrong)
