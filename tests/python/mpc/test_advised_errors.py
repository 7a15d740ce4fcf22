"""How far approximate changes are off, as advice tells it: computed again."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from aero.fixed_point import Approximations, function_errors
from aero.fixed_point.functions import encode, matmul, product
from aero.mpc.changes import described_changes, run_changes


def test_the_error_of_the_constant_round_softmax_is_what_the_table_says() -> None:
    random = np.random.default_rng(0)
    scores = random.standard_normal((2000, 128))
    exact = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    for steps, told in ((16, 0.09), (32, 0.05)):
        x, y = np.clip(scores, -4, 12) / steps, np.full_like(scores, 1 / 128)
        for _ in range(steps):
            y = y + (x - (x * y).sum(-1, keepdims=True)) * y
        worst = np.abs(y - exact).max()
        assert 0.7 * told < worst < told
        [row] = [one for one in run_changes() if "softmax_steps" in one.fields]
        assert f"{told}" in row.effect


def test_the_error_of_each_approximation_is_computed_again() -> None:
    told = {tuple(one.fields): one.effect for one in run_changes() if "approximate" in one.effect}
    exact_gelu = {"operations": [{"op": "activation", "function": "gelu_erf"}]}
    described = described_changes(exact_gelu)
    told |= {(one.name,): one.effect for one in described if "approximate" in one.effect}
    exp, steps, free, scale, last, tanh = (
        ("exp_squarings",), ("softmax_steps",), ("truncations",), ("fold_score_scale",),
        ("one_bit_product_error",), ("GELU's tanh form",),
    )  # fmt: skip
    # The steps have a test of their own, and no program leaves out all truncations.
    assert {*told} == {exp, steps, free, scale, last, tanh}

    def largest(name: str, **fields: Any) -> float:
        found = function_errors(Approximations.of_stack("spu-0.9.5", **fields))
        [error] = [one.largest for one in found if one.name.startswith(name)]
        return error

    numbers = [float(one) for one in re.findall(r"\d\.\d{3,}", told[exp])]
    # The table's numbers are those of the formula; fixed point adds its own last bits.
    for number, squarings in zip(numbers, (5, 8), strict=True):
        assert number <= largest("softmax", exp_squarings=squarings) < number + 4e-4
    x = np.linspace(-8, 8, 100_001)
    exact = x / 2 * (1 + np.array([math.erf(one / math.sqrt(2)) for one in x]))
    formula = x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    off, spus = (float(one) for one in re.findall(r"\de-\d", told[tanh]))
    assert 0.8 * off < np.abs(formula - exact).max() < off
    assert 0.8 * spus < largest("tanh") < spus
    assert "last bit" in told[last] and "last bit" in told[scale]
    random = np.random.default_rng(0)
    # A score of 64 numbers of a head, times 1/8 after its truncation or before.
    queries, keys = encode(random.uniform(-2, 2, (2, 1000, 64)))
    eighth = encode(np.array(0.125))
    after = product(matmul(queries, keys.T), np.broadcast_to(eighth, (1000, 1000)))
    before = matmul(product(queries, np.broadcast_to(eighth, queries.shape)), keys.T)
    # Each of 64 products with keys below 2 starts from a query that is off by one.
    assert 0 < np.abs(after - before).max() <= 2 * 64 + 1
    # Times 1, where the truncation cuts nothing: 18 cut bits hide the error nearly always.
    arithmetics = [
        Approximations.of_stack("spu-0.9.5", one_bit_product_error=on).arithmetic()
        for on in (False, True)
    ]
    factors = encode(random.uniform(-8, 8, 10**6)), encode(np.ones(10**6))
    exactly, nearly = (product(*factors, arithmetic=one) for one in arithmetics)
    assert np.abs(nearly - exactly).max() == 1 and np.mean(nearly != exactly) < 1e-4
