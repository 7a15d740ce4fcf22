"""Models whose blocks are ours since they were converted in place: the names of their weights.

Such a model has its host's names, and in GPT-2 the host's layout [in, out]. Saved is the network of
`AeroForCausalLM`; what was saved goes back into the model by `load_state_dict`.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GPTNeoXForCausalLM

from aero.models.configuration import AeroConfig
from aero.models.foreign_reader import unsupported
from aero.nn.drop_in import is_activation_mark
from aero.nn.weight_forms import TransposedLinear

# Beginnings of GPT-NeoX's names and of ours.
_GPT_NEOX = {
    "gpt_neox.embed_in.": "transformer.wte.",
    "gpt_neox.layers.": "transformer.h.",
    "gpt_neox.final_layer_norm.": "transformer.ln_f.",
}
_OURS = ("transformer.h.", "transformer.wte.", "transformer.wpe.", "transformer.ln_f.", "lm_head.")
_THRESHOLDS = "entropy_penalty.threshold_bias"
_STRENGTHS = "entropy_penalty.strength_bias"
_SLOPE = "transformer.negative_slope"

# Setting of `EntropyPenalty` -> field of AeroConfig.
_PENALTY_FIELDS = {
    "weight": "entropy_weight",
    "tokens": "entropy_tokens",
    "margin": "tolerance_margin",
    "reduction": "entropy_reduction",
    "max_entropy": "max_entropy",
    "strengths": "entropy_strengths",
}


def read_converted(
    model: Any, state: Mapping[str, Tensor] | None = None
) -> tuple[AeroConfig, dict[str, Tensor]]:
    """Configuration and weights in `AeroForCausalLM`'s names and layout, without the penalty's.

    Args:
        model: a model that was converted in place.
        state: its state dict where that is gathered from elsewhere; default: its own.
    """
    state = model.state_dict() if state is None else state
    config = copy.deepcopy(model.aero_config)
    transposed = _transposed(model)
    weights = {}
    for name, value in state.items():
        if name.startswith("entropy_penalty.") or is_activation_mark(name):
            continue
        ours = _our_name(model, name)
        if not ours.startswith((*_OURS, _SLOPE)):
            raise unsupported(
                model,
                f"has parameters that AERO networks have no place for: {name}",
                "remove them or merge them into the weights (adapters: merge_and_unload())",
            )
        weights[ours] = value.t() if name in transposed else value
    embedding = weights["transformer.wte.weight"]
    weights.setdefault("lm_head.weight", embedding)  # files hold what is tied once
    changed = config.spec.replace(vocab_size=embedding.shape[0], entropy_regularized=False)
    config.update_spec(changed)
    return config, weights


def read_penalty(
    model: Any,
    config: AeroConfig,
    weights: dict[str, Tensor],
    state: Mapping[str, Tensor] | None = None,
) -> tuple[AeroConfig, dict[str, Tensor]]:
    """Adds the penalty of `aero.with_entropy_penalty`, where the model has it."""
    penalty = getattr(model, "entropy_penalty", None)
    if penalty is None:
        return config, weights
    config.update_spec(config.spec.replace(entropy_regularized=True))
    settings = penalty.settings()
    for name, field in _PENALTY_FIELDS.items():
        setattr(config, field, settings[name])
    context = settings["context_length"]
    if config.max_entropy == "log_context" and context != config.spec.context_length:
        # `AeroConfig` has no other reference.
        warnings.warn(
            f"the entropy penalty of the {type(model).__name__} has context_length={context}, "
            f"that of an AeroForCausalLM the network's, {config.spec.context_length}",
            stacklevel=4,
        )
    state = model.state_dict() if state is None else state
    dtype = weights["transformer.wte.weight"].dtype
    for layer, threshold in enumerate(state[_THRESHOLDS]):
        weights[f"transformer.h.{layer}.attn.entropy_threshold"] = threshold.to(dtype)
    if _STRENGTHS in state:
        weights["strength_bias"] = state[_STRENGTHS].to(dtype)
    return config, weights


def take_own_weights(model: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Turns a state dict of the `AeroForCausalLM` into the model's own; leaves any other alone.

    It is a hook of `load_state_dict`: Trainer resumes from what it saved.
    """
    transposed = _transposed(model)
    own = model.state_dict()

    def is_turned(name: str) -> bool:
        given, shape = state.get(prefix + _our_name(model, name)), own[name].shape
        return given is not None and given.shape == shape[::-1] != shape

    has_our_names = isinstance(model, GPTNeoXForCausalLM) and any(
        name.startswith(f"{prefix}transformer.") for name in state
    )
    if not has_our_names and not any(is_turned(name) for name in transposed):
        return
    given = {name.removeprefix(prefix): state.pop(name) for name in list(state)}
    _join_penalty(own, given)
    used = set()
    for name in own:
        ours = _our_name(model, name)
        if ours in given:
            used.add(ours)
            state[prefix + name] = given[ours].t() if name in transposed else given[ours]
    state |= {prefix + name: value for name, value in given.items() if name not in used}


def _join_penalty(own: Mapping[str, Tensor], given: dict[str, Any]) -> None:
    """Gives thresholds and strengths the names that they have in the model's penalty."""
    ending = ".attn.entropy_threshold"
    names = [name for name in given if name.endswith(ending)]
    if _THRESHOLDS in own and names:
        names.sort(key=lambda name: int(name.split(".")[2]))
        given[_THRESHOLDS] = torch.stack([given.pop(name) for name in names])
    if _STRENGTHS in own and "strength_bias" in given:
        given[_STRENGTHS] = given.pop("strength_bias")


def _our_name(model: Any, name: str) -> str:
    if isinstance(model, GPTNeoXForCausalLM):
        for theirs, ours in _GPT_NEOX.items():
            if name.startswith(theirs):
                name = ours + name.removeprefix(theirs)
    if name.endswith(".mlp.negative_slope") and model.aero_config.spec.ffn == "leaky_relu_global":
        return _SLOPE  # the blocks share it
    return name


def _transposed(model: nn.Module) -> set[str]:
    """The weights that lie as [in, out] and are not so in `AeroForCausalLM`."""
    return {
        f"{path}.weight"
        for path, layer in model.named_modules()
        if isinstance(layer, TransposedLinear)
    }
