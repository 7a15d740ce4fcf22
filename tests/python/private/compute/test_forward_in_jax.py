"""The JAX forward pass follows `network.json`, for every kind of network."""

import numpy as np
import pytest
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import aero
from aero.export.plain_weights import write_network
from aero.models.foreign_writer import describe_model
from aero.network.files import read_network
from aero.network.primitives import FUNCTIONS

from ...export.conftest import trained
from ...models.labels import FAMILIES, LABELS
from ...network.formed_networks import ATTENTION, HEADS, headed, whole

pytestmark = pytest.mark.private

_SIZES = {
    "vocab_size": 256, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 40, "max_position_embeddings": 32,
}  # fmt: skip


def exports(folder):
    for family in FAMILIES:
        for number, label in enumerate(LABELS):
            aero.export_weights(trained(label, family), folder / f"{family}-{number}")
    others = {
        "exact-gelu": trained("SM+LN+G", gelu_approximation="none", layer_norm_epsilon=1e-3),
        "pruned": trained("SM+ScFuFFN_i1", pruned_ffn_layers=[0], embedding_scale=3.0),
        "folded": aero.fold_norm(trained("SM+FN+ScFuFFN")),
        "absorbed": aero.absorb_ffn(trained("SM+ScFuFFN")).model,
        "wide-heads": trained("SM+LN+G", head_dim=24, tied_embeddings=False),
    }
    for name, model in others.items():
        aero.export_weights(model, folder / name)
    foreign = {
        "llama": LlamaForCausalLM(LlamaConfig(**_SIZES, num_key_value_heads=2)),
        "mistral": MistralForCausalLM(
            MistralConfig(**_SIZES, num_key_value_heads=1, sliding_window=5)
        ),
        "qwen3": Qwen3ForCausalLM(Qwen3Config(**_SIZES, num_key_value_heads=2, head_dim=8)),
        "bloom": BloomForCausalLM(
            BloomConfig(vocab_size=256, hidden_size=24, n_layer=2, n_head=4, seq_length=32)
        ),
    }
    for name, model in foreign.items():
        write_network(describe_model(model.eval()), folder / name)
    for function in FUNCTIONS:
        other = describe_model(foreign["llama"])
        for layer in other.description["operations"]:
            operations = layer.get("operations", [])
            for at, operation in enumerate(operations):
                if operation["op"] == "activation":
                    # Of positive numbers, where it is a root or a quotient.
                    first = "exp" if function in ("reciprocal", "rsqrt") else function
                    then = {**operation, "function": function, "inputs": [operation["output"]]}
                    operations[at : at + 1] = [
                        operation | {"function": first}, *([then] if first != function else [])
                    ]  # fmt: skip
                    break
        write_network(other, folder / function)
    for form in ATTENTION:
        write_network(whole(form), folder / f"attention, {form}")
    for head in HEADS:
        for padded in (True, False):
            write_network(headed(head, padded), folder / f"head, {head}, {padded}")
    write_network(delayed(read_network(folder / "wide-heads")), folder / "delayed")
    kinds = (others, foreign, FUNCTIONS, ATTENTION)
    every = len(FAMILIES) * len(LABELS) + sum(map(len, kinds)) + 2 * len(HEADS) + 1
    by_blocks = len(LABELS) + len(ATTENTION) + len(("bloom", "mistral", "delayed"))
    return 2 * every + by_blocks


def delayed(network):
    """With a convolution of three tokens before each attention, and a shift of two."""
    described, random = network.description, np.random.default_rng(0)
    [layers] = [entry for entry in described["operations"] if "repeat" in entry]
    width = described["operations"][0]["width"]
    weight = {"weight": "layers.{layer}.near"}
    layers["operations"][:0] = [
        {"op": "unfold", "inputs": ["x"], "output": "near", "taps": 3},
        {
            "op": "linear", "inputs": ["near"], "output": "near", "in": 3 * width, "out": width,
            "transposed": False, "weights": weight, "name": "near", "part": "ffn",
        },
        {"op": "shift", "inputs": ["x"], "output": "late", "tokens": 2},
        {"op": "add", "inputs": ["x", "near", "late"], "output": "x"},
    ]  # fmt: skip
    for layer in range(layers["repeat"]):
        tensor = random.standard_normal((3 * width, width)) / width**0.5
        network.tensors[f"layers.{layer}.near"] = tensor
        described["tensors"][f"layers.{layer}.near"] = {
            "shape": list(tensor.shape),
            "dtype": "float32",
        }
    return network


def test_plain_jax_gives_the_logits_of_every_network(run_private, tmp_path):
    count = exports(tmp_path)
    found = run_private("plain_forward_program.py", tmp_path)
    assert len(found) == count
    # Float32 rounding, 2^-24, times the growth of sums over 32 to 256 products in a dozen
    # operations, more where position temperatures stretch the scores.
    assert max(off for off, _ in found.values()) < 200 * 2.0**-24
    assert all(same for _, same in found.values())
