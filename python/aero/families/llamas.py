"""Llama and the families whose feed-forward has a gate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from aero.families.decoders import Decoder
from aero.families.deepseek import deepseek
from aero.families.mixtures import routing
from aero.families.sizes import Described, network_of, usual
from aero.families.sparse import gpt_oss, qwen3_moe
from aero.families.values import Values


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
    return usual(values, **{**given, **parts})


def _llama(values: Values) -> Described:
    return network_of(values, _llama_like(values))


def _qwen2(values: Values) -> Described:
    windows = values.windows(values.size("num_hidden_layers"), default_on=False)
    return network_of(
        values, _llama_like(values, attention_bias=True, output_bias=False, windows=windows)
    )


def _qwen3(values: Values) -> Described:
    windows = values.windows(values.size("num_hidden_layers"), default_on=False)
    head_dim = values.size("head_dim", default=128)
    return network_of(
        values, _llama_like(values, head_norms=True, windows=windows, head_dim=head_dim)
    )


def _gemma(values: Values) -> Described:
    return network_of(values, _gemma_like(values))


def _gemma_like(values: Values, **parts: Any) -> Decoder:
    act = values.function("hidden_activation", "hidden_act", default="gelu_pytorch_tanh")
    head_dim = values.size("head_dim", default=256)
    scale = values.size("query_pre_attn_scalar", default=head_dim)
    return _llama_like(
        values, function=act, head_dim=head_dim, scale=scale**-0.5,
        embedding_scale=values.size("hidden_size") ** 0.5, **parts,
    )  # fmt: skip


def _gemma2(values: Values) -> Described:
    sizes = _gemma_like(
        values, post_norms=True, head_norms=values.family == "gemma3_text",
        soft_cap=values.number("attn_logit_softcapping", default=0.0),
    )  # fmt: skip
    cap = values.number("final_logit_softcapping", default=0.0)
    told = (
        "lm head: the soft cap of the logits is a tanh of each; it changes no argmax, so that the "
        "next token is the same without it (final_logit_softcapping null)"
    )
    return network_of(values, replace(sizes, head_cap=cap), *([told] if cap else []))


def _mixtral(values: Values) -> Described:
    experts = values.size("num_local_experts", default=8)
    chosen = values.size("num_experts_per_tok", default=2)
    routed, told = routing(values, experts, chosen, normalized=True)
    return network_of(values, _llama_like(values, **routed), *told)


def _granite(values: Values) -> Described:
    # Its multipliers are public and go into the weights.
    scale = values.number("attention_multiplier", default=1.0)
    return network_of(values, _llama_like(values, scale=scale))


def _stablelm(values: Values) -> Described:
    values.must("qk_layernorm", False, False)
    values.must("use_parallel_residual", False, False)
    bias = values.flag("use_qkv_bias", default=False)
    return network_of(
        values, usual(values, norm="layer", gated=True, attention_bias=bias, rotary_share=0.25)
    )


def _cohere(values: Values) -> Described:
    values.must("use_qk_norm", False, False)
    bias = values.flag("attention_bias", default=False)
    sizes = usual(
        values, norm="layer", norm_bias=False, gated=True, parallel=True, one_norm=True,
        attention_bias=bias, output_bias=bias,
    )  # fmt: skip
    return network_of(values, sizes)


LLAMAS: dict[str, Callable[[Values], Described]] = {
    "cohere": _cohere,
    "deepseek_v2": deepseek,
    "deepseek_v3": deepseek,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma2,
    "gpt_oss": gpt_oss,
    "granite": _granite,
    "llama": _llama,
    "mistral": _llama,
    "mixtral": _mixtral,
    "phi3": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": qwen3_moe,
    "stablelm": _stablelm,
}
