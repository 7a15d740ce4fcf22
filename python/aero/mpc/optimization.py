"""Optimizations that make a private forward pass cheaper: the assumption and saving of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aero.mpc.cost import FieldValue

GIBIBYTE = 2**30


@dataclass(frozen=True)
class Optimization:
    """One optimization.

    Attributes:
        name: Its word, the field of the stack that it sets first.
        fields: The keywords of `simulate` that switch it on.
        title: The change, in words.
        assumption: The condition for it.
        changes: "no" where the same function is computed; otherwise how it differs.
        implemented: Where it can be had today: a setting of SPU, a fork, or nobody.
        listed: Whether it belongs to the cumulative table; the others are this project's own.
    """

    name: str
    fields: Mapping[str, FieldValue]
    title: str
    assumption: str
    changes: str
    implemented: str
    listed: bool = True

    def to_dict(self) -> dict[str, Any]:
        """All attributes as JSON-ready values."""
        return {
            "name": self.name,
            "fields": dict(self.fields),
            "title": self.title,
            "assumption": self.assumption,
            "changes": self.changes,
            "implemented": self.implemented,
            "listed": self.listed,
        }


_NEXT_TOKEN_ONLY = "no other output than the next token's logits is wanted"

# In the order of the cumulative table; csrc/mpc derives the rest.
_OPTIMIZATIONS = (
    Optimization(
        "private_weights",
        {"private_weights": True},
        "weights known to the server in the clear, one HE product instead of two",
        "the server owns the weights, which is the setting of private inference",
        "no",
        "SPU: experimental_enable_colocated_optimization; OpenBumbleBee",
    ),
    Optimization(
        "mul_share",
        {"mul_share": True, "matmul_tile_bytes": GIBIBYTE},
        "products of shares by MulShare, matrix products uncut up to 1 GiB",
        "none; memory for the larger products",
        "no",
        "SPU since September 2024, with experimental_disable_mmul_split",
    ),
    Optimization(
        "one_bit_product_error",
        {"one_bit_product_error": True},
        "a product may be off by one in its last bit, 2^-36, before it is truncated",
        "the network stands that a truncated product is seldom off by one",
        "last bit",
        "SPU: CheetahConfig.enable_mul_lsb_error; OpenBumbleBee",
    ),
    Optimization(
        "exp_squarings=5",
        {"exp_squarings": 5},
        "exp(x) = (1 + x/32)^32 instead of (1 + x/256)^256",
        "the network stands the approximation",
        "softmax error up to 0.057 on N(0,1) scores, 0.0065 with 8 squarings",
        "SPU: RuntimeConfig.fxp_exp_iters; OpenBumbleBee",
    ),
    Optimization(
        "clip_bits=50",
        {"clip_bits": 50},
        "the comparison that puts exp to 0 below -14 looks at 50 bits",
        "|score| < 2^31, or its upper bits would be cut off",
        "resolution of the clip point",
        "OpenBumbleBee (neg_exp)",
    ),
    Optimization(
        "client_one_hot",
        {"client_one_hot": True},
        "the client makes its one-hot rows itself: one matrix product with the table",
        "the client knows its tokens in the clear",
        "no",
        "any stack: a change of the model's program (`aero private` has it)",
    ),
    Optimization(
        "last_token_head",
        {"last_token_head": True},
        "LM head on the last position only",
        _NEXT_TOKEN_ONLY,
        "no, in generation; there are no logits of earlier positions",
        "any stack: a change of the model's program",
    ),
    Optimization(
        "last_layer_one_row",
        {"last_layer_one_row": True},
        "the last layer computes only the positions that outputs read: the last",
        _NEXT_TOKEN_ONLY,
        "no, in generation; there are no logits of earlier positions",
        "any stack: a change of the model's program",
    ),
    Optimization(
        "causal_skip",
        {"causal_skip": True},
        "no work for scores above the diagonal; products in strips where that is cheaper",
        "a causal mask, which is public",
        "no",
        "nobody for single scores; `aero private` by blocks of queries: attention_block",
    ),
    Optimization(
        "absorb_ffn",
        {"absorb_ffn": True},
        "linear FFNs multiplied into the neighbouring weights before inference",
        "every FFN is one fused linear layer, no LayerNorm is left",
        "no",
        "any stack: a change of the weights",
    ),
    Optimization(
        "batch_heads",
        {"batch_heads": True},
        "the products of all heads at once instead of one head after the other",
        "none",
        "no",
        "OpenBumbleBee",
    ),
    Optimization(
        "exp_ring_bits=32",
        {"exp_ring_bits": 32},
        "exp's squarings in Z_2^32 with 12 fraction bits",
        "the network stands exp with 12 fraction bits",
        "accuracy: 12 instead of 18 fraction bits in exp",
        "nobody; OpenBumbleBee does so for GELU",
    ),
    Optimization(
        "static_max",
        {"static_max": True},
        "a static bound instead of the maximum of each row of scores",
        "scores are bounded, for instance by entropy regularization or a temperature",
        "wrong where a score exceeds the bound; underflow far below it",
        "nobody",
    ),
    Optimization(
        "cheapest_layouts",
        {"cheapest_layouts": True},
        "blocks of matrix products and padding of short vectors chosen by the bytes they send",
        "none; SPU weighs automorphisms and products besides and has a threshold for triples",
        "no",
        "nobody; a change of SPU's planner",
        listed=False,
    ),
    Optimization(
        "share_ciphertexts",
        {"batch_heads": True, "share_ciphertexts": True},
        "one query row per head: the products of all heads as one, with a block-diagonal factor",
        "none; up to as many times the ciphertext products as there are heads, for fewer bytes",
        "no",
        "nobody",
        listed=False,
    ),
    Optimization(
        "fill_ciphertexts",
        {"fill_ciphertexts": True},
        "vectors cut at whole ciphertexts, what is left over as cached triples",
        "none; both are protocols of SPU",
        "no",
        "nobody",
        listed=False,
    ),
    Optimization(
        "pack_triangle",
        {"causal_skip": True, "pack_triangle": True, "batch_heads": True},
        "responses of Q K^T filled with live scores, heads sharing them",
        "a causal mask; rows of queries in bit-reversed order, which each party permutes alone",
        "no",
        "nobody",
        listed=False,
    ),
    Optimization(
        "fold_score_scale",
        {"fold_score_scale": True},
        "1/sqrt(d_k) multiplied into W_Q before inference",
        "the temperature is not secret per position",
        "last bit: one truncation fewer, weights rounded after scaling",
        "any stack: a change of the weights",
        listed=False,
    ),
    Optimization(
        "argmax_ties=False",
        {"argmax_ties": False},
        "the next token by one comparison per node, without tests for NaN, ties and indices",
        "any of equally large logits will do",
        "which of equally large logits wins",
        "OpenBumbleBee: its README's change of jax's reducer",
        listed=False,
    ),
    Optimization(
        "comparison_bits=40",
        {"comparison_bits": 40},
        "comparisons in ReLU, clamps and maxima on 40 instead of 64 bits",
        "what is compared is below 2^21 in magnitude",
        "no, below the bound",
        "nobody; OpenBumbleBee narrows exp's clip and GELU's thresholds alike",
        listed=False,
    ),
)


def optimizations() -> tuple[Optimization, ...]:
    """Returns every optimization, those of the cumulative table first and in its order.

    Example:
        >>> from aero import mpc
        >>> [one.name for one in mpc.optimizations() if one.implemented == "nobody"]
        ['static_max', 'share_ciphertexts', 'fill_ciphertexts', 'pack_triangle']
    """
    return _OPTIMIZATIONS
