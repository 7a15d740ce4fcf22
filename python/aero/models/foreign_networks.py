"""Other people's GPT-2 and Pythia networks as `AeroForCausalLM`, weight by weight.

Read are `GPT2LMHeadModel`, `GPTNeoXForCausalLM`, and every module tree with GPT-2's names (`wte`,
`wpe`, `h`, `ln_1`, `attn.c_attn`, `attn.c_proj`, `ln_2`, `mlp.c_fc`, `mlp.c_proj`, `ln_f`,
`lm_head`), as nanoGPT has them, whatever its classes are; also what `aero.convert` made of them in
place. Weights may lie as [in, out] (Conv1D) or [out, in] (`torch.nn.Linear`). Biases that are
absent become zeros.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import GPT2LMHeadModel, GPTNeoXForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from aero.models.configuration import AeroConfig
from aero.models.converted_in_place import read_converted, read_penalty
from aero.models.foreign_reader import NetworkReader, check_weights, runs_like, unsupported

# `AeroForCausalLM`, which reads checkpoints with this module.
NetworkT = TypeVar("NetworkT", bound=PreTrainedModel)

# Type in config.json -> class, and its dropout rates.
_CHECKPOINTS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "gpt2": (GPT2LMHeadModel, ("attn_pdrop", "resid_pdrop", "embd_pdrop")),
    "gpt_neox": (GPTNeoXForCausalLM, ("attention_dropout", "hidden_dropout")),
}

_SUPPORTED = (
    "a GPT2LMHeadModel, a GPTNeoXForCausalLM, an AeroForCausalLM or a module tree with GPT-2's "
    "names (transformer.wte, wpe, h.0.attn.c_attn, ..., lm_head)"
)


def carried_over(model: nn.Module, network_class: type[NetworkT]) -> NetworkT:
    """See `aero.models.causal_lm.carry_over`; `network_class` is `AeroForCausalLM`."""
    if isinstance(model, network_class):
        if model.config.annealed_from is not None:
            raise ValueError(
                f"the network is being annealed into {model.config.spec.label}; train it to the "
                "end and call finish_annealing(model) first"
            )
        if model.config.gated_parts is not None:
            raise ValueError(
                f"the network has gates on its {', '.join(model.config.gated_parts)}; train it to "
                "the end, where parts at 0 are left out"
            )
        return model
    config, weights = read_network(model)
    with torch.random.fork_rng(devices=[]):  # the weights of the start are of no use
        network = network_class(config)
    first = next(model.parameters())
    nn.Module.to(network, first.device, first.dtype)
    network.load_state_dict(weights)
    if isinstance(model, PreTrainedModel) and model.generation_config is not None:
        network.generation_config = copy.deepcopy(model.generation_config)
    if not runs_like(model, network):
        raise unsupported(
            model,
            "has GPT-2's names but computes something else than GPT-2",
            "copy its weights into an AeroForCausalLM yourself where the parts agree",
        )
    network.train(model.training)
    return network


def load_foreign_network(
    network_class: type[NetworkT], model_type: str, path: Any, *args: Any, **kwargs: Any
) -> NetworkT:
    """Loads a checkpoint of GPT-2 or Pythia; arguments as of `from_pretrained`.

    Its dropout rates, which belong to its training, are not taken over.
    """
    attention = kwargs.pop("attn_implementation", None)
    returns_information = kwargs.pop("output_loading_info", False)
    model_class, dropouts = _CHECKPOINTS[model_type]
    kwargs |= dict.fromkeys(dropouts, 0.0)
    model, information = model_class.from_pretrained(
        path, *args, output_loading_info=True, **kwargs
    )
    network = carried_over(model, network_class)
    network.config._name_or_path = str(path)
    if attention is not None:
        network.set_attn_implementation(attention)
    return (network, information) if returns_information else network  # type: ignore[return-value]


def foreign_model_type(path: Any, **kwargs: Any) -> str | None:
    """The type of a checkpoint that `load_foreign_network` reads; None for any other."""
    config = PreTrainedConfig.get_config_dict(path, **kwargs)[0]
    if not isinstance(config, dict):
        raise ValueError(f"{path}: config.json must hold a mapping, got {type(config).__name__}")
    found = config.get("model_type")
    return found if found in _CHECKPOINTS else None


def read_network(model: nn.Module) -> tuple[AeroConfig, dict[str, Tensor]]:
    """Configuration and weights of a foreign network, in `AeroForCausalLM`'s names and layout.

    Raises:
        ValueError: as `carried_over`.
    """
    return read_penalty(model, *_read_network(model))


def _read_network(model: nn.Module) -> tuple[AeroConfig, dict[str, Tensor]]:
    check_weights(model)
    if isinstance(getattr(model, "aero_config", None), AeroConfig):
        return read_converted(model)
    if isinstance(model, GPTNeoXForCausalLM):
        return _read_gpt_neox(model)
    if isinstance(model, GPT2LMHeadModel) or _has_gpt2_names(model):
        return _read_gpt2(model)
    config = getattr(model, "config", None)
    is_encoder = getattr(config, "model_type", None) in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if is_encoder or getattr(config, "is_encoder_decoder", False):
        raise unsupported(
            model, "is an encoder", f"use a decoder with causal attention: {_SUPPORTED}"
        )
    if type(model).__name__ in ("GPT2Model", "GPTNeoXModel"):
        raise unsupported(model, "has no head", "load it as GPT2LMHeadModel or GPTNeoXForCausalLM")
    raise unsupported(
        model,
        "is of no kind that can be converted",
        f"use {_SUPPORTED}; for attention alone, attn_implementation='aero' serves other models",
    )


def configuration_of(config: PreTrainedConfig) -> AeroConfig | None:
    """The network that a configuration of GPT-2, GPT-NeoX or our own makes; None of all others.

    Its shapes alone are looked at, on the meta device.

    Raises:
        ValueError: AERO networks lack a part of it.
    """
    if isinstance(config, AeroConfig):
        return config
    if config.model_type not in _CHECKPOINTS:
        return None
    # Weights would show it, in `runs_like`.
    if getattr(config, "scale_attn_by_inverse_layer_idx", False):
        raise unsupported(
            config, "has scale_attn_by_inverse_layer_idx", "use a network whose layers are alike"
        )
    model_class, _ = _CHECKPOINTS[config.model_type]
    with torch.device("meta"):
        model = model_class(config)
    read = _read_gpt_neox if config.model_type == "gpt_neox" else _read_gpt2
    found, _ = read(model)
    return found


def _has_gpt2_names(model: nn.Module) -> bool:
    tree = getattr(model, "transformer", None)
    return all(hasattr(tree, name) for name in ("wte", "wpe", "h", "ln_f")) and hasattr(
        model, "lm_head"
    )


def _read_gpt2(model: Any) -> tuple[AeroConfig, dict[str, Tensor]]:
    tree = model.transformer
    reader = NetworkReader(model)
    reader.embedding("transformer.wte", tree.wte)
    reader.embedding("transformer.wpe", tree.wpe)
    width = tree.wte.weight.shape[1]
    num_heads = _num_heads(model, tree.h[0].attn, width)
    for index, block in enumerate(tree.h):
        _check_gpt2_block(model, index, block)
        prefix = f"transformer.h.{index}"
        is_transposed = _is_conv1d(model, index, block.attn.c_attn.weight, width)
        for name in ("ln_1", "ln_2"):
            reader.norm(f"{prefix}.{name}", getattr(block, name))
        for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"):
            layer = block.get_submodule(name)
            reader.linear(f"{prefix}.{name}", layer, is_transposed=is_transposed)
        reader.change(f"{prefix}.attn.c_attn", _query_scaling(block.attn, width // num_heads))
        reader.feed_forward(block.mlp)
    reader.norm("transformer.ln_f", tree.ln_f)
    reader.head(model.lm_head, tree.wte)
    return reader.network(
        num_layers=len(tree.h), num_heads=num_heads, context_length=tree.wpe.weight.shape[0]
    )


def _read_gpt_neox(model: Any) -> tuple[AeroConfig, dict[str, Tensor]]:
    tree, source = model.gpt_neox, model.config
    rope = source.rope_parameters
    if rope.get("rope_type", "default") != "default":
        raise unsupported(
            model, f"has rotary positions of type {rope['rope_type']!r}", "use the default type"
        )
    reader = NetworkReader(model)
    reader.embedding("transformer.wte", tree.embed_in)
    for index, layer in enumerate(tree.layers):
        prefix = f"transformer.h.{index}"
        reader.norm(f"{prefix}.ln_1", layer.input_layernorm)
        reader.norm(f"{prefix}.ln_2", layer.post_attention_layernorm)
        reader.linear(f"{prefix}.attn.c_attn", layer.attention.query_key_value)
        reader.change(f"{prefix}.attn.c_attn", _grouping_by_kind(source.num_attention_heads))
        reader.linear(f"{prefix}.attn.c_proj", layer.attention.dense)
        reader.linear(f"{prefix}.mlp.c_fc", layer.mlp.dense_h_to_4h)
        reader.linear(f"{prefix}.mlp.c_proj", layer.mlp.dense_4h_to_h)
        reader.feed_forward(layer.mlp)
    reader.norm("transformer.ln_f", tree.final_layer_norm)
    reader.head(model.get_output_embeddings(), tree.embed_in)
    return reader.network(
        family="pythia",
        num_layers=len(tree.layers),
        num_heads=source.num_attention_heads,
        context_length=source.max_position_embeddings,
        rotary_fraction=float(rope.get("partial_rotary_factor", 1.0)),
        rotary_base=float(rope["rope_theta"]),
        parallel_residual=source.use_parallel_residual,
    )


def _grouping_by_kind(num_heads: int) -> Callable[[Tensor], Tensor]:
    """Rows [head, (query, key, value), D] of GPT-NeoX as [(query, key, value), head, D]."""

    def group(rows: Tensor) -> Tensor:
        return rows.view(num_heads, 3, -1, *rows.shape[1:]).transpose(0, 1).flatten(0, 2)

    return group


def _query_scaling(attention: Any, head_dim: int) -> Callable[[Tensor], Tensor]:
    """Makes the scores' scale 1 / sqrt(D) by a factor of the first third of the rows, queries."""
    factor = float(getattr(attention, "scaling", head_dim**-0.5)) * math.sqrt(head_dim)
    if math.isclose(factor, 1.0, rel_tol=1e-12):
        return lambda rows: rows

    def scale(rows: Tensor) -> Tensor:
        query, key, value = rows.chunk(3)
        return torch.cat((factor * query, key, value))

    return scale


def _num_heads(model: Any, attention: Any, width: int) -> int:
    config = getattr(model, "config", None)
    for owner, name in (
        (attention, "num_heads"),
        (attention, "n_head"),
        (config, "n_head"),
        (config, "num_attention_heads"),
    ):
        count = getattr(owner, name, None)
        if isinstance(count, int):
            if width % count:
                raise unsupported(
                    model,
                    f"has {count} heads, which do not divide its width {width}",
                    "convert networks whose head width is width / heads",
                )
            return count
    raise unsupported(model, "does not say how many heads it has", "set attn.n_head on every block")


def _check_gpt2_block(model: Any, index: int, block: Any) -> None:
    paths = ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
    present = {name for name, _ in block.named_modules()}
    missing = [path for path in paths if path not in present]
    if hasattr(block, "crossattention"):
        raise unsupported(
            model, "has cross-attention", "convert a decoder: GPT2Config(add_cross_attention=False)"
        )
    if missing:
        raise unsupported(
            model,
            f"has no h.{index}.{missing[0]}",
            "give its blocks GPT-2's names",
        )


def _is_conv1d(model: Any, index: int, weight: Tensor, width: int) -> bool:
    """Returns whether weights lie as [in, out]; `c_attn` is never square, so its shape says so."""
    shape = tuple(weight.shape)
    if shape not in ((width, 3 * width), (3 * width, width)):
        raise unsupported(
            model,
            f"has h.{index}.attn.c_attn.weight of shape {list(shape)} at width {width}",
            f"it must be [{3 * width}, {width}] or its transpose: query, key and value of all "
            "heads, with heads as wide as width / heads",
        )
    return shape[0] == width
