"""T5 and Whisper: a decoder that also attends to what an encoder has read or heard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aero.families.decoders import attend
from aero.families.sizes import Described
from aero.families.values import Values
from aero.families.writer import Writer


@dataclass(frozen=True)
class _Sizes:
    """Sizes of an encoder or a decoder.

    Attributes:
        layers: how many.
        width: d.
        heads: H.
        head_dim: D.
        hidden: width of the feed-forward.
        function: its activation.
        gated: it multiplies its activation by a second projection.
        norm: "layer" or "rms".
        epsilon: of the norms.
        scale: of the scores.
        bias: linear layers have one, but those of the logits.
    """

    layers: int
    width: int
    heads: int
    head_dim: int
    hidden: int
    function: str
    norm: str
    epsilon: float
    scale: float
    bias: bool
    gated: bool = False


class _Stack:
    """Layers that norm before each part; `memory` is the value that cross attention reads."""

    def __init__(self, writer: Writer, sizes: _Sizes, value: str, memory: str = "") -> None:
        self.writer, self.sizes, self.value, self.memory = writer, sizes, value, memory

    def written(self, output: str, name: str) -> None:
        """All layers and the norm behind them."""
        self.writer.layers((0,) * self.sizes.layers, lambda _: self._layer())
        self._norm(output, f"{name}_norm", f"norm after {name}")

    def _layer(self) -> None:
        self._norm("normed", "norm_1", "norm before attention")
        self._add(self._attention("attention", "normed", "normed", causal=bool(self.memory)))
        if self.memory:
            self._norm("normed", "norm_cross", "norm before cross attention")
            self._add(self._attention("cross", "normed", self.memory, causal=False))
        self._norm("normed", "norm_2", "norm before FFN")
        self._add(self._fed())

    def _add(self, value: str) -> None:
        self.writer.add("add", self.value, self.value, value)

    def _norm(self, output: str, key: str, name: str) -> None:
        sizes = self.sizes
        self.writer.norm(output, self.value, key, name, sizes.norm, sizes.width, sizes.epsilon,
                         bias=sizes.norm == "layer")  # fmt: skip

    def _linear(self, output: str, given: str, key: str, name: str, part: str, inner: int,
                outer: int) -> str:  # fmt: skip
        return self.writer.linear(output, given, key, name, part, inner, outer,
                                  bias=self.sizes.bias)  # fmt: skip

    def _attention(self, key: str, asking: str, asked: str, *, causal: bool) -> str:
        """Whose queries are of one value, and keys and values of the same or another."""
        sizes, word = self.sizes, "" if key == "attention" else "cross "
        inner = sizes.heads * sizes.head_dim
        if asking == asked:
            self._linear("projected", asked, f"{key}.projection", "queries, keys, values",
                         "qkv/proj", sizes.width, 3 * inner)  # fmt: skip
            places = (("queries", "projected", 0), ("keys", "projected", inner),
                      ("values", "projected", 2 * inner))  # fmt: skip
        else:
            self._linear("asking", asking, f"{key}.queries", f"{word}queries", "qkv/proj",
                         sizes.width, inner)  # fmt: skip
            self._linear("asked", asked, f"{key}.projection", f"{word}keys, values", "qkv/proj",
                         sizes.width, 2 * inner)  # fmt: skip
            places = (("queries", "asking", 0), ("keys", "asked", 0), ("values", "asked", inner))
        for name, given, start in places:
            self.writer.add("split_heads", name, given, start=start, heads=sizes.heads,
                            head_dim=sizes.head_dim)  # fmt: skip
        attend(self.writer, sizes.heads, sizes.heads, sizes.head_dim, scale=sizes.scale,
               causal=causal, word=word)  # fmt: skip
        return self._linear("attended", "joined", f"{key}.output", f"{word}projection", "qkv/proj",
                            inner, sizes.width)  # fmt: skip

    def _fed(self) -> str:
        sizes = self.sizes
        if not sizes.gated:
            self._linear("hidden", "normed", "feed_forward.0", "FFN, in", "ffn", sizes.width,
                         sizes.hidden)  # fmt: skip
            self.writer.activation("hidden", sizes.function, sizes.hidden)
        else:
            for value in ("gate", "up"):
                self._linear(value, "normed", f"feed_forward.{value}", f"FFN, {value}", "ffn",
                             sizes.width, sizes.hidden)  # fmt: skip
            self.writer.activation("gate", sizes.function, sizes.hidden)
            self.writer.add("multiply", "hidden", "gate", "up", name="gate times up", part="act",
                            width=sizes.hidden)  # fmt: skip
        return self._linear("fed", "hidden", "feed_forward.1", "FFN, out", "ffn", sizes.hidden,
                            sizes.width)  # fmt: skip


def t5(values: Values) -> Described:
    """T5: the biases of its scores are a table's rows at public places, which cost nothing."""
    vocab, width = values.size("vocab_size"), values.size("d_model")
    function, gated = _feed_forward(values)
    given: dict[str, Any] = {
        "width": width,
        "heads": values.size("num_heads"),
        "head_dim": values.size("d_kv"),
        "hidden": values.size("d_ff"),
        "function": function,
        "gated": gated,
        "norm": "rms",
        "epsilon": values.number("layer_norm_epsilon", default=1e-6),
        "scale": 1.0,
        "bias": False,
    }
    layers = values.size("num_layers")
    writer = Writer()
    writer.add("source", "source", positions=0, width=1, name="tokens of the encoder")
    writer.table("read", "source", "token_embedding", vocab, width)
    _Stack(writer, _Sizes(layers, **given), "read").written("memory", "encoder")
    writer.table("x", "tokens", "token_embedding", vocab, width)
    decoder = _Sizes(values.size("num_decoder_layers", default=layers), **given)
    _Stack(writer, decoder, "x", "memory").written("normed", "decoder")
    writer.linear("logits", "normed", "head", "logits", "lm head", width, vocab)
    told = "embed: the encoder reads as many tokens as the decoder, the context length"
    positions = values.size("n_positions", default=512)
    return Described(values.family, writer.operations, positions, vocab, (told,))


def _feed_forward(values: Values) -> tuple[str, bool]:
    """Its activation, and whether it has a gate."""
    word = values.get("feed_forward_proj", default="relu")
    gate, _, last = str(word).rpartition("-")
    if gate not in ("", "gated"):
        raise values.wrong("feed_forward_proj", "a function, or gated- and a function", word)
    named = {**values.config, "feed_forward_proj": "gelu_new" if word == "gated-gelu" else last}
    return Values(named).function("feed_forward_proj", default="relu"), bool(gate)


def whisper(values: Values) -> Described:
    """Whisper: two convolutions, the second of every other place, before its encoder."""
    vocab, width, mels = (values.size(n) for n in ("vocab_size", "d_model", "num_mel_bins"))
    heard = values.size("max_source_positions", default=1500)
    positions = values.size("max_target_positions", default=448)
    function = values.function("activation_function", default="gelu")

    def sizes(name: str) -> _Sizes:
        heads = values.size(f"{name}_attention_heads")
        if width % heads:
            raise values.wrong("d_model", f"a multiple of {heads} heads", width)
        return _Sizes(
            values.size(f"{name}_layers"), width, heads, width // heads,
            values.size(f"{name}_ffn_dim"), function, "layer", 1e-5, (width // heads) ** -0.5,
            bias=True,
        )  # fmt: skip

    writer = Writer()
    writer.add("source", "frames", positions=2 * heard, width=mels, name="frames of the sound")
    given, channels = "frames", mels
    for place, rows in enumerate((2 * heard, heard)):
        writer.add("rearrange", "near", given, positions=rows, width=3 * channels)
        writer.linear("heard", "near", f"convolution.{place}", f"convolution {place + 1}", "ffn",
                      3 * channels, width, bias=True)  # fmt: skip
        writer.activation("heard", function, width)
        given, channels = "heard", width
    writer.table("sinusoids", "positions", "encoder_positions", heard, width)
    writer.add("add", "heard", "heard", "sinusoids")
    _Stack(writer, sizes("encoder"), "heard").written("memory", "encoder")
    writer.table("x", "tokens", "token_embedding", vocab, width)
    writer.table("places", "positions", "position_embedding", positions, width)
    writer.add("add", "x", "x", "places")
    _Stack(writer, sizes("decoder"), "x", "memory").written("normed", "decoder")
    writer.linear("logits", "normed", "head", "logits", "lm head", width, vocab)
    return Described(values.family, writer.operations, positions, vocab)


ENCODER_DECODERS: dict[str, Callable[[Values], Described]] = {
    "mt5": t5,
    "t5": t5,
    "whisper": whisper,
}
