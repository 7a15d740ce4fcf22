"""DeepSeek: attention with latent keys and values, and experts beside one that all tokens have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aero.families.decoders import Decoder
from aero.families.mixtures import routing
from aero.families.sizes import Described, network_of, usual
from aero.families.sparse import SparseDecoding
from aero.families.values import Values


@dataclass(frozen=True)
class _Latent:
    """Sizes of latent attention and of the experts.

    Attributes:
        query_rank: channels between the two products that make queries; 0: there is one.
        rank: the same of keys and values.
        plain: channels of each head of queries and keys that do not rotate.
        turning: those that do; one key for all heads.
        value: channels of each head of values.
        expert_width: width of an expert.
        shared_width: of the one that all tokens have; 0: there is none.
        dense_layers: first layers, which have an FFN instead.
    """

    query_rank: int
    rank: int
    plain: int
    turning: int
    value: int
    expert_width: int
    shared_width: int
    dense_layers: int


class _Decoding(SparseDecoding):
    def __init__(self, sizes: Decoder, latent: _Latent) -> None:
        layers = range(len(sizes.windows))
        dense = tuple(place < latent.dense_layers for place in layers)
        super().__init__(sizes, latent.expert_width, dense)
        self.latent = latent

    def _attention(self, given: str, window: int) -> str:
        # The columns of both large products stand part by part, not head by head, which their owner
        # arranges in the weights.
        sizes, latent, writer = self.sizes, self.latent, self.writer
        heads, bias = sizes.heads, sizes.attention_bias

        def linear(
            output: str, value: str, key: str, inner: int, outer: int, *, biased: bool = False
        ) -> str:
            return writer.linear(output, value, f"attention.{key}", key.replace("_", " "),
                                 "qkv/proj", inner, outer, bias=biased)  # fmt: skip

        def split(output: str, value: str, start: int, count: int, width: int) -> str:
            return writer.add("split_heads", output, value, start=start, heads=count,
                              head_dim=width)  # fmt: skip

        query = heads * (latent.plain + latent.turning)
        if latent.query_rank:
            linear("narrow", given, "query_down", sizes.width, latent.query_rank, biased=bias)
            self._norm("narrow", "narrow", "attention.query_norm", "norm of narrow queries",
                       latent.query_rank)  # fmt: skip
            linear("asked", "narrow", "query_up", latent.query_rank, query)
        else:
            linear("asked", given, "queries", sizes.width, query)
        split("queries", "asked", 0, heads, latent.plain)
        split("turning_queries", "asked", heads * latent.plain, heads, latent.turning)
        linear("compressed", given, "key_value_down", sizes.width, latent.rank + latent.turning,
               biased=bias)  # fmt: skip
        split("latent", "compressed", 0, 1, latent.rank)
        self._norm("latent", "latent", "attention.latent_norm", "norm of the latent", latent.rank)
        writer.add("join_heads", "latent", "latent")
        split("turning_keys", "compressed", latent.rank, 1, latent.turning)
        linear("expanded", "latent", "key_value_up", latent.rank,
               heads * (latent.plain + latent.value))  # fmt: skip
        split("keys", "expanded", 0, heads, latent.plain)
        split("values", "expanded", heads * latent.plain, heads, latent.value)
        for name, count in (("turning_queries", heads), ("turning_keys", 1)):
            writer.add("rotate", name, name, name=name.replace("_", " "), part="QK", heads=count,
                       channels=latent.turning, base=sizes.rotary_base)  # fmt: skip
        plain: dict[str, Any] = {"scale": sizes.scale, "temperature": False, "per_position": False,
                                 "soft_cap": 0.0}  # fmt: skip
        writer.add("scores", "scores", "queries", "keys", name="scores", part="QK", heads=heads,
                   key_heads=heads, head_dim=latent.plain, **plain)  # fmt: skip
        writer.add("scores", "turned", "turning_queries", "turning_keys", name="rotary scores",
                   part="QK", heads=heads, key_heads=1, head_dim=latent.turning,
                   **plain)  # fmt: skip
        writer.add("add", "scores", "scores", "turned")
        writer.add("softmax", "weights", "scores", name="softmax", part="softmax", heads=heads,
                   causal=True, window=0)  # fmt: skip
        writer.add("weighted_sum", "heads", "weights", "values", name="heads", part="PV",
                   heads=heads, key_heads=heads, head_dim=latent.value)  # fmt: skip
        writer.add("join_heads", "joined", "heads")
        return linear("attended", "joined", "output", heads * latent.value, sizes.width,
                      biased=bias)  # fmt: skip

    def _fed(self, given: str) -> str:
        latent = self.latent
        fed = super()._fed(given)
        if self.is_dense or not latent.shared_width:
            return fed
        own = self._gated(given, "feed_forward.shared", "shared", "expert of all tokens",
                          latent.shared_width)  # fmt: skip
        return self.writer.add("add", "fed", fed, own)


def deepseek(values: Values) -> Described:
    """DeepSeek V2 and V3."""
    # Yarn stretches the scores by a public factor, which decides no price.
    experts = values.size("n_routed_experts", default=1)
    chosen = values.size("num_experts_per_tok", default=min(8, experts))
    third = values.family == "deepseek_v3"
    parts: dict[str, Any] = {"normalized": values.flag("norm_topk_prob", default=third)}
    if third:
        parts |= {"scoring": "sigmoid", "group_best": 2}
    if third or values.get("topk_method") == "group_limited_greedy":
        parts["groups"] = values.size("n_group", default=1)
        parts["chosen_groups"] = values.size("topk_group", default=1)
    routed, told = routing(values, experts, chosen, **parts)
    layers = values.size("num_hidden_layers")
    dense = values.get("first_k_dense_replace", default=0)
    if isinstance(dense, bool) or not isinstance(dense, int) or not dense >= 0:
        raise values.wrong("first_k_dense_replace", "an integer from 0", dense)
    width = values.size("moe_intermediate_size")
    shared = values.get("n_shared_experts", default=0)
    if isinstance(shared, bool) or not isinstance(shared, int) or not 0 <= shared <= 1024:
        raise values.wrong("n_shared_experts", "an integer from 0 to 1024", shared)
    latent = _Latent(
        query_rank=0 if values.get("q_lora_rank") is None else values.size("q_lora_rank"),
        rank=values.size("kv_lora_rank"),
        plain=values.size("qk_nope_head_dim"),
        turning=values.size("qk_rope_head_dim"),
        value=values.size("v_head_dim"),
        expert_width=width,
        shared_width=shared * width,
        dense_layers=min(dense, layers),
    )
    sizes = usual(
        values, norm="rms", gated=True, head_dim=latent.plain,
        scale=(latent.plain + latent.turning) ** -0.5,
        attention_bias=values.flag("attention_bias", default=False), **routed,
    )  # fmt: skip
    return network_of(values, sizes, *told, decoding=_Decoding(sizes, latent))
