"""The cost model against bytes measured between two real parties, and the paper's tables."""

from __future__ import annotations

from typing import Any

import pytest

from aero import mpc, paper
from aero.mpc.simulation import cheetah_stack_names

# SPU 0.9.5, Cheetah, f = 18, in-memory link, second run: MB sent and received at one party. Softmax
# is over 12 x 128 rows, activations over 128 x 3072 elements.
SCORES = 12 * 128
MEASURED: list[tuple[str, tuple[int, ...], dict[str, Any], float]] = [
    ("weight_product", (128, 768, 768), {}, 10.85),
    ("weight_product", (128, 768, 768), {"private_weights": True}, 5.579),
    ("weight_product", (1, 50257, 768), {"private_weights": True}, 2.358),  # in two tiles
    ("weight_product", (128, 64, 128), {}, 1.439),
    ("weight_product", (128, 128, 64), {}, 0.904),
    ("softmax", (SCORES, 128), {"exp_clip": False}, 294.5),
    ("softmax", (SCORES, 128), {"exp_clip": False, "broadcast_reciprocal": False}, 808.5),
    ("softmax", (SCORES, 128), {"one_bit_product_error": True, "exp_squarings": 5}, 185.0),
    ("relu", (128 * 3072,), {}, 39.80),
    ("gelu", (128 * 3072,), {}, 1099.3),
    ("exp", (SCORES * 128,), {"exp_clip": False}, 224.8),
    ("exp", (SCORES * 128,), {"exp_clip": False, "exp_squarings": 5}, 140.6),
    ("layernorm", (128, 768), {}, 65.45),
    ("layernorm", (128, 768), {"private_weights": True}, 57.72),
    ("dynamic_tanh", (128 * 768,), {}, 252.14),
    ("dynamic_tanh", (128 * 768,), {"private_weights": True}, 236.70),
    ("dynamic_erf", (128 * 768,), {}, 395.77),
    ("dynamic_erf", (128 * 768,), {"private_weights": True}, 380.32),
]
# Whole ciphertexts and payloads come out to 0.2 %; LayerNorm's 128-row operations take cached
# Beaver triples, of which one run sees a refill or none: 0.5 %.
TOLERANCE = {"layernorm": 5e-3}


@pytest.mark.parametrize(("name", "sizes", "fields", "megabytes"), MEASURED)
def test_operations_send_what_was_measured(
    name: str, sizes: tuple[int, ...], fields: dict[str, Any], megabytes: float
) -> None:
    cost = mpc.operation_cost(name, *sizes, stack="spu-0.9.5", **fields)
    assert cost.comm_bytes / 1e6 == pytest.approx(megabytes, rel=TOLERANCE.get(name, 2e-3))


@pytest.mark.parametrize(("label", "megabytes"), [("SM+ScFuFFN", 366.1), ("SM+LN+G", 1603.2)])
def test_one_layer_sends_what_was_measured(label: str, megabytes: float) -> None:
    report = mpc.simulate(label, num_layers=1, stack="spu-0.9.5", private_weights=True)
    assert report.by_layer[0].comm_bytes / 1e6 == pytest.approx(megabytes, rel=2e-3)


@pytest.mark.parametrize(
    ("name", "sizes", "fields", "megabytes"),
    [
        ("gelu", (128 * 3072,), {}, 1363.4),
        ("softmax", (SCORES, 128), {"extra_score_truncation": False}, 326.1),
        ("layernorm", (128, 768), {}, 83.4),
    ],
)
def test_the_release_of_the_papers_time_sends_what_was_measured(
    name: str, sizes: tuple[int, ...], fields: dict[str, Any], megabytes: float
) -> None:
    cost = mpc.operation_cost(name, *sizes, stack="spu-2024", **fields)
    assert cost.comm_bytes / 1e6 == pytest.approx(megabytes, rel=TOLERANCE.get(name, 2e-3))


@pytest.mark.parametrize("stack", cheetah_stack_names())
def test_relu_sends_from_each_party_what_was_measured(stack: str) -> None:
    cost = mpc.operation_cost("relu", 128 * 3072, stack=stack)
    # Three runs sent 30.376 and 8.356 MB and 2, 4, 2 and 2, 0, 0 Ferret extensions of 0.266 MB; on
    # average they take 80 / 96 and 16 / 96 of 3.77.
    assert cost.client_bytes / 1e6 == pytest.approx(30.376 + 0.837, rel=1e-4)
    assert cost.server_bytes / 1e6 == pytest.approx(8.356 + 0.167, rel=1e-4)


# Printed 6.29 GB where the row above it and the operators left out give 6.36; and 72.10 where
# Table 7's neighbours give 71.26.
PAPER_OUTLIERS = {(4, "SM+ScFuFFN_i6"), (7, "SOTA:SM+ScFFN")}


def test_the_papers_bytes_show_one_more_layernorm_than_listed() -> None:
    rows = paper.compare_with_paper((4, 5, 6, 7))
    assert len(rows) == 27
    off = {
        (row.table, row.label)
        for row in rows
        # 0.12 % and half a unit of the printed second decimal; the tolerance is 0.15 %.
        if abs(row.one_more_layernorm_ratio - 1) > 0.0015
    }
    assert off == PAPER_OUTLIERS
    # With exactly the operators listed every cell is low.
    assert all(0.98 < row.listed_ratio < 1 for row in rows)


def test_penalty_and_public_temperature_cost_nothing() -> None:
    for row in paper.paper_tables():
        if "comm_gb" in row and row["label"].startswith("EReg"):
            plain = row["label"].removeprefix("EReg(").removesuffix(")").replace("(t)", "")
            sizes = {"model": row["model"], "context_length": row["context_length"]}
            assert mpc.simulate(row["label"], **sizes).total == mpc.simulate(plain, **sizes).total


def test_the_papers_factor_depends_on_the_stack() -> None:
    def factor(stack: str) -> float:
        baseline = mpc.simulate("SM+LN+G", final_norm="none", stack=stack)
        return baseline.comm_bytes / mpc.simulate("SM+ScFuFFN", stack=stack).comm_bytes

    factors = {stack: round(factor(stack), 1) for stack in cheetah_stack_names()}
    assert factors == {"spu-2024": 4.0, "spu-0.9.5": 3.5, "openbumblebee": 2.0}


# Bytes in GB of SM+FN+R and SM+ScFuFFN at T = 128 for numbers of heads.
@pytest.mark.parametrize(
    ("label", "num_heads", "stack", "gigabytes"),
    [
        ("SM+FN+R", 12, "spu-2024", 7.34),
        ("SM+FN+R", 6, "spu-2024", 5.31),
        ("SM+FN+R", 4, "spu-2024", 4.62),
        ("SM+FN+R", 12, "aero-optimized", 4.00),
        ("SM+FN+R", 6, "aero-optimized", 2.97),
        ("SM+FN+R", 4, "aero-optimized", 2.61),
        ("SM+FN+R", 12, "aero-approximate", 2.67),
        ("SM+FN+R", 6, "aero-approximate", 2.08),
        ("SM+FN+R", 4, "aero-approximate", 1.87),
        ("SM+ScFuFFN", 6, "spu-2024", 4.31),
        ("SM+ScFuFFN", 4, "spu-2024", 3.62),
    ],
)
def test_fewer_heads_cost_fewer_bytes(
    label: str, num_heads: int, stack: str, gigabytes: float
) -> None:
    report = mpc.simulate(label, num_heads=num_heads, stack=stack, cheapest_layouts=False)
    assert round(report.comm_bytes / 1e9, 2) == gigabytes


# Each optimization alone on the paper's stack, SM+ScFuFFN: per cent at T = 128 and 256, and at
# T = 512 with V = 16384.
ALONE: list[tuple[dict[str, Any], tuple[float, float, float]]] = [
    ({"private_weights": True}, (-11.8, -7.1, -2.5)),
    ({"mul_share": True, "matmul_tile_bytes": 2**30}, (-6.5, -5.1, -3.3)),
    ({"one_bit_product_error": True}, (-12.8, -15.7, -18.6)),
    ({"exp_squarings": 5}, (-15.9, -19.7, -23.3)),
    ({"client_one_hot": True}, (-10.6, -6.6, -1.6)),
    ({"last_token_head": True}, (-7.6, -4.5, -0.8)),
    ({"last_layer_one_row": True}, (-13.1, -11.2, -8.7)),  # and the head's row
    ({"causal_skip": True}, (-26.4, -37.0, -45.4)),
    ({"absorb_ffn": True}, (-2.1, -1.3, -0.8)),
    ({"exp_ring_bits": 32}, (-10.7, -13.2, -15.6)),
    ({"static_max": True}, (-3.7, -4.6, -5.5)),
]


@pytest.mark.parametrize(("fields", "percent"), ALONE, ids=lambda v: str(v))
def test_each_measure_alone_saves_what_it_should(
    fields: dict[str, Any], percent: tuple[float, float, float]
) -> None:
    saved = []
    for length, vocab_size in ((128, 50257), (256, 50257), (512, 16384)):
        sizes = {"context_length": length, "vocab_size": vocab_size}
        changed = mpc.simulate("SM+ScFuFFN", **sizes, **fields).comm_bytes
        saved.append(round(100 * (changed / mpc.simulate("SM+ScFuFFN", **sizes).comm_bytes - 1), 1))
    assert tuple(saved) == percent


def test_a_secret_temperature_is_a_third_of_a_gigabyte() -> None:
    label = "EReg(SM(t)+ScFuFFN)"
    secret = mpc.simulate(label, secret_temperature=True)
    extra = secret.comm_bytes - mpc.simulate(label).comm_bytes
    assert round(extra / 1e9, 2) == 0.33
    per_head = "EReg(SM(t:head)+ScFuFFN)"
    assert mpc.simulate(per_head, secret_temperature=True).total == mpc.simulate(per_head).total
