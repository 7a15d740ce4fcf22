"""Encoders of text and of pictures with their heads, from their sizes to operations."""

from __future__ import annotations

from dataclasses import dataclass

from aero.families.decoders import attend
from aero.families.heads import labels
from aero.families.sizes import Described
from aero.families.values import Values
from aero.families.writer import Operation, Writer


@dataclass(frozen=True)
class _Sizes:
    vocab_size: int
    table: int
    layers: int
    width: int
    heads: int
    hidden: int
    function: str
    epsilon: float

    def operations(self) -> list[Operation]:
        """Every sum is normed; all tokens are of the first type, if there are types."""
        writer = Writer()
        writer.table("x", "tokens", "token_embedding", self.vocab_size, self.width)
        writer.table("places", "positions", "position_embedding", self.table, self.width)
        writer.add("add", "x", "x", "places")
        self._norm(writer, "x", "embedding_norm", "norm of embeddings")
        writer.layers((0,) * self.layers, lambda _: self._layer(writer))
        self._dense(writer, "hidden", "x", "head.transform", "transform", "lm head")
        writer.activation("hidden", self.function, self.width)
        self._norm(writer, "hidden", "head.norm", "final norm")
        writer.linear("logits", "hidden", "head", "logits", "lm head", self.width,
                      self.vocab_size, bias=True)  # fmt: skip
        return writer.operations

    def _layer(self, writer: Writer) -> None:
        width, heads = self.width, self.heads
        _attend_to_all(writer, "x", width, heads, bias=True, padded=True)
        self._dense(writer, "attended", "joined", "attention.output", "projection", "qkv/proj")
        writer.add("add", "x", "x", "attended")
        self._norm(writer, "x", "norm_1", "norm after attention")
        writer.linear("hidden", "x", "feed_forward.0", "FFN, in", "ffn", width, self.hidden,
                      bias=True)  # fmt: skip
        writer.activation("hidden", self.function, self.hidden)
        writer.linear("fed", "hidden", "feed_forward.1", "FFN, out", "ffn", self.hidden, width,
                      bias=True)  # fmt: skip
        writer.add("add", "x", "x", "fed")
        self._norm(writer, "x", "norm_2", "norm after FFN")

    def _norm(self, writer: Writer, value: str, key: str, name: str) -> None:
        writer.norm(value, value, key, name, "layer", self.width, self.epsilon, bias=True)

    def _dense(
        self, writer: Writer, output: str, given: str, key: str, name: str, part: str
    ) -> None:
        writer.linear(output, given, key, name, part, self.width, self.width, bias=True)


def _attend_to_all(
    writer: Writer, x: str, width: int, heads: int, *, bias: bool, padded: bool = False
) -> None:
    """Every position looks at all of them, through one product for queries, keys and values."""
    writer.linear("projected", x, "attention.projection", "queries, keys, values", "qkv/proj",
                  width, 3 * width, bias=bias)  # fmt: skip
    head_dim = width // heads
    for place, name in enumerate(("queries", "keys", "values")):
        writer.add("split_heads", name, "projected", start=place * width, heads=heads,
                   head_dim=head_dim)  # fmt: skip
    attend(writer, heads, heads, head_dim, scale=head_dim**-0.5, causal=False, padded=padded)


def bert(values: Values) -> list[Operation]:
    """BERT."""
    values.must("position_embedding_type", "absolute", "absolute")
    return _encoder(
        values,
        layers="num_hidden_layers",
        width="hidden_size",
        heads="num_attention_heads",
        hidden="intermediate_size",
        function="hidden_act",
        epsilon=values.number("layer_norm_eps", default=1e-12),
    )


# RoBERTa differs in the tokens of its padding alone.
roberta = bert


def distilbert(values: Values) -> list[Operation]:
    """DistilBERT."""
    return _encoder(
        values,
        layers="n_layers",
        width="dim",
        heads="n_heads",
        hidden="hidden_dim",
        function="activation",
        epsilon=1e-12,
    )


def _encoder(
    values: Values,
    *,
    layers: str,
    width: str,
    heads: str,
    hidden: str,
    function: str,
    epsilon: float,
) -> list[Operation]:
    """The operations by the names of a configuration's entries."""
    return _Sizes(
        vocab_size=values.size("vocab_size"),
        table=values.size("max_position_embeddings"),
        layers=values.size(layers),
        width=values.size(width),
        heads=_heads(values, values.size(width), heads),
        hidden=values.size(hidden),
        function=values.function(function, default="gelu"),
        epsilon=epsilon,
    ).operations()


def _heads(values: Values, width: int, name: str) -> int:
    heads = values.size(name)
    if width % heads:
        raise values.wrong(name, f"a divisor of the width, {width}", heads)
    return heads


def vit(values: Values) -> Described:
    """ViT, with its classifier: patches of a picture, with a learned row in front."""
    width = values.size("hidden_size")
    picture, patch = values.size("image_size", default=224), values.size("patch_size", default=16)
    if picture < patch:
        raise values.wrong("image_size", f"an integer from patch_size, {patch}", picture)
    patches = (picture // patch) ** 2
    numbers = patch**2 * values.size("num_channels", default=3)
    writer = Writer()
    writer.add("source", "patches", positions=patches, width=numbers, name="patches")
    writer.linear("x", "patches", "patch_embedding", "patches to channels", "ffn", numbers, width,
                  bias=True)  # fmt: skip
    writer.add("rearrange", "x", "x", positions=patches + 1, width=width, name="row in front")
    writer.table("places", "positions", "position_embedding", patches + 1, width)
    writer.add("add", "x", "x", "places")
    writer.layers((0,) * values.size("num_hidden_layers"), lambda _: _picture_layer(values, writer))
    _picture_norm(values, writer, "x", "final_norm", "final norm")
    writer.add("pool", "pooled", "x", name="first row", kind="first")
    writer.linear("logits", "pooled", "head", "logits", "lm head", width, labels(values), bias=True)
    return Described(values.family, writer.operations, patches + 1, 0, fixed=True)


def _picture_layer(values: Values, writer: Writer) -> None:
    width = values.size("hidden_size")
    heads = _heads(values, width, "num_attention_heads")
    hidden, bias = values.size("intermediate_size"), values.flag("qkv_bias", default=True)
    _picture_norm(values, writer, "normed", "norm_1", "norm before attention")
    _attend_to_all(writer, "normed", width, heads, bias=bias)
    writer.linear("attended", "joined", "attention.output", "projection", "qkv/proj", width, width,
                  bias=True)  # fmt: skip
    writer.add("add", "x", "x", "attended")
    _picture_norm(values, writer, "normed", "norm_2", "norm before FFN")
    writer.linear("hidden", "normed", "feed_forward.0", "FFN, in", "ffn", width, hidden, bias=True)
    writer.activation("hidden", values.function("hidden_act", default="gelu"), hidden)
    writer.linear("fed", "hidden", "feed_forward.1", "FFN, out", "ffn", hidden, width, bias=True)
    writer.add("add", "x", "x", "fed")


def _picture_norm(values: Values, writer: Writer, output: str, key: str, name: str) -> None:
    writer.norm(output, "x", key, name, "layer", values.size("hidden_size"),
                values.number("layer_norm_eps", default=1e-12), bias=True)  # fmt: skip
