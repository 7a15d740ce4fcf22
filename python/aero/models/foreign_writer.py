"""Models of `transformers` as descriptions (`aero.network`), with their weights or as shapes alone.

GPT-2, GPT-NeoX and nanoGPT are AERO networks and are described as those. Here are families that no
label names; `aero.families` has their operations, and this module adds the weights.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, PretrainedConfig

from aero.families.configurations import described
from aero.models.causal_lm import AeroForCausalLM, carry_over
from aero.models.foreign_networks import configuration_of
from aero.models.network_writer import as_array, described_network
from aero.network.description import Network, network_of

Weights = Iterator[tuple[str, Tensor]]


def describe_model(model: nn.Module | PretrainedConfig) -> Network:
    """Describes a model, or the model that a configuration makes.

    Args:
        model: with its weights, which are rounded to float32 (float64 of a float64 model); or a
            configuration of aero, bert, bloom, gemma, gpt2, gpt_neox, llama, mistral, phi, qwen2,
            qwen3, stablelm or starcoder2, whose tensors are zeros that take no memory.

    Returns:
        The network of evaluation mode; a BERT may be given the lengths of padded sequences.

    Raises:
        ValueError: a family or a setting that has no description yet, by name; a model with
            adapters or without language-model head; or a configuration of another family; with the
            way out.

    Example:
        >>> from aero.models.foreign_writer import describe_model
        >>> from transformers import LlamaConfig
        >>> network = describe_model(LlamaConfig(num_hidden_layers=2))
        >>> [one.name for one in network.operations()][-2:]
        ['final norm', 'logits']
    """
    if isinstance(model, PretrainedConfig):
        model = _model_of(model)
    config: Any = getattr(model, "config", None)
    weights_of = _FAMILIES.get(getattr(config, "model_type", ""))
    if weights_of is None:
        return described_network(carry_over(model))
    _check_parts(model, config)
    found = described(config.to_dict())
    _check_angles(config)
    dtype = torch.float64 if next(model.parameters()).dtype == torch.float64 else torch.float32
    return network_of(
        found.operations,
        {name: as_array(tensor, dtype) for name, tensor in weights_of(model)},
        label=found.family,
        spec=None,
        context_length=found.positions,
        vocab_size=found.vocab_size,
    )


def _model_of(config: PretrainedConfig) -> nn.Module:
    """The model of a configuration, on the meta device."""
    own = configuration_of(config)
    if own is None and config.model_type not in _FAMILIES:
        raise ValueError(
            f"describe_model: a configuration must be of aero, gpt2, gpt_neox, "
            f"{', '.join(_FAMILIES)}, got {type(config).__name__}; give the model itself, or take "
            "a label: aero.ArchitectureSpec.from_label; aero.mpc.simulate prices more families"
        )
    head: Any = AutoModelForMaskedLM if config.model_type == "bert" else AutoModelForCausalLM
    with torch.device("meta"):
        return (
            AeroForCausalLM(own) if own is not None else cast(nn.Module, head.from_config(config))
        )


def _check_parts(model: nn.Module, config: Any) -> None:
    """Refuses a model without the parts whose weights its family has."""
    is_bert = config.model_type == "bert"
    parts = {name for name, _ in model.named_modules()}
    if any(name.endswith(".base_layer") for name in parts):
        raise ValueError(
            f"describe_model: {type(model).__name__} must have no adapters, got some in its "
            "layers; merge them into the weights: merge_and_unload()"
        )
    embeddings = _EMBEDDINGS.get(config.model_type, "model.embed_tokens")
    needed = {embeddings, "cls.predictions" if is_bert else "lm_head"}
    if not needed <= parts and not getattr(config, "is_decoder", False):
        takes = "AutoModelForMaskedLM" if is_bert else "AutoModelForCausalLM"
        raise ValueError(
            f"describe_model: {type(model).__name__} must have a language-model head, got no "
            f"{' and '.join(sorted(needed - parts))}; load it as {takes}"
        )


def _check_angles(config: Any) -> None:
    """Refuses rotary positions that the description cannot compute, though it can price them."""
    rope = getattr(config, "rope_parameters", None) or {}
    is_whole = rope.get("partial_rotary_factor", 1) == 1 or config.model_type in _TURN_IN_PART
    if rope.get("rope_type", "default") != "default" or not is_whole:
        raise ValueError(
            f"describe_model: rope_parameters of {config.model_type} must be of the default type, "
            f"got {rope}"
        )


def _linear(key: str, *layers: Any) -> Weights:
    """The weights [out, in] of all layers side by side, as [in, out]."""
    yield f"{key}.weight", torch.cat([each.weight.detach() for each in layers]).t()
    if layers[0].bias is not None:
        yield f"{key}.bias", torch.cat([each.bias.detach() for each in layers])


def _norm(key: str, norm: Any, more: float = 0.0) -> Weights:
    yield f"{key}.weight", norm.weight + more if more else norm.weight
    if getattr(norm, "bias", None) is not None:
        yield f"{key}.bias", norm.bias


def _llama(model: Any, more: float = 0.0) -> Weights:
    """Llama and its like; the gains of their norms are stored without `more`."""
    yield "token_embedding", model.model.embed_tokens.weight
    for index, layer in enumerate(model.model.layers):
        own, attention, mlp = f"layers.{index}", layer.self_attn, layer.mlp
        yield from _norm(f"{own}.norm_1", layer.input_layernorm, more)
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        yield from _linear(f"{own}.attention.projection", *projections)
        if hasattr(attention, "q_norm"):
            yield from _norm(f"{own}.attention.queries_norm", attention.q_norm)
            yield from _norm(f"{own}.attention.keys_norm", attention.k_norm)
        yield from _linear(f"{own}.attention.output", attention.o_proj)
        yield from _norm(f"{own}.norm_2", layer.post_attention_layernorm, more)
        for value in ("gate", "up", "down"):
            yield from _linear(f"{own}.feed_forward.{value}", getattr(mlp, f"{value}_proj"))
    yield from _norm("final_norm", model.model.norm, more)
    yield from _linear("head", model.lm_head)


def _phi(model: Any) -> Weights:
    """Phi and StarCoder 2: feed-forwards without a gate."""
    yield "token_embedding", model.model.embed_tokens.weight
    for index, layer in enumerate(model.model.layers):
        own, attention, mlp = f"layers.{index}", layer.self_attn, layer.mlp
        yield from _norm(f"{own}.norm_1", layer.input_layernorm)
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        yield from _linear(f"{own}.attention.projection", *projections)
        is_phi = hasattr(attention, "dense")
        yield from _linear(
            f"{own}.attention.output", attention.dense if is_phi else attention.o_proj
        )
        if not is_phi:
            yield from _norm(f"{own}.norm_2", layer.post_attention_layernorm)
        yield from _linear(f"{own}.feed_forward.0", mlp.fc1 if is_phi else mlp.c_fc)
        yield from _linear(f"{own}.feed_forward.1", mlp.fc2 if is_phi else mlp.c_proj)
    final = model.model.final_layernorm if is_phi else model.model.norm
    yield from _norm("final_norm", final)
    yield from _linear("head", model.lm_head)


def _bloom(model: Any) -> Weights:
    """BLOOM, whose scores have a bias by distance (ALiBi)."""
    inner, heads = model.transformer, model.config.n_head
    yield "token_embedding", inner.word_embeddings.weight
    yield from _norm("embedding_norm", inner.word_embeddings_layernorm)
    device = model.lm_head.weight.device  # meta, of a configuration alone
    yield "distance_bias", _alibi(heads, described(model.config.to_dict()).positions).to(device)
    for index, layer in enumerate(inner.h):
        own, attention = f"layers.{index}", layer.self_attention
        yield from _norm(f"{own}.norm_1", layer.input_layernorm)
        # Query, key and value of a head stand side by side.
        for role, tensor in _linear(f"{own}.attention.projection", attention.query_key_value):
            parts = tensor.reshape(*tensor.shape[:-1], heads, 3, -1).transpose(-3, -2)
            yield role, parts.flatten(-3)
        yield from _linear(f"{own}.attention.output", attention.dense)
        yield from _norm(f"{own}.norm_2", layer.post_attention_layernorm)
        yield from _linear(f"{own}.feed_forward.0", layer.mlp.dense_h_to_4h)
        yield from _linear(f"{own}.feed_forward.1", layer.mlp.dense_4h_to_h)
    yield from _norm("final_norm", inner.ln_f)
    yield from _linear("head", model.lm_head)


def _alibi(heads: int, context: int) -> Tensor:
    """[H, 2 T - 1], -slope (i - j) of each head and distance (Press et al. 2022).

    Slopes are powers of 2^(-8 / n) of the largest power of two n <= H; further heads take every
    second power of 2^(-4 / n).
    """
    whole = 2 ** (heads.bit_length() - 1)
    powers = [8 * (one + 1) / whole for one in range(whole)]
    powers += [4 * (2 * one + 1) / whole for one in range(heads - whole)]
    distances = torch.arange(1 - context, context, dtype=torch.float64)
    slopes = 2 ** -torch.tensor(powers, dtype=torch.float64)
    return -slopes[:, None] * distances


def _bert(model: Any) -> Weights:
    """All tokens of the first type, with the head that fills in masked tokens."""
    embeddings, head = model.bert.embeddings, model.cls.predictions
    yield "token_embedding", embeddings.word_embeddings.weight
    # The first type is the same at every position.
    types = embeddings.token_type_embeddings.weight.detach()
    yield "position_embedding", embeddings.position_embeddings.weight.detach() + types[0]
    yield from _norm("embedding_norm", embeddings.LayerNorm)
    for index, layer in enumerate(model.bert.encoder.layer):
        own, attention = f"layers.{index}", layer.attention
        inner = attention.self
        yield from _linear(f"{own}.attention.projection", inner.query, inner.key, inner.value)
        yield from _linear(f"{own}.attention.output", attention.output.dense)
        yield from _norm(f"{own}.norm_1", attention.output.LayerNorm)
        yield from _linear(f"{own}.feed_forward.0", layer.intermediate.dense)
        yield from _linear(f"{own}.feed_forward.1", layer.output.dense)
        yield from _norm(f"{own}.norm_2", layer.output.LayerNorm)
    yield from _linear("head.transform", head.transform.dense)
    yield from _norm("head.norm", head.transform.LayerNorm)
    yield from _linear("head", head.decoder)


_FAMILIES: dict[str, Callable[[Any], Weights]] = {
    "bert": _bert,
    "bloom": _bloom,
    "gemma": functools.partial(_llama, more=1.0),
    "llama": _llama,
    "mistral": _llama,
    "phi": _phi,
    "qwen2": _llama,
    "qwen3": _llama,
    "stablelm": _llama,
    "starcoder2": _phi,
}
# Where the token embeddings are not `model.embed_tokens`.
_EMBEDDINGS = {"bert": "bert", "bloom": "transformer.word_embeddings"}
# Families that turn a part of the channels of each head.
_TURN_IN_PART = frozenset({"phi", "stablelm"})
