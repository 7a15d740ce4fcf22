"""What a dealer of SEMI2K sends, which SPU's wheel cannot be, against the formula of its price."""

from __future__ import annotations

from typing import Any

import pytest

from aero import mpc

pytestmark = pytest.mark.private


def test_a_dealer_sends_what_the_formula_says(run_private: Any) -> None:
    found = run_private("spu_dealer_program.py")
    n, m = 1000, 20
    # A word for each product of elements, or of bits; for each truncation half a word, as it
    # multiplies in Z_2^32 what each party knows; for a matrix product a word of each result.
    assert found["product"] == {"AdjustMul": 8 * n}
    assert found["square"] == {"AdjustMul": 8 * n}
    assert found["truncation"] == {"AdjustMulPriv": 4 * n}
    assert found["matmul"] == {"AdjustDot": 8 * m * m}
    assert found["equality"] == {"AdjustEqz": 8 * n, "AdjustAnd": 6 * 8 * n}
    sizes = {
        "product": (n,), "square": (n,), "truncation": (n,), "matmul": (m, 30, m),
        "equality": (n, 64), "comparison": (n, 64),
    }  # fmt: skip
    for name, shape in sizes.items():
        priced = mpc.operation_cost(name, *shape, stack="spu-semi2k").dealer_bytes
        assert sum(found[name].values()) == priced, name
