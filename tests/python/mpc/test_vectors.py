"""The cost model against its reference numbers: every field to 1e-6 relative.

Later corrections by measurements, with reasons, stand under "corrections" in their file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aero import _core, mpc
from aero.mpc.cost import Cost
from aero.mpc.simulation import cheetah_stack_names
from aero.paper import PUBLIC

VECTORS = json.loads(
    (Path(__file__).parents[2] / "data" / "mpc_test_vectors.json").read_text(encoding="utf-8")
)
STACKS = cheetah_stack_names()
NETWORKS = VECTORS["networks"]
OPTIMIZATIONS = VECTORS["optimizations_SM+ScFuFFN_spu-2024"]
# The optimizations of those vectors, each on top of those before it, as fields of a stack. MulShare
# goes with tiles of 1 GiB.
CHANGES: dict[str, dict[str, Any]] = {
    "private_weights": {"private_weights": True},
    "mul_share": {"mul_share": True, "matmul_tile_bytes": 2**30},
    "one_bit_product_error": {"one_bit_product_error": True},
    "exp_squarings=5": {"exp_squarings": 5},
    "clip_bits=50": {"clip_bits": 50},
    "client_one_hot": {"client_one_hot": True},
    "last_token_head": {"last_token_head": True},
    "last_layer_one_row": {"last_layer_one_row": True},
    "causal_skip": {"causal_skip": True},
    "absorb_ffn": {"absorb_ffn": True},
    "batch_heads": {"batch_heads": True},
    "exp_ring_32": {"exp_ring_bits": 32},
    "no_max": {"static_max": True},
}
SIZES = {128: 50257, 512: 16384}  # T -> V of the same


def assert_equal(cost: Cost, expected: dict[str, float]) -> None:
    """Every field; the printed numbers have three decimals (six for ciphertexts), hence `abs`."""
    actual = cost.to_dict()
    parties = {"comm_bytes", "client_bytes", "server_bytes", "helper_bytes", "dealer_bytes"}
    assert set(expected) == {*actual, "bytes"} - parties
    assert actual["comm_bytes"] == pytest.approx(expected["bytes"], rel=1e-6)
    for name in set(expected) - {"bytes"}:
        assert actual[name] == pytest.approx(expected[name], rel=1e-6, abs=1e-6), name


# Vector name -> (operation, sizes after the elements).
ELEMENTWISE: dict[str, tuple[str, tuple[int, ...]]] = {
    "product": ("product", ()),
    "square": ("square", ()),
    "ole": ("private_product", ()),
    "truncation": ("truncation", ()),
    "comparison64": ("comparison", (64,)),
    "multiplexer": ("multiplexer", ()),
    "relu": ("relu", ()),
    "exp": ("exp", ()),
    "reciprocal": ("reciprocal", ()),
    "rsqrt": ("reciprocal_square_root", ()),
    "gelu": ("gelu", ()),
}


@pytest.mark.parametrize("stack", STACKS)
def test_elementwise_operations_equal_their_vectors(stack: str) -> None:
    vectors = dict(VECTORS["elementwise"][stack])
    elements = vectors.pop("elements")
    for name, (operation, sizes) in ELEMENTWISE.items():
        cost = mpc.operation_cost(operation, elements, *sizes, stack=stack)
        assert_equal(cost, vectors.pop(name))
    softmax = mpc.operation_cost("softmax", 8192, 128, stack=stack)
    assert_equal(softmax, vectors.pop("softmax_rows_8192_n_128"))
    layernorm = mpc.operation_cost("layernorm", 1024, 768, stack=stack)
    assert_equal(layernorm, vectors.pop("layernorm_rows_1024_d_768"))
    assert_equal(mpc.operation_cost("product", 5000, stack=stack), vectors.pop("product_5000"))
    bits = int(mpc.stack_fields(stack)["one_hot_bits"])
    one_hot = mpc.operation_cost("equality", elements, bits, stack=stack)
    assert_equal(one_hot, vectors.pop("one_hot_equality"))
    assert not vectors


@pytest.mark.parametrize("vector", VECTORS["matmul"], ids=lambda v: f"{v['m']}x{v['k']}x{v['n']}")
def test_matrix_products_equal_their_vectors(vector: dict[str, Any]) -> None:
    sizes = (vector["m"], vector["k"], vector["n"])
    assert _core.matmul_block(*sizes) == tuple(vector["block"])
    one = mpc.operation_cost("plaintext_product", *sizes)
    assert_equal(one, vector["private_weight_one_product"])
    for stack in STACKS:
        shared = mpc.operation_cost("weight_product", *sizes, stack=stack, private_weights=False)
        assert_equal(shared, vector[f"shared_with_truncation_{stack}"])


@pytest.mark.parametrize("stack", STACKS)
def test_further_operations_equal_their_vectors(stack: str) -> None:
    elements = 1048576
    for name, vector in VECTORS["further"]["stacks"][stack].items():
        kind, _, rest = name.partition("_")
        if kind in {"square", "product"}:
            cost = mpc.operation_cost(kind, int(rest), stack=stack)
        elif kind == "gelu":
            gelu = {"piecewise_ring64": "piecewise", "tanh": "tanh"}[rest]
            cost = mpc.operation_cost("gelu", elements, stack=stack, gelu=gelu)
        elif kind == "matmul":
            sizes = [int(size) for size in rest.split("_")[1].split("x")]
            cost = mpc.operation_cost("weight_product", *sizes, stack=stack, private_weights=False)
        else:
            assert name == "exp_with_clip_then_reciprocal_196608"
            exp = mpc.operation_cost("exp", 196608, stack=stack)
            reciprocal = mpc.operation_cost("reciprocal", 196608, stack=stack)
            cost = exp + reciprocal
        assert_equal(cost, vector)


@pytest.mark.parametrize("vector", NETWORKS, ids=lambda v: f"{v['network']}-{v['T']}-{v['stack']}")
def test_networks_equal_their_vectors_part_by_part(vector: dict[str, Any]) -> None:
    report = mpc.simulate(
        vector["network"],
        context_length=vector["T"],
        vocab_size=vector["V"],
        stack=vector["stack"],
        final_norm=vector["final_norm"],
        num_layers=vector["L"],
        **PUBLIC,
        num_heads=vector["H"],
        width=vector["d"],
        threads=vector["setup_threads"],
        argmax=vector["argmax"],
    )
    assert vector["lm_head"] == "all tokens"
    assert_equal(report.total, vector["total"])
    assert set(report.by_kind) == set(vector["parts"])
    for kind, cost in report.by_kind.items():
        assert_equal(cost, vector["parts"][kind])
    layernorms = sum(operation.kind == "layernorm" for operation in report.operations)
    assert layernorms == vector["layernorms"]


@pytest.mark.parametrize("length", SIZES)
def test_optimizations_equal_their_vectors_one_on_top_of_the_other(length: int) -> None:
    fields: dict[str, Any] = {}
    for name, change in CHANGES.items():
        fields |= change
        vector = OPTIMIZATIONS[f"T={length} cumulative to {name}"]
        report = mpc.simulate(
            "SM+ScFuFFN", context_length=length, vocab_size=SIZES[length], **fields
        )
        assert_equal(report.total, vector["total"])
        assert set(report.by_kind) == set(vector["parts"]), name
        for kind, cost in report.by_kind.items():
            assert_equal(cost, vector["parts"][kind])


def test_every_vector_of_the_file_is_used() -> None:
    assert set(VECTORS) == {
        "units", "elementwise", "matmul", "networks", "further",
        "optimizations_SM+ScFuFFN_spu-2024", "corrections",
    }  # fmt: skip
    assert len(NETWORKS) == 48
    assert len(OPTIMIZATIONS) == len(SIZES) * len(CHANGES)
