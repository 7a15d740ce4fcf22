"""Other people's GPT-2 and Pythia networks as `AeroForCausalLM`, weight by weight.

Read are `GPT2LMHeadModel`, `GPTNeoXForCausalLM`, and every module tree with GPT-2's names (`wte`,
`wpe`, `h`, `ln_1`, `attn.c_attn`, `attn.c_proj`, `ln_2`, `mlp.c_fc`, `mlp.c_proj`, `ln_f`,
`lm_head`), as nanoGPT has them, whatever its classes are. Weights may lie as [in, out] (Conv1D) or
[out, in] (`torch.nn.Linear`). Biases that are absent become zeros.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GPT2LMHeadModel, GPTNeoXForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from aero.architecture import ArchitectureSpec
from aero.models.causal_lm import AeroForCausalLM
from aero.models.configuration import AeroConfig
from aero.models.foreign_modules import (
    activation_of,
    check_layer_norm,
    check_weights,
    matrix_of,
    runs_like,
    unsupported,
    zeros_for_absent,
)
from aero.nn import Block

Weights = dict[str, Tensor]

# Type in config.json -> class, and its dropout rates.
_CHECKPOINTS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "gpt2": (GPT2LMHeadModel, ("attn_pdrop", "resid_pdrop", "embd_pdrop")),
    "gpt_neox": (GPTNeoXForCausalLM, ("attention_dropout", "hidden_dropout")),
}

_SUPPORTED = (
    "a GPT2LMHeadModel, a GPTNeoXForCausalLM, an AeroForCausalLM or a module tree with GPT-2's "
    "names (transformer.wte, wpe, h.0.attn.c_attn, ..., lm_head)"
)


def carry_over(model: nn.Module) -> AeroForCausalLM:
    """The same network as an `AeroForCausalLM`; one that is an `AeroForCausalLM` is itself.

    The carried network is compared with the model on a few tokens, so that a tree with GPT-2's
    names but another forward is refused, not misread.

    Args:
        model: a supported network; it is left unchanged. Dropout outside attention is left out.

    Returns:
        A new network with its own copy of the weights, in the device, dtype and mode of `model`.

    Raises:
        ValueError: a network of another kind, or with parts that AERO networks do not have; the
            message says which and what to do instead.

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> config = GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=9, attn_pdrop=0.0)
        >>> carry_over(GPT2LMHeadModel(config)).config.spec.label
        'SM+LN+G'
    """
    if isinstance(model, AeroForCausalLM):
        if model.config.annealed_from is not None:
            raise ValueError(
                f"the network is being annealed into {model.config.spec.label}; train it to the "
                "end and call finish_annealing(model) first"
            )
        return model
    config, weights = read_network(model)
    with torch.random.fork_rng(devices=[]):  # the weights of the start are of no use
        network = AeroForCausalLM(config)
    first = next(model.parameters())
    nn.Module.to(network, first.device, first.dtype)
    network.load_state_dict(weights)
    if isinstance(model, PreTrainedModel) and model.generation_config is not None:
        network.generation_config = model.generation_config
    if not runs_like(model, network):
        raise unsupported(
            model,
            "has GPT-2's names but computes something else than GPT-2",
            "copy its weights into an AeroForCausalLM yourself where the parts agree",
        )
    network.train(model.training)
    return network


def load_foreign_network(model_type: str, path: Any, *args: Any, **kwargs: Any) -> AeroForCausalLM:
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
    network = carry_over(model)
    network.config._name_or_path = str(path)
    if attention is not None:
        network.set_attn_implementation(attention)
    return (network, information) if returns_information else network  # type: ignore[return-value]


def foreign_model_type(path: Any, **kwargs: Any) -> str | None:
    """The type of a checkpoint that `load_foreign_network` reads; None for any other."""
    found = PreTrainedConfig.get_config_dict(path, **kwargs)[0].get("model_type")
    return found if found in _CHECKPOINTS else None


def read_network(model: nn.Module) -> tuple[AeroConfig, Weights]:
    """Configuration and weights of a foreign network, in `AeroForCausalLM`'s names and layout.

    Raises:
        ValueError: as `carry_over`.
    """
    check_weights(model)
    if any(isinstance(module, Block) for module in model.modules()):
        raise unsupported(
            model,
            "was converted in place before",
            "convert without inplace for a network to convert further",
        )
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


def _has_gpt2_names(model: nn.Module) -> bool:
    tree = getattr(model, "transformer", None)
    return all(hasattr(tree, name) for name in ("wte", "wpe", "h", "ln_f")) and hasattr(
        model, "lm_head"
    )


def _read_gpt2(model: Any) -> tuple[AeroConfig, Weights]:
    tree = model.transformer
    blocks = list(tree.h)
    weights: Weights = {
        "transformer.wte.weight": tree.wte.weight,
        "transformer.wpe.weight": tree.wpe.weight,
    }
    read = {id(tree.wte.weight), id(tree.wpe.weight)}
    epsilons = {check_layer_norm(model, tree.ln_f)}
    final = tree.ln_f
    read |= zeros_for_absent(
        weights, "transformer.ln_f", final.weight, getattr(final, "bias", None)
    )
    width = tree.wte.weight.shape[1]
    num_heads = _num_heads(model, blocks[0].attn, width)
    activations = set()
    for index, block in enumerate(blocks):
        _check_gpt2_block(model, index, block)
        prefix = f"transformer.h.{index}"
        for name in ("ln_1", "ln_2"):
            norm = getattr(block, name)
            epsilons.add(check_layer_norm(model, norm))
            read |= zeros_for_absent(
                weights, f"{prefix}.{name}", norm.weight, getattr(norm, "bias", None)
            )
        is_transposed = _is_conv1d(model, index, block.attn.c_attn.weight, width)
        for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"):
            layer = block.get_submodule(name)
            matrix = matrix_of(layer.weight, is_transposed)
            read.add(id(layer.weight))
            read |= zeros_for_absent(weights, f"{prefix}.{name}", matrix, layer.bias)
        _scale_queries(weights, f"{prefix}.attn.c_attn", block.attn, width // num_heads)
        activations.add(activation_of(model, block.mlp))
    read |= _read_head(model, weights, model.lm_head, tree.wte)
    _check_nothing_left(model, read)
    config = _config(
        model,
        activations,
        epsilons,
        num_layers=len(blocks),
        num_heads=num_heads,
        width=width,
        hidden_width=weights["transformer.h.0.mlp.c_fc.weight"].shape[0],
        context_length=tree.wpe.weight.shape[0],
        vocab_size=tree.wte.weight.shape[0],
        tied_embeddings="lm_head.weight" not in weights,
    )
    return config, _completed(weights)


def _read_gpt_neox(model: Any) -> tuple[AeroConfig, Weights]:
    tree, source = model.gpt_neox, model.config
    rope = source.rope_parameters
    if rope.get("rope_type", "default") != "default":
        raise unsupported(
            model, f"has rotary positions of type {rope['rope_type']!r}", "use the default type"
        )
    if source.attention_dropout:
        raise _attention_dropout(model, source.attention_dropout, "attention_dropout=0.0")
    weights: Weights = {"transformer.wte.weight": tree.embed_in.weight}
    read = {id(tree.embed_in.weight)}
    final = tree.final_layer_norm
    epsilons = {check_layer_norm(model, final)}
    read |= zeros_for_absent(weights, "transformer.ln_f", final.weight, final.bias)
    num_heads = source.num_attention_heads
    activations = set()
    for index, layer in enumerate(tree.layers):
        prefix = f"transformer.h.{index}"
        named = {
            "ln_1": layer.input_layernorm,
            "ln_2": layer.post_attention_layernorm,
            "attn.c_proj": layer.attention.dense,
            "mlp.c_fc": layer.mlp.dense_h_to_4h,
            "mlp.c_proj": layer.mlp.dense_4h_to_h,
        }
        for name, module in named.items():
            if name.startswith("ln"):
                epsilons.add(check_layer_norm(model, module))
            read |= zeros_for_absent(weights, f"{prefix}.{name}", module.weight, module.bias)
        joined = layer.attention.query_key_value
        read |= zeros_for_absent(weights, f"{prefix}.attn.c_attn", joined.weight, joined.bias)
        read.add(id(joined.weight))
        for part in ("weight", "bias"):
            name = f"{prefix}.attn.c_attn.{part}"
            weights[name] = _grouped_by_kind(weights[name], num_heads)
        activations.add(activation_of(model, layer.mlp))
    read |= _read_head(model, weights, model.get_output_embeddings(), tree.embed_in)
    _check_nothing_left(model, read)
    config = _config(
        model,
        activations,
        epsilons,
        family="pythia",
        num_layers=len(tree.layers),
        num_heads=num_heads,
        width=source.hidden_size,
        hidden_width=source.intermediate_size,
        context_length=source.max_position_embeddings,
        vocab_size=tree.embed_in.weight.shape[0],
        tied_embeddings="lm_head.weight" not in weights,
        rotary_fraction=float(rope.get("partial_rotary_factor", 1.0)),
        parallel_residual=source.use_parallel_residual,
        rotary_base=float(rope["rope_theta"]),
    )
    return config, _completed(weights)


def _grouped_by_kind(joined: Tensor, num_heads: int) -> Tensor:
    """Rows [head, (query, key, value), D] of GPT-NeoX as [(query, key, value), head, D]."""
    parts = joined.detach().view(num_heads, 3, -1, *joined.shape[1:])
    return parts.transpose(0, 1).flatten(0, 2)


def _config(model: Any, activations: set[Any], epsilons: set[float], **fields: Any) -> AeroConfig:
    if len(activations) > 1 or len(epsilons) > 1:
        raise unsupported(
            model,
            "has layers of different kinds (activations or LayerNorm epsilons)",
            "convert networks whose layers are alike",
        )
    activation, approximation = activations.pop()
    label = {"gelu": "SM+LN+G", "relu": "SM+LN+R", "linear": "SM+LN"}[activation]
    rotary_base = fields.pop("rotary_base", 10000.0)
    spec = ArchitectureSpec.from_label(
        label, model="tiny", **{"head_dim": fields["width"] // fields["num_heads"], **fields}
    )
    source = getattr(model, "config", None)
    tokens = {
        name: getattr(source, name, None)
        for name in ("bos_token_id", "eos_token_id", "pad_token_id")
    }
    return AeroConfig.from_spec(
        spec,
        layer_norm_epsilon=epsilons.pop(),
        gelu_approximation=approximation,
        rotary_base=rotary_base,
        initializer_range=float(getattr(source, "initializer_range", 0.02)),
        **tokens,
    )


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
            "give the blocks GPT-2's names",
        )
    dropout = getattr(block.attn, "attn_dropout", getattr(block.attn, "dropout", 0.0))
    rate = getattr(dropout, "p", dropout)
    if rate:
        raise _attention_dropout(model, rate, "GPT-2: from_pretrained(..., attn_pdrop=0.0)")


def _attention_dropout(model: nn.Module, rate: float, setting: str) -> ValueError:
    return unsupported(
        model,
        f"has dropout {rate} inside attention, which the operator does not compute",
        f"set it to 0 ({setting})",
    )


def _is_conv1d(model: Any, index: int, weight: Tensor, width: int) -> bool:
    """Whether weights lie as [in, out]; `c_attn` is never square, so its shape tells."""
    shape = tuple(weight.shape)
    if shape not in ((width, 3 * width), (3 * width, width)):
        raise unsupported(
            model,
            f"has h.{index}.attn.c_attn.weight of shape {list(shape)} at width {width}",
            f"it must be [{3 * width}, {width}] or its transpose: query, key and value of all "
            "heads, with heads as wide as width / heads",
        )
    return shape[0] == width


def _scale_queries(weights: Weights, name: str, attention: Any, head_dim: int) -> None:
    """Makes the scores' scale 1 / sqrt(D) by a factor of the queries."""
    factor = float(getattr(attention, "scaling", head_dim**-0.5)) * math.sqrt(head_dim)
    if math.isclose(factor, 1.0, rel_tol=1e-12):
        return
    for part in ("weight", "bias"):
        scaled = weights[f"{name}.{part}"].detach().clone()
        scaled[: len(scaled) // 3] *= factor
        weights[f"{name}.{part}"] = scaled


def _read_head(model: Any, weights: Weights, head: Any, embedding: nn.Embedding) -> set[int]:
    says_tied = getattr(getattr(model, "config", None), "tie_word_embeddings", None)
    is_tied = head.weight is embedding.weight
    if isinstance(model, PreTrainedModel) and says_tied is not None and says_tied != is_tied:
        raise unsupported(
            model,
            f"says tie_word_embeddings={says_tied} but its head is "
            + ("the token embedding" if is_tied else "a matrix of its own"),
            "call model.tie_weights(), or set config.tie_word_embeddings to what it is",
        )
    if getattr(head, "bias", None) is not None and bool(head.bias.detach().any()):
        raise unsupported(model, "has a head with a bias", "set the bias to zero")
    if head.weight.shape != embedding.weight.shape:
        raise unsupported(
            model,
            f"has a head of shape {list(head.weight.shape)} for token embeddings of shape "
            f"{list(embedding.weight.shape)}",
            "resize both (model.resize_token_embeddings)",
        )
    if not is_tied:
        weights["lm_head.weight"] = head.weight
    return {id(parameter) for parameter in head.parameters()}


def _check_nothing_left(model: nn.Module, read: set[int]) -> None:
    left = [
        name
        for name, parameter in model.named_parameters()
        # Thresholds of `with_entropy_penalty` are part of a training, not of the network.
        if id(parameter) not in read and not name.startswith("entropy_penalty.")
    ]
    if left:
        raise unsupported(
            model,
            f"has parameters that AERO networks have no place for: {', '.join(left[:3])}",
            "remove them or merge them into the weights (adapters: merge_and_unload())",
        )


def _completed(weights: Weights) -> Weights:
    """With the tied head's entry, which `load_state_dict` expects."""
    weights.setdefault("lm_head.weight", weights["transformer.wte.weight"])
    return weights
