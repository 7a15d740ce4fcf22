"""Prices beside the committed table of what one line of JAX sends under SPU."""

import json
from pathlib import Path

import pytest
from transformers import LlamaConfig

from aero import mpc

TABLE = Path(__file__).parents[3] / "benchmarks/results/private_lines_202611.json"
STACKS = {"cheetah": "spu-0.9.5", "semi2k": "spu-semi2k", "aby3": "spu-aby3"}
EXTENSION = 266_259  # bytes
# The line -> the operation that is priced, and the stack's field that chooses it.
PRICED = {
    "jnp.maximum(x, 0)": ("relu", {}),
    "jax.nn.gelu(x, approximate=True)": ("gelu", {"gelu": "tanh"}),
    "jax.nn.gelu(x, approximate=False)": ("gelu", {"gelu": "erfc"}),
    "x / 2 * (1 + erf(x / sqrt(2)))": ("gelu", {"gelu": "erf"}),
    "jnp.tanh(x)": ("tanh", {}),
    "jax.nn.sigmoid(x)": ("logistic", {}),
    "x * jax.nn.sigmoid(x)": ("silu", {"silu": "logistic"}),
    "x / 2 * (1 + jnp.tanh(x / 2))": ("silu", {"silu": "tanh"}),
}


@pytest.mark.parametrize("protocol", STACKS)
@pytest.mark.parametrize("line", PRICED)
def test_a_line_of_jax_sends_what_its_operation_costs(line: str, protocol: str) -> None:
    table = json.loads(TABLE.read_text())
    elements = table["rows"] * table["columns"]
    measured = table["lines"][line][protocol]["bytes"]
    operation, fields = PRICED[line]
    found = mpc.operation_cost(operation, elements, stack=STACKS[protocol], **fields)
    # A run of one line pays whole extensions of Ferret, a price its share of one; and the
    # ciphertexts' compressed sizes vary.
    tolerance = EXTENSION + 1e-4 * measured if protocol == "cheetah" else 1e-3
    assert found.comm_bytes == pytest.approx(measured, abs=tolerance)


@pytest.mark.parametrize("protocol", STACKS)
@pytest.mark.parametrize(
    ("key_heads", "line"), [(8, "q @ jnp.repeat(k, 4, 0).mT"), (2, "q.reshape(2, 128, 64) @ k.mT")]
)
def test_a_group_of_query_heads_is_priced_as_rows_of_one_product_with_its_keys(
    key_heads: int, line: str, protocol: str
) -> None:
    measured = json.loads(TABLE.read_text())["lines"][line][protocol]["bytes"]
    config = LlamaConfig(
        vocab_size=256, hidden_size=512, num_hidden_layers=1, intermediate_size=64,
        num_attention_heads=8, num_key_value_heads=key_heads,
    )  # fmt: skip
    report = mpc.simulate(config, context_length=32, stack=STACKS[protocol])
    [scores] = [one for one in report.operations if one.name == "scores"]
    tolerance = EXTENSION if protocol == "cheetah" else 0.0
    assert scores.cost.comm_bytes == pytest.approx(measured, abs=tolerance)
