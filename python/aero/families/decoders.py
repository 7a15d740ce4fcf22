"""Decoders, from their sizes and the places of their norms to operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aero.families.writer import Operation, Writer


@dataclass(frozen=True)
class Decoder:
    """A decoder: embeddings, layers of attention and feed-forward, final norm, logits.

    Attributes:
        vocab_size: V.
        width: d.
        heads: H.
        key_heads: G, each for H / G heads.
        head_dim: D.
        hidden: width of the feed-forward.
        function: activation of the feed-forward.
        windows: of each layer, the last keys that a query sees; 0: all earlier ones.
        norm: "layer" or "rms".
        epsilon: of the norms.
        norm_bias: a LayerNorm has one.
        embedding_norm: the embeddings are normed.
        scale: of the scores.
        table: rows of the table of positions; 0 where positions are rotary or a bias of scores.
        rotary: rotating channels of each head.
        rotary_base: of their angles.
        gated: the feed-forward multiplies its activation by a second projection.
        parallel: attention and feed-forward read the same stream and are added to it at once.
        one_norm: and the same norm.
        pre_norms: the inputs of attention and feed-forward are normed.
        post_norms: so are their outputs.
        head_norms: queries and keys of each head are.
        attention_bias: queries, keys and values have one.
        output_bias: so has the projection after attention.
        feed_forward_bias: so have the linear layers of the feed-forward.
        head_bias: so have the logits.
        soft_cap: of the scores; 0: none.
        distance_bias: the scores have a bias by distance, the same in all layers.
        sinks: each softmax has one score more by head.
        head_cap: of the logits.
        embedding_scale: factor of the embeddings.
        route: the fields of the operation that chooses among feed-forwards side by side; empty:
            there is one.
        router_bias: the logits of that choice have one.
    """

    vocab_size: int
    width: int
    heads: int
    key_heads: int
    head_dim: int
    hidden: int
    function: str
    windows: tuple[int, ...]
    norm: str
    epsilon: float
    scale: float
    table: int = 0
    rotary: int = 0
    rotary_base: float = 10000.0
    gated: bool = False
    parallel: bool = False
    one_norm: bool = False
    pre_norms: bool = True
    post_norms: bool = False
    head_norms: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    feed_forward_bias: bool = False
    head_bias: bool = False
    norm_bias: bool = True
    embedding_norm: bool = False
    soft_cap: float = 0.0
    distance_bias: bool = False
    sinks: bool = False
    head_cap: float = 0.0
    embedding_scale: float = 1.0
    route: Mapping[str, Any] = field(default_factory=dict)
    router_bias: bool = False


class Decoding:
    """Writes a decoder; families whose layers are others override what differs."""

    def __init__(self, sizes: Decoder) -> None:
        self.sizes, self.writer = sizes, Writer()

    def written(self) -> list[Operation]:
        """All operations."""
        sizes, writer = self.sizes, self.writer
        writer.table("x", "tokens", "token_embedding", sizes.vocab_size, sizes.width)
        if sizes.embedding_scale != 1.0:
            writer.add("scale", "x", "x", name="embedding scale", factor=sizes.embedding_scale)
        if sizes.table:
            writer.table("places", "positions", "position_embedding", sizes.table, sizes.width)
            writer.add("add", "x", "x", "places")
        if sizes.embedding_norm:
            self._norm("x", "x", "embedding_norm", "norm of embeddings")
        writer.layers(self._kinds(), self._layer)
        self._norm("normed", "x", "final_norm", "final norm")
        writer.linear("logits", "normed", "head", "logits", "lm head", sizes.width,
                      sizes.vocab_size, bias=sizes.head_bias)  # fmt: skip
        if sizes.head_cap:
            # c tanh(x / c): the first factor goes into the head, the second is the owner's.
            writer.add("scale", "logits", "logits", name="into the cap", factor=1 / sizes.head_cap)
            writer.add("activation", "logits", "logits", name="soft cap of logits", part="lm head",
                       function="tanh", width=sizes.vocab_size, slope=0.0)  # fmt: skip
            writer.add("scale", "logits", "logits", name="out of the cap", factor=sizes.head_cap)
        return writer.operations

    def _kinds(self) -> Sequence[Any]:
        """What tells each layer from others: the last keys that its queries see."""
        return self.sizes.windows

    def _layer(self, window: Any) -> None:
        sizes, add = self.sizes, self.writer.add
        attended = self._attention(self._before("norm_1", "norm before attention"), window)
        attended = self._after(attended, "norm_1_after", "norm after attention")
        if not sizes.parallel:
            add("add", "x", "x", attended)
        given = "normed"
        if not sizes.one_norm:
            given = self._before("norm_2", "norm before FFN")
        fed = self._after(self._fed(given), "norm_2_after", "norm after FFN")
        add("add", "x", "x", *([attended] if sizes.parallel else []), fed)

    def _before(self, key: str, name: str) -> str:
        return self._norm("normed", "x", key, name) if self.sizes.pre_norms else "x"

    def _after(self, value: str, key: str, name: str) -> str:
        return self._norm(value, value, key, name) if self.sizes.post_norms else value

    def _norm(self, output: str, given: str, key: str, name: str, width: int = 0) -> str:
        sizes = self.sizes
        return self.writer.norm(
            output, given, key, name, sizes.norm, width or sizes.width, sizes.epsilon,
            bias=sizes.norm == "layer" and sizes.norm_bias,
        )  # fmt: skip

    def _attention(self, given: str, window: int) -> str:
        sizes, writer = self.sizes, self.writer
        places = (
            ("queries", sizes.heads), ("keys", sizes.key_heads), ("values", sizes.key_heads),
        )  # fmt: skip
        inner = sizes.heads * sizes.head_dim
        total = inner + 2 * sizes.key_heads * sizes.head_dim
        writer.linear("projected", given, "attention.projection", "queries, keys, values",
                      "qkv/proj", sizes.width, total, bias=sizes.attention_bias)  # fmt: skip
        start = 0
        for name, count in places:
            writer.add("split_heads", name, "projected", start=start, heads=count,
                       head_dim=sizes.head_dim)  # fmt: skip
            start += count * sizes.head_dim
        for name, count in places[:2]:
            if sizes.head_norms:
                self._norm(name, name, f"attention.{name}_norm", f"norm of {name}", sizes.head_dim)
            if sizes.rotary:
                writer.add("rotate", name, name, name=name, part="QK", heads=count,
                           channels=sizes.rotary, base=sizes.rotary_base)  # fmt: skip
        weights = {"bias": "distance_bias"} if sizes.distance_bias else {}
        if sizes.sinks:
            weights["sink"] = "layers.{layer}.attention.sinks"
        attend(writer, sizes.heads, sizes.key_heads, sizes.head_dim, scale=sizes.scale,
               soft_cap=sizes.soft_cap, causal=True, window=window, weights=weights)  # fmt: skip
        return writer.linear("attended", "joined", "attention.output", "projection", "qkv/proj",
                             inner, sizes.width, bias=sizes.output_bias)  # fmt: skip

    def _fed(self, given: str) -> str:
        sizes, writer = self.sizes, self.writer
        if not sizes.route:
            return self._feed_forward(given, "feed_forward", "fed", "FFN")
        # Every expert computes every token, and the router's weights of those that are not chosen
        # are zero. Where the choice is revealed, as many rows are computed as tokens have experts.
        route = sizes.route
        writer.linear("routed", given, "feed_forward.router", "router", "ffn", sizes.width,
                      route["experts"], bias=sizes.router_bias)  # fmt: skip
        writer.add("route", "routed", "routed", name="router's choice", part="ffn", **route)
        summands = []
        for expert in range(route["chosen" if route["revealed"] else "experts"]):
            fed = self._feed_forward(given, f"feed_forward.experts.{expert}", f"fed_{expert}",
                                     f"expert {expert}")  # fmt: skip
            summands.append(writer.add("multiply", fed, fed, "routed", name="router's weight",
                                       part="ffn", width=sizes.width))  # fmt: skip
        return writer.add("add", "fed", *summands)

    def _feed_forward(self, given: str, key: str, output: str, name: str) -> str:
        if self.sizes.gated:
            return self._gated(given, key, output, name, self.sizes.hidden)
        sizes, linear = self.sizes, self._linear_of(key)
        linear("hidden", given, "0", f"{name}, in", sizes.width, sizes.hidden)
        self.writer.activation("hidden", sizes.function, sizes.hidden)
        return linear(output, "hidden", "1", f"{name}, out", sizes.hidden, sizes.width)

    def _gated(self, given: str, key: str, output: str, name: str, hidden: int) -> str:
        sizes, writer, linear = self.sizes, self.writer, self._linear_of(key)
        for value in ("gate", "up"):
            linear(value, given, value, f"{name}, {value}", sizes.width, hidden)
        writer.activation("gate", sizes.function, hidden)
        writer.add("multiply", "hidden", "gate", "up", name="gate times up", part="act",
                   width=hidden)  # fmt: skip
        return linear(output, "hidden", "down", f"{name}, out", hidden, sizes.width)

    def _linear_of(self, key: str) -> Callable[[str, str, str, str, int, int], str]:
        writer, bias = self.writer, self.sizes.feed_forward_bias

        def linear(output: str, given: str, part: str, name: str, inner: int, outer: int) -> str:
            return writer.linear(output, given, f"{key}.{part}", name, "ffn", inner, outer,
                                 bias=bias)  # fmt: skip

        return linear


def attend(
    writer: Writer, heads: int, key_heads: int, head_dim: int, *, scale: float, causal: bool,
    soft_cap: float = 0.0, window: int = 0, word: str = "", padded: bool = False,
    weights: dict[str, str] | None = None,
) -> str:  # fmt: skip
    """Attention of queries, keys and values, heads joined.

    `word` begins the names; `weights` are the softmax's, which sees no padding if `padded`.
    """
    sizes: dict[str, Any] = {"heads": heads, "key_heads": key_heads, "head_dim": head_dim}
    writer.add("scores", "scores", "queries", "keys", name=f"{word}scores", part="QK", **sizes,
               scale=scale, temperature=False, per_position=False, soft_cap=soft_cap)  # fmt: skip
    given = ("scores", "lengths") if padded else ("scores",)
    writer.add("softmax", "weights", *given, name=f"{word}softmax", part="softmax", heads=heads,
               weights=weights, causal=causal, window=window)  # fmt: skip
    writer.add(
        "weighted_sum", "heads", "weights", "values", name=f"{word}heads", part="PV", **sizes
    )
    return writer.add("join_heads", "joined", "heads")
