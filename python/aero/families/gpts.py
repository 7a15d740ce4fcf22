"""GPT-2 and the families whose feed-forward has no gate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aero.families.sizes import Described, network_of, sizes_of, usual
from aero.families.values import Values


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
    sizes = sizes_of(
        values, norm="layer", width=width, heads=values.size("n_head"), table=positions,
        attention_bias=True, output_bias=True, feed_forward_bias=True, **parts,
    )  # fmt: skip
    return network_of(values, sizes, positions=positions)


def _gpt_neox(values: Values) -> Described:
    bias = values.flag("attention_bias", default=True)
    sizes = usual(
        values, norm="layer", parallel=values.flag("use_parallel_residual", default=True),
        function=values.function("hidden_act", default="gelu"), rotary_share=0.25,
        attention_bias=bias, output_bias=bias, feed_forward_bias=True,
    )  # fmt: skip
    return network_of(values, sizes)


def _gptj(values: Values) -> Described:
    width, heads = values.size("n_embd"), values.size("n_head")
    sizes = sizes_of(
        values, norm="layer", width=width, heads=heads, layers=values.size("n_layer"),
        hidden=values.size("n_inner", default=4 * width), parallel=True, one_norm=True,
        rotary=values.size("rotary_dim", default=width // heads), feed_forward_bias=True,
        head_bias=True, function=values.function("activation_function", default="gelu_new"),
    )  # fmt: skip
    return network_of(values, sizes, positions=values.size("n_positions"))


def _gpt_neo(values: Values) -> Described:
    width, positions = values.size("hidden_size"), values.size("max_position_embeddings")
    window, layers = values.size("window_size", default=256), values.size("num_layers")
    types = values.get("attention_types", default=[[["global", "local"], layers // 2]])
    try:
        kinds = [
            kind for cycle, times in types for _ in range(min(times, layers)) for kind in cycle
        ]
    except (TypeError, ValueError):
        kinds = []
    if len(kinds) != layers:
        raise values.wrong("attention_types", f"kinds of {layers} layers", types)
    sizes = sizes_of(
        values, norm="layer", width=width, heads=values.size("num_heads"), table=positions,
        hidden=values.size("intermediate_size", default=4 * width), layers=layers, scale=1.0,
        windows=tuple(window if kind == "local" else 0 for kind in kinds), output_bias=True,
        feed_forward_bias=True, function=values.function("activation_function", default="gelu_new"),
    )  # fmt: skip
    return network_of(values, sizes)


def _gpt_bigcode(values: Values) -> Described:
    width, positions = values.size("n_embd"), values.size("n_positions")
    heads = values.size("n_head")
    sizes = sizes_of(
        values, norm="layer", width=width, heads=heads, table=positions,
        key_heads=1 if values.flag("multi_query", default=True) else heads,
        hidden=values.size("n_inner", default=4 * width), layers=values.size("n_layer"),
        function=values.function("activation_function", default="gelu_pytorch_tanh"),
        attention_bias=True, output_bias=True, feed_forward_bias=True,
    )  # fmt: skip
    return network_of(values, sizes, positions=positions)


def _phi(values: Values) -> Described:
    values.must("qk_layernorm", False, False)
    sizes = usual(
        values, norm="layer", parallel=True, one_norm=True, attention_bias=True, output_bias=True,
        feed_forward_bias=True, head_bias=True, rotary_share=0.5,
        function=values.function("hidden_act", default="gelu_new"),
    )  # fmt: skip
    return network_of(values, sizes)


def _opt(values: Values) -> Described:
    width, positions = values.size("hidden_size"), values.size("max_position_embeddings")
    values.must("do_layer_norm_before", True, True)
    values.must("_remove_final_layer_norm", False, False)
    values.must("word_embed_proj_dim", width, width)
    bias = values.flag("enable_bias", default=True)
    sizes = sizes_of(
        values, norm="layer", width=width, heads=values.size("num_attention_heads"),
        hidden=values.size("ffn_dim"), table=positions + 2, attention_bias=bias, output_bias=bias,
        feed_forward_bias=bias, function=values.function("activation_function", default="relu"),
    )  # fmt: skip
    return network_of(values, sizes, positions=positions)


def _starcoder2(values: Values) -> Described:
    bias = values.flag("use_bias", default=True)
    sizes = usual(
        values, norm="layer", windows=values.windows(values.size("num_hidden_layers")),
        attention_bias=bias, output_bias=bias, feed_forward_bias=bias,
        function=values.function("hidden_act", default="gelu_pytorch_tanh"),
    )  # fmt: skip
    return network_of(values, sizes)


def _falcon(values: Values) -> Described:
    values.must("new_decoder_architecture", False, False)
    values.must("parallel_attn", True, True)
    width, heads = values.size("hidden_size"), values.size("num_attention_heads")
    channels, base = values.rotary(width // heads)
    bias, alibi = values.flag("bias", default=False), values.flag("alibi", default=False)
    sizes = sizes_of(
        values, norm="layer", width=width, heads=heads, parallel=True, one_norm=True,
        key_heads=1 if values.flag("multi_query", default=True) else heads,
        hidden=values.size("ffn_hidden_size", default=4 * width), rotary_base=base,
        rotary=0 if alibi else channels, distance_bias=alibi,
        function=values.function("activation", default="gelu"),
        attention_bias=bias, output_bias=bias, feed_forward_bias=bias,
    )  # fmt: skip
    return network_of(values, sizes, positions=values.size("max_position_embeddings", default=2048))


def _bloom(values: Values) -> Described:
    values.must("apply_residual_connection_post_layernorm", False, False)
    width = values.size("hidden_size", "n_embed")
    sizes = sizes_of(
        values, norm="layer", width=width, heads=values.size("n_head", "num_attention_heads"),
        hidden=4 * width, layers=values.size("n_layer"), function="gelu_tanh", embedding_norm=True,
        distance_bias=True, attention_bias=True, output_bias=True, feed_forward_bias=True,
    )  # fmt: skip
    # Its bias of the scores by distance has no end.
    return network_of(values, sizes, positions=values.size("seq_length", default=2048))


GPTS: dict[str, Callable[[Values], Described]] = {
    "bloom": _bloom,
    "falcon": _falcon,
    "gpt2": _gpt2,
    "gpt_bigcode": _gpt_bigcode,
    "gpt_neo": _gpt_neo,
    "gpt_neox": _gpt_neox,
    "gptj": _gptj,
    "opt": _opt,
    "phi": _phi,
    "starcoder2": _starcoder2,
}
