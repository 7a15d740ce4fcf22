"""Decoders with a mixture of experts in some layers only, and those whose layers are others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aero.families.decoders import Decoder, Decoding
from aero.families.mixtures import routing
from aero.families.sizes import Described, network_of, usual
from aero.families.values import Values


class SparseDecoding(Decoding):
    """Writes a decoder of which some layers have an FFN instead of experts of another width."""

    def __init__(self, sizes: Decoder, expert_width: int, dense: Sequence[bool]) -> None:
        super().__init__(sizes)
        self.expert_width, self.dense = expert_width, dense
        self.is_dense = True

    def _kinds(self) -> Sequence[Any]:
        return list(zip(self.sizes.windows, self.dense, strict=True))

    def _layer(self, window: Any) -> None:
        window, self.is_dense = window
        super()._layer(window)

    def _fed(self, given: str) -> str:
        if self.is_dense:
            return self._gated(given, "feed_forward", "fed", "FFN", self.sizes.hidden)
        return super()._fed(given)

    def _feed_forward(self, given: str, key: str, output: str, name: str) -> str:
        return self._gated(given, key, output, name, self.expert_width)


class _BoundedDecoding(Decoding):
    """GPT-OSS: gates and what they multiply are bounded in the experts."""

    def _gated(self, given: str, key: str, output: str, name: str, hidden: int) -> str:
        writer, linear = self.writer, self._linear_of(key)
        for value in ("gate", "up"):
            linear(value, given, value, f"{name}, {value}", self.sizes.width, hidden)
        # The gate has one bound, the other factor two; alpha and 1 go into weights and biases.
        for value in ("gate", "up", "up"):
            writer.activation(value, "relu", hidden)
        writer.add("activation", "logistic", "gate", name="activation", part="act",
                   function="sigmoid", width=hidden, slope=0.0)  # fmt: skip
        for value, factor in (("gate", "logistic"), ("hidden", "up")):
            writer.add("multiply", value, "gate", factor, name="gate times up", part="act",
                       width=hidden)  # fmt: skip
        return linear(output, "hidden", "down", f"{name}, out", hidden, self.sizes.width)


def qwen3_moe(values: Values) -> Described:
    """Qwen 3 with a mixture of experts."""
    layers = values.size("num_hidden_layers")
    experts = values.size("num_experts", "num_local_experts", default=128)
    chosen = values.size("num_experts_per_tok", default=min(8, experts))
    normalized = values.flag("norm_topk_prob", default=False)
    routed, told = routing(values, experts, chosen, normalized=normalized)
    every = values.size("decoder_sparse_step", default=1)
    plain = values.get("mlp_only_layers", default=[])
    if not isinstance(plain, list) or not all(type(one) is int for one in plain):
        raise values.wrong("mlp_only_layers", "a list of integers", plain)
    bias = values.flag("attention_bias", default=False)
    sizes = usual(
        values, norm="rms", gated=True, head_norms=True, attention_bias=bias, output_bias=bias,
        windows=values.windows(layers, default_on=False), **routed,
    )  # fmt: skip
    dense = tuple(
        place in plain or (place + 1) % every != 0 or experts == 1 for place in range(layers)
    )
    width = values.size("moe_intermediate_size", default=768)
    return network_of(values, sizes, *told, decoding=SparseDecoding(sizes, width, dense))


def gpt_oss(values: Values) -> Described:
    """GPT-OSS."""
    experts = values.size("num_local_experts", default=128)
    chosen = values.size("num_experts_per_tok", default=min(4, experts))
    routed, told = routing(values, experts, chosen, scoring="softmax_of_chosen")
    bias = values.flag("attention_bias", default=True)
    sizes = usual(
        values, norm="rms", gated=True, attention_bias=bias, output_bias=bias,
        feed_forward_bias=True, router_bias=True, sinks=True,
        windows=values.windows(values.size("num_hidden_layers")), **routed,
    )  # fmt: skip
    return network_of(values, sizes, *told, decoding=_BoundedDecoding(sizes))
