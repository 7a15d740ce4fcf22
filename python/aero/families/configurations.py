"""The families that have a description, and how their configurations name its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aero.families.decoders import Decoder
from aero.families.encoders import bert, distilbert, roberta
from aero.families.values import Values
from aero.families.writer import Operation


@dataclass(frozen=True)
class Described:
    """The network of a configuration.

    Attributes:
        family: `model_type`.
        operations: as a description lists them.
        positions: how many positions the model has.
        vocab_size: V.
        unpriced: parts that no operation stands for, each in one line.
    """

    family: str
    operations: list[Operation]
    positions: int
    vocab_size: int
    unpriced: tuple[str, ...] = ()


def described(config: Mapping[str, Any]) -> Described:
    """The network that a configuration makes, with its language-model head.

    Args:
        config: the content of a `config.json`.

    Raises:
        ValueError: a family or a setting without description, by name.
    """
    values = Values(config)
    if values.family not in FAMILIES:
        raise ValueError(
            f"configuration: model_type must be one of {', '.join(sorted(FAMILIES))}, got "
            f"{values.family!r}; describe the network in a network.json, or take the nearest label"
        )
    return FAMILIES[values.family](values)


def _sizes(
    values: Values, *, norm: str, width: int, heads: int, hidden: int, function: str,
    head_dim: int | None = None, key_heads: int | None = None, layers: int | None = None,
    **parts: Any,
) -> Decoder:  # fmt: skip
    """A decoder with what its family leaves open as most have it."""
    if head_dim is None:
        if width % heads:
            raise values.wrong("hidden_size", f"a multiple of {heads} heads", width)
        head_dim = width // heads
    number = layers or values.size("num_hidden_layers")
    names = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")
    given = {
        "vocab_size": values.size("vocab_size"),
        "windows": (0,) * number,
        "epsilon": values.number(*names, default=1e-5),
        "scale": head_dim**-0.5,
    }
    return Decoder(
        width=width, heads=heads, key_heads=key_heads or heads, head_dim=head_dim, hidden=hidden,
        function=function, norm=norm, **{**given, **parts},
    )  # fmt: skip


def _usual(values: Values, **parts: Any) -> Decoder:
    """A decoder whose configuration has the names that most have, with rotary positions."""
    width, heads = values.size("hidden_size"), values.size("num_attention_heads")
    head_dim = parts.pop("head_dim", None) or values.size("head_dim", default=width // heads)
    channels, base = values.rotary(head_dim, parts.pop("rotary_share", 1.0))
    given = {
        "hidden": values.size("intermediate_size"),
        "function": values.function("hidden_act", "hidden_activation", default="silu"),
        "key_heads": values.size("num_key_value_heads", default=heads),
        "rotary": channels,
        "rotary_base": base,
    }
    return _sizes(values, width=width, heads=heads, head_dim=head_dim, **{**given, **parts})


def _llama_like(values: Values, **parts: Any) -> Decoder:
    attention = values.flag("attention_bias", default=False)
    given: dict[str, Any] = {
        "norm": "rms",
        "gated": True,
        "windows": values.windows(values.size("num_hidden_layers")),
        "attention_bias": attention,
        "output_bias": attention,
        "feed_forward_bias": values.flag("mlp_bias", default=False),
    }
    return _usual(values, **{**given, **parts})


def _described(values: Values, sizes: Decoder, *unpriced: str, positions: int = 0) -> Described:
    return Described(
        values.family,
        sizes.operations(),
        positions or values.size("max_position_embeddings"),
        sizes.vocab_size,
        unpriced,
    )


def _gpt2(values: Values) -> Described:
    values.must("add_cross_attention", False, False)
    width, positions = values.size("n_embd"), values.size("n_positions")
    parts: dict[str, Any] = {
        "function": values.function("activation_function", default="gelu_new"),
        "hidden": values.size("n_inner", default=4 * width),
        "layers": values.size("n_layer"),
    }
    if not values.flag("scale_attn_weights", default=True):
        parts["scale"] = 1.0
    sizes = _sizes(
        values, norm="layer", width=width, heads=values.size("n_head"), table=positions,
        attention_bias=True, output_bias=True, feed_forward_bias=True, **parts,
    )  # fmt: skip
    return _described(values, sizes, positions=positions)


def _gpt_neox(values: Values) -> Described:
    bias = values.flag("attention_bias", default=True)
    sizes = _usual(
        values, norm="layer", parallel=values.flag("use_parallel_residual", default=True),
        function=values.function("hidden_act", default="gelu"), rotary_share=0.25,
        attention_bias=bias, output_bias=bias, feed_forward_bias=True,
    )  # fmt: skip
    return _described(values, sizes)


def _llama(values: Values) -> Described:
    return _described(values, _llama_like(values))


def _qwen2(values: Values) -> Described:
    windows = values.windows(values.size("num_hidden_layers"), default_on=False)
    return _described(
        values, _llama_like(values, attention_bias=True, output_bias=False, windows=windows)
    )


def _qwen3(values: Values) -> Described:
    windows = values.windows(values.size("num_hidden_layers"), default_on=False)
    head_dim = values.size("head_dim", default=128)
    return _described(
        values, _llama_like(values, head_norms=True, windows=windows, head_dim=head_dim)
    )


def _gemma(values: Values) -> Described:
    return _described(values, _gemma_like(values))


def _gemma_like(values: Values, **parts: Any) -> Decoder:
    act = values.function("hidden_activation", "hidden_act", default="gelu_pytorch_tanh")
    scale = values.number("query_pre_attn_scalar", default=values.size("head_dim", default=256))
    return _llama_like(
        values, function=act, head_dim=values.size("head_dim", default=256), scale=scale**-0.5,
        embedding_scale=values.size("hidden_size") ** 0.5, **parts,
    )  # fmt: skip


def _gemma2(values: Values) -> Described:
    sizes = _gemma_like(
        values, post_norms=True, head_norms=values.family == "gemma3_text",
        soft_cap=values.number("attn_logit_softcapping", default=0.0),
    )  # fmt: skip
    cap = values.number("final_logit_softcapping", default=0.0)
    unpriced = "lm head: the soft cap of the logits has no price; it changes no argmax"
    return _described(values, sizes, *([unpriced] if cap else []))


def _mixtral(values: Values) -> Described:
    experts = values.size("num_local_experts", default=8)
    chosen = values.size("num_experts_per_tok", default=2)
    unpriced = (
        f"ffn: all {experts} experts compute every token, so that routing stays secret",
        f"ffn: the router's softmax and its choice of {chosen} of {experts} experts have no price",
    )
    return _described(values, _llama_like(values, experts=experts), *unpriced)


def _phi(values: Values) -> Described:
    values.must("qk_layernorm", False, False)
    sizes = _usual(
        values, norm="layer", parallel=True, one_norm=True, attention_bias=True, output_bias=True,
        feed_forward_bias=True, head_bias=True, rotary_share=0.5,
        function=values.function("hidden_act", default="gelu_new"),
    )  # fmt: skip
    return _described(values, sizes)


def _phi3(values: Values) -> Described:
    return _described(values, _llama_like(values))


def _opt(values: Values) -> Described:
    width, positions = values.size("hidden_size"), values.size("max_position_embeddings")
    values.must("do_layer_norm_before", True, True)
    values.must("_remove_final_layer_norm", False, False)
    values.must("word_embed_proj_dim", width, width)
    bias = values.flag("enable_bias", default=True)
    sizes = _sizes(
        values, norm="layer", width=width, heads=values.size("num_attention_heads"),
        hidden=values.size("ffn_dim"), table=positions + 2, attention_bias=bias, output_bias=bias,
        feed_forward_bias=bias, function=values.function("activation_function", default="relu"),
    )  # fmt: skip
    return _described(values, sizes, positions=positions)


def _gptj(values: Values) -> Described:
    width, heads = values.size("n_embd"), values.size("n_head")
    sizes = _sizes(
        values, norm="layer", width=width, heads=heads, layers=values.size("n_layer"),
        hidden=values.size("n_inner", default=4 * width), parallel=True, one_norm=True,
        rotary=values.size("rotary_dim", default=width // heads), feed_forward_bias=True,
        head_bias=True, function=values.function("activation_function", default="gelu_new"),
    )  # fmt: skip
    return _described(values, sizes, positions=values.size("n_positions"))


def _starcoder2(values: Values) -> Described:
    bias = values.flag("use_bias", default=True)
    sizes = _usual(
        values, norm="layer", windows=values.windows(values.size("num_hidden_layers")),
        attention_bias=bias, output_bias=bias, feed_forward_bias=bias,
        function=values.function("hidden_act", default="gelu_pytorch_tanh"),
    )  # fmt: skip
    return _described(values, sizes)


def _encoder(write: Callable[[Values], list[Operation]], *, more: int = 0) -> Any:
    def found(values: Values) -> Described:
        values.must("is_decoder", False, False)
        positions = values.size("max_position_embeddings") - more
        return Described(values.family, write(values), positions, values.size("vocab_size"))

    return found


FAMILIES: dict[str, Callable[[Values], Described]] = {
    "bert": _encoder(bert),
    "distilbert": _encoder(distilbert),
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma2,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "gptj": _gptj,
    "llama": _llama,
    "mistral": _llama,
    "mixtral": _mixtral,
    "opt": _opt,
    "phi": _phi,
    "phi3": _phi3,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    # Two positions of its table belong to padding.
    "roberta": _encoder(roberta, more=2),
    "starcoder2": _starcoder2,
}
