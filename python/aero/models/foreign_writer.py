"""Models of `transformers` as descriptions (`aero.network`), with their weights or as shapes alone.

GPT-2, GPT-NeoX and nanoGPT are AERO networks and are described as those. Here are the families that
no label names: Llama and its like (RMSNorm, rotary positions, grouped key heads, SwiGLU, windows)
and BERT with its masked-language-model head.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, PretrainedConfig

from aero.models.causal_lm import carry_over
from aero.models.network_writer import described_network
from aero.network.description import Network, network_of

Operation = dict[str, Any]

# The words of transformers' configurations for activations, and ours.
_FUNCTIONS = {
    "silu": "silu",
    "relu": "relu",
    "gelu": "gelu_erf",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


def describe_model(model: nn.Module | PretrainedConfig) -> Network:
    """Describes a model, or the model that a configuration makes.

    Args:
        model: with its weights, which are rounded to float32 (float64 of a float64 model); or a
            configuration of llama, mistral, qwen2 or bert, whose tensors are zeros that take no
            memory.

    Returns:
        The network of evaluation mode, over sequences without padding.

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
        if model.model_type not in _FAMILIES:
            raise ValueError(
                "describe_model: a configuration must be of llama, mistral, qwen2 or bert, got "
                f"{type(model).__name__}; give the model itself, or take a label: "
                "aero.ArchitectureSpec.from_label and aero.mpc.simulate"
            )
        head: Any = AutoModelForMaskedLM if model.model_type == "bert" else AutoModelForCausalLM
        with torch.device("meta"):
            model = cast(nn.Module, head.from_config(model))
    config: Any = getattr(model, "config", None)
    write = _FAMILIES.get(getattr(config, "model_type", ""))
    if write is None:
        return described_network(carry_over(model))
    _check_parts(model, config)
    dtype = torch.float64 if next(model.parameters()).dtype == torch.float64 else torch.float32
    operations, tensors = write(model, config)
    arrays = {name: _array(tensor, dtype) for name, tensor in tensors.items()}
    return network_of(
        operations,
        arrays,
        label=config.model_type,
        spec=None,
        context_length=config.max_position_embeddings,
        vocab_size=config.vocab_size,
    )


def _check_parts(model: nn.Module, config: Any) -> None:
    """Refuses a model without the parts that its family's writer reads."""
    is_bert = config.model_type == "bert"
    parts = {name for name, _ in model.named_modules()}
    if any(name.endswith(".base_layer") for name in parts):
        raise ValueError(
            f"describe_model: {type(model).__name__} must have no adapters, got some in its "
            "layers; merge them into the weights: merge_and_unload()"
        )
    needed = {"bert", "cls.predictions"} if is_bert else {"model.embed_tokens", "lm_head"}
    if not needed <= parts:
        takes = "AutoModelForMaskedLM" if is_bert else "AutoModelForCausalLM"
        raise ValueError(
            f"describe_model: {type(model).__name__} must have a language-model head, got no "
            f"{' and '.join(sorted(needed - parts))}; load it as {takes}"
        )
    if getattr(config, "is_decoder", False):
        raise ValueError(
            f"describe_model: is_decoder of {config.model_type} must be false, got true: its "
            "attention is described as an encoder's; take a decoder such as GPT-2 or Llama"
        )


def _array(tensor: Tensor, dtype: torch.dtype) -> Any:
    if tensor.is_meta:
        return np.broadcast_to(np.float32(0), tuple(tensor.shape))
    return tensor.detach().cpu().to(dtype).contiguous().numpy()


class _Writer:
    """Collects operations, and the tensors of their weights."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.tensors: dict[str, Tensor] = {}

    def add(self, op: str, output: str, *inputs: str, name: str = "", part: str = "",
            weights: dict[str, str] | None = None, **fields: Any) -> str:  # fmt: skip
        """Adds an operation; returns its output."""
        entry = {"op": op, "name": name, "part": part, "inputs": list(inputs), "output": output}
        own: dict[str, Any] = {"weights": weights} if weights else {}
        self.operations.append({**entry, **fields, **own})
        return output

    def linear(self, output: str, given: str, key: str, name: str, part: str,
               *layers: tuple[Tensor, Tensor | None], layer: int | None = None) -> str:  # fmt: skip
        """A product with the weights [out, in] of all layers side by side."""
        weight = torch.cat([each.detach() for each, _ in layers]).t()
        biases = [bias for _, bias in layers if bias is not None]
        weights = {"weight": self.keep(f"{key}.weight", weight, layer)}
        if biases:
            weights["bias"] = self.keep(f"{key}.bias", torch.cat(biases), layer)
        sizes: dict[str, Any] = {"in": weight.shape[0], "out": weight.shape[1], "transposed": False}
        return self.add("linear", output, given, name=name, part=part, weights=weights, **sizes)

    def keep(self, key: str, tensor: Tensor, layer: int | None) -> str:
        """Keeps a tensor; returns its name, with a place for the layer's number."""
        if layer is None:
            self.tensors[key] = tensor
            return key
        self.tensors[f"layers.{layer}.{key}"] = tensor
        return f"layers.{{layer}}.{key}"

    def norm(self, output: str, given: str, key: str, name: str, module: Any, epsilon: float,
             *, layer: int | None = None) -> str:  # fmt: skip
        """A LayerNorm, or an RMSNorm where the module has no bias."""
        bias = getattr(module, "bias", None)
        weights = {"weight": self.keep(f"{key}.weight", module.weight, layer)}
        if bias is not None:
            weights["bias"] = self.keep(f"{key}.bias", bias, layer)
        kind = "rms" if bias is None else "layer"
        return self.add(
            "norm", output, given, name=name, part="layernorm", weights=weights, kind=kind,
            width=module.weight.shape[0], epsilon=epsilon,
        )  # fmt: skip

    def attention(
        self, given: str, heads: int, key_heads: int, width: int, *, causal: bool, window: int = 0,
        rotary_base: float | None = None,
    ) -> str:  # fmt: skip
        """Heads of a joined projection, [B, T, (H + 2 G) D] to [B, T, H D]."""
        start = 0
        for name, count in (("queries", heads), ("keys", key_heads), ("values", key_heads)):
            self.add("split_heads", name, given, start=start, heads=count, head_dim=width)
            start += count * width
        if rotary_base is not None:
            for name, count in (("queries", heads), ("keys", key_heads)):
                self.add("rotate", name, name, name=name, part="QK", heads=count, channels=width,
                         base=rotary_base)  # fmt: skip
        sizes: dict[str, Any] = {"heads": heads, "key_heads": key_heads, "head_dim": width}
        self.add(
            "scores", "scores", "queries", "keys", name="scores", part="QK", **sizes,
            scale=1 / math.sqrt(width), temperature=False, per_position=False, soft_cap=0.0,
        )  # fmt: skip
        self.add("softmax", "weights", "scores", name="softmax", part="softmax", heads=heads,
                 causal=causal, window=window)  # fmt: skip
        self.add("weighted_sum", "heads", "weights", "values", name="heads", part="PV", **sizes)
        return self.add("join_heads", "joined", "heads")

    def layers(
        self, blocks: Any, write: Callable[[Any, int], None], kind: Callable[[int], Any]
    ) -> None:
        """Writes the layers, and repeats those of one kind."""
        outside = self.operations
        for _, run in itertools.groupby(enumerate(blocks), key=lambda each: kind(each[0])):
            written = []
            for index, block in run:
                self.operations = []
                write(block, index)
                written.append(self.operations)
            outside.append({"repeat": len(written), "operations": written[0]})
        self.operations = outside


def _llama(model: Any, config: Any) -> tuple[list[Operation], dict[str, Tensor]]:
    writer, decoder = _Writer(), model.model
    rope = config.rope_parameters
    if rope.get("rope_type", "default") != "default" or rope.get("partial_rotary_factor", 1) != 1:
        raise ValueError(
            f"describe_model: rope_parameters of {config.model_type} must be of the default type, "
            f"got {rope}"
        )
    heads = config.num_attention_heads
    key_heads = config.num_key_value_heads or heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    epsilon, function = config.rms_norm_eps, _function(config.hidden_act, config)

    def window(layer: int) -> int:
        kinds = getattr(config, "layer_types", None)
        is_sliding = kinds[layer] == "sliding_attention" if kinds else True
        return int(getattr(config, "sliding_window", None) or 0) if is_sliding else 0

    def block(layer: Any, index: int) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        normed = writer.norm("normed", "x", "norm_1", "norm before attention",
                             layer.input_layernorm, epsilon, layer=index)  # fmt: skip
        projections = [getattr(attention, f"{one}_proj") for one in "qkv"]
        writer.linear(
            "projected", normed, "attention.projection", "queries, keys, values", "qkv/proj",
            *((one.weight, one.bias) for one in projections), layer=index,
        )  # fmt: skip
        joined = writer.attention(
            "projected", heads, key_heads, width, causal=True, window=window(index),
            rotary_base=float(rope["rope_theta"]),
        )  # fmt: skip
        output = (attention.o_proj.weight, attention.o_proj.bias)
        writer.linear("attended", joined, "attention.output", "projection", "qkv/proj", output,
                      layer=index)  # fmt: skip
        writer.add("add", "x", "x", "attended")
        normed = writer.norm("normed", "x", "norm_2", "norm before FFN",
                             layer.post_attention_layernorm, epsilon, layer=index)  # fmt: skip
        for value, own in (("gate", mlp.gate_proj), ("up", mlp.up_proj)):
            writer.linear(value, normed, f"feed_forward.{value}", f"FFN, {value}", "ffn",
                          (own.weight, own.bias), layer=index)  # fmt: skip
        hidden = mlp.gate_proj.weight.shape[0]
        writer.add("activation", "gate", "gate", name="activation", part="act", function=function,
                   width=hidden, slope=0.0)  # fmt: skip
        writer.add("multiply", "hidden", "gate", "up", name="gate times up", part="act",
                   width=hidden)  # fmt: skip
        down = (mlp.down_proj.weight, mlp.down_proj.bias)
        writer.linear("fed", "hidden", "feed_forward.down", "FFN, out", "ffn", down, layer=index)
        writer.add("add", "x", "x", "fed")

    table = decoder.embed_tokens.weight
    weights = {"weight": writer.keep("token_embedding", table, None)}
    writer.add("embed", "x", "tokens", name="token embedding", part="embed", rows=table.shape[0],
               width=table.shape[1], weights=weights)  # fmt: skip
    writer.layers(decoder.layers, block, window)
    writer.norm("normed", "x", "final_norm", "final norm", decoder.norm, epsilon)
    head = (model.lm_head.weight, model.lm_head.bias)
    writer.linear("logits", "normed", "head", "logits", "lm head", head)
    return writer.operations, writer.tensors


def _bert(model: Any, config: Any) -> tuple[list[Operation], dict[str, Tensor]]:
    """All tokens of the first type, with the head that fills in masked tokens."""
    writer, encoder, head = _Writer(), model.bert, model.cls.predictions
    epsilon, heads = config.layer_norm_eps, config.num_attention_heads
    width, function = config.hidden_size, _function(config.hidden_act, config)
    if getattr(config, "position_embedding_type", "absolute") != "absolute":
        raise ValueError("describe_model: positions of bert must be absolute")
    embeddings = encoder.embeddings
    tables = {
        "tokens": embeddings.word_embeddings.weight,
        # The first type is the same at every position.
        "positions": embeddings.position_embeddings.weight.detach()
        + embeddings.token_type_embeddings.weight.detach()[0],
    }
    for (given, table), output in zip(tables.items(), ("x", "places"), strict=True):
        key = "token_embedding" if given == "tokens" else "position_embedding"
        writer.add("embed", output, given, name=key.replace("_", " "), part="embed",
                   rows=table.shape[0], width=width,
                   weights={"weight": writer.keep(key, table, None)})  # fmt: skip
    writer.add("add", "x", "x", "places")
    writer.norm("x", "x", "embedding_norm", "norm of embeddings", embeddings.LayerNorm, epsilon)

    def activation(value: str, size: int) -> None:
        writer.add("activation", value, value, name="activation", part="act", function=function,
                   width=size, slope=0.0)  # fmt: skip

    def dense(output: str, given: str, key: str, name: str, part: str, layer: Any,
              index: int | None = None) -> None:  # fmt: skip
        writer.linear(output, given, key, name, part, (layer.weight, layer.bias), layer=index)

    def block(layer: Any, index: int) -> None:
        own, after = layer.attention.self, layer.attention.output
        writer.linear(
            "projected", "x", "attention.projection", "queries, keys, values", "qkv/proj",
            *((one.weight, one.bias) for one in (own.query, own.key, own.value)), layer=index,
        )  # fmt: skip
        joined = writer.attention("projected", heads, heads, width // heads, causal=False)
        dense("attended", joined, "attention.output", "projection", "qkv/proj", after.dense, index)
        writer.add("add", "x", "x", "attended")
        writer.norm("x", "x", "norm_1", "norm after attention", after.LayerNorm, epsilon,
                    layer=index)  # fmt: skip
        dense("hidden", "x", "feed_forward.0", "FFN, in", "ffn", layer.intermediate.dense, index)
        activation("hidden", config.intermediate_size)
        dense("fed", "hidden", "feed_forward.1", "FFN, out", "ffn", layer.output.dense, index)
        writer.add("add", "x", "x", "fed")
        writer.norm("x", "x", "norm_2", "norm after FFN", layer.output.LayerNorm, epsilon,
                    layer=index)  # fmt: skip

    writer.layers(encoder.encoder.layer, block, lambda _: None)
    dense("hidden", "x", "head.transform", "transform", "lm head", head.transform.dense)
    activation("hidden", width)
    writer.norm("hidden", "hidden", "head.norm", "final norm", head.transform.LayerNorm, epsilon)
    dense("logits", "hidden", "head", "logits", "lm head", head.decoder)
    return writer.operations, writer.tensors


def _function(word: str, config: Any) -> str:
    if word not in _FUNCTIONS:
        raise ValueError(
            f"describe_model: hidden_act of {config.model_type} must be one of "
            f"{', '.join(_FUNCTIONS)}, got {word!r}"
        )
    return _FUNCTIONS[word]


_FAMILIES = {"llama": _llama, "mistral": _llama, "qwen2": _llama, "bert": _bert}
