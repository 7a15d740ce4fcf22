"""The attention operator for any `transformers` decoder, under the names aero and aero_entropy.

``attn_implementation="aero"`` computes attention with the fused operator; ``"aero_entropy"`` also
returns the row entropies [B, H, T] in place of attention weights, so that a call with
``output_attentions=True`` finds them in ``outputs.attentions``. What the operator does not compute
is refused, with an alternative. Padding, masks and packed sequences decide which keys a row
sees.

Letters: B batch, T queries, S keys.
"""

from __future__ import annotations

import importlib
import inspect
import warnings
import weakref
from functools import cache
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    MODEL_MAPPING,
    AttentionInterface,
    AttentionMaskInterface,
    PreTrainedModel,
)
from transformers.masking_utils import sdpa_mask
from transformers.utils import output_capturing

from aero.nn.attention import causal_attention


def is_packed(position_ids: Tensor | None) -> bool:
    """Whether positions start again inside a row; a compiled graph cannot look and says no."""
    if position_ids is None or position_ids.dim() != 2 or torch.compiler.is_compiling():
        return False
    return bool((position_ids[:, 1:] == 0).any())


def refuse_crossing(
    where: str, position_ids: Tensor | None, mask: Tensor | None, num_keys: int
) -> None:
    """Refuses packed sequences that would see each other.

    `transformers` keeps them apart where it gets no cache and no mask of padding.

    Args:
        where: the beginning of the error.
        position_ids: [B, T] or [1, T].
        mask: boolean [B, 1, T, S], True where visible; None for plain causal attention.
        num_keys: S; more than T where keys are cached, which says nothing about their sequences.

    Raises:
        ValueError: a row sees a key before the start of its sequence.
    """
    if position_ids is None or position_ids.shape[-1] != num_keys or not is_packed(position_ids):
        return
    if mask is not None:
        sequence = (position_ids == 0).cumsum(dim=-1)
        is_other = sequence.unsqueeze(-1) != sequence.unsqueeze(-2)
        visible = mask.any(dim=1)
        # Rows of padding, which do not see themselves, may see anything.
        is_token = visible.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
        if not (visible & is_other & is_token).any():
            return
    raise ValueError(
        f"{where} got position_ids that start again, and tokens would see the sequences before "
        "theirs; pass use_cache=False and no attention_mask, or a boolean [B, 1, T, S]"
    )


ATTENTION_NAMES = ("aero", "aero_entropy")

# Arguments of some models that this operator does not compute; None everywhere else.
_UNSUPPORTED = {
    "head_mask": "a head mask",
    "position_bias": "a position bias on the scores",
    "s_aux": "attention sinks",
    "sinks": "attention sinks",
    "softcap": "a soft cap on the scores",
}
# Models that look implementations up in a table of their own, where an unknown one is a KeyError.
_OWN_TABLES = {
    "falcon": "FALCON_ATTENTION_CLASSES",
    "gpt_neo": "GPT_NEO_ATTENTION_CLASSES",
    "gptj": "GPTJ_ATTENTION_CLASSES",
}
# Of the frames between a layer and the line that calls its model.
_NOT_CALLERS = ("aero", "torch", "transformers")
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_WAY_OUT = "keep attn_implementation='eager' or 'sdpa' for this model"


def aero_entropy_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    temperature: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Attention function of `transformers` that returns entropies as its second value.

    Args:
        module: the calling layer, causal self-attention.
        query: [B, H, T, D].
        key: [B, G, S, D], H a multiple of G.
        value: [B, G, S, D].
        attention_mask: boolean, [B, 1, T, S], True where visible, causality, padding and sliding
            windows included; None for plain causal attention.
        scaling: of the scores, default ``1 / sqrt(D)``.
        dropout: must be 0.
        temperature: as in `aero.ops.attention_entropy`.
        **kwargs: ignored, except the features listed under Raises.

    Returns:
        Output [B, T, H, D] and row entropies [B, H, T], nats, float32.

    Raises:
        ValueError: encoder or cross attention, dropout, an additive mask, a head mask, a position
            bias, attention sinks, a soft cap, a sliding window or packed sequences that the mask
            does not say, values of another width than keys, or float8 tensors.
    """
    _check_layer(module, dropout, kwargs)
    _check_tensors(module, query, key, value, attention_mask)
    if attention_mask is None:
        _check_needs_no_mask(module, key.shape[2], kwargs)
    _refuse_packed(module, attention_mask, key.shape[2], kwargs.get("position_ids"))
    output, entropy = causal_attention(
        query, key, value, mask=attention_mask, temperature=temperature, scale=scaling
    )
    return output.transpose(1, 2), entropy


def aero_attention_forward(*args: Any, **kwargs: Any) -> tuple[Tensor, None]:
    """As `aero_entropy_attention_forward`, without the entropies."""
    output, _ = aero_entropy_attention_forward(*args, **kwargs)
    if not torch.compiler.is_compiling() and _are_attentions_wanted(kwargs):
        _warn_of_no_attentions(kwargs["module"] if "module" in kwargs else args[0])
    return output, None


def register_attention() -> None:
    """Makes both names known to `transformers`, with boolean masks (else padding is ignored).

    Importing `aero` and `transformers` has done so already.
    """
    AttentionInterface.register("aero", aero_attention_forward)
    AttentionInterface.register("aero_entropy", aero_entropy_attention_forward)
    for name in ATTENTION_NAMES:
        AttentionMaskInterface.register(name, _boolean_mask)
    for model, table in _OWN_TABLES.items():
        module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
        getattr(module, table, {}).update(dict.fromkeys(ATTENTION_NAMES, _refuse_layer))


def check_computable(where: str, dtype: torch.dtype) -> None:
    """Refuses numbers that are for storing, such as float8."""
    if dtype not in _DTYPES:
        raise ValueError(
            f"{where} cannot compute in {dtype}, which is for stored weights; load or convert the "
            "model in float32, bfloat16 or float16, such as model.to(torch.bfloat16)"
        )


def computes_own_attention(model_class: type) -> bool:
    """Whether a `transformers` model class ignores `attn_implementation`, as BLOOM and MPT do."""
    return not model_class._can_set_attn_implementation()  # type: ignore[attr-defined]


def refuse_own_attention(operation: str, model_class: type) -> None:
    """Raises the error for a model class of which `computes_own_attention` is true."""
    raise ValueError(
        f"{operation}: {model_class.__name__} computes attention with code of its own and would "
        "ignore attn_implementation='aero'; keep attn_implementation='eager', or take a model that "
        "uses transformers.AttentionInterface (GPT-2, GPT-NeoX, Llama, Mistral, Qwen2, OPT, ...)"
    )


def _boolean_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    # Models with attention of their own still ask for a mask here, and would add True as 1 to
    # their scores. A compiled graph cannot read sources; it is traced after an eager call.
    if not torch.compiler.is_compiling() and "config" in kwargs:
        config_class: Any = type(kwargs["config"])
        _check_configuration(config_class)
    mask: Tensor | None = sdpa_mask(*args, **kwargs)
    return mask


def _refuse_layer(config: Any, *args: Any) -> None:
    config_class: Any = type(config)
    _check_configuration(config_class)


@cache
def _check_configuration(config_class: Any) -> None:
    model_class: Any = MODEL_MAPPING.get(config_class, None)
    if isinstance(model_class, type) and computes_own_attention(model_class):
        refuse_own_attention("aero attention", model_class)


def _refuse(module: nn.Module, what: str, way_out: str = _WAY_OUT) -> None:
    raise ValueError(f"aero attention: {type(module).__name__} {what}; {way_out}")


def _check_layer(module: nn.Module, dropout: float, kwargs: dict[str, Any]) -> None:
    if dropout:
        _refuse(
            module,
            f"asks for dropout {dropout} of attention weights, which the operator never forms",
            "set the model's attention dropout to 0 (GPT-2: attn_pdrop=0.0, others: "
            "attention_dropout=0.0)",
        )
    is_causal = kwargs.get("is_causal")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    if getattr(module, "is_cross_attention", False) or not is_causal:
        _refuse(
            module,
            "is encoder or cross attention, and this is causal self-attention",
            f"{_WAY_OUT}; its entropies are -torch.xlogy(w, w).sum(-1) of the weights w of "
            "attn_implementation='eager' with output_attentions=True",
        )
    for feature, name in _UNSUPPORTED.items():
        if kwargs.get(feature) is not None:
            _refuse(module, f"needs {name} ({feature}), which is not supported")


def _check_tensors(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> None:
    for tensor in (query, key, value):
        check_computable(f"aero attention: {type(module).__name__}", tensor.dtype)
    if value.shape[-1] != query.shape[-1]:
        _refuse(module, f"has values of width {value.shape[-1]}, keys of {query.shape[-1]}")
    if mask is not None and mask.dtype != torch.bool:
        _refuse(
            module,
            f"got an attention_mask of {mask.dtype}",
            "pass [B, S] with 0 for padding, or a boolean [B, 1, T, S], True where visible",
        )


def _check_needs_no_mask(module: nn.Module, num_keys: int, kwargs: dict[str, Any]) -> None:
    """Refuses settings that only a mask could carry out where there is none."""
    window = kwargs.get("sliding_window")
    if window is not None and num_keys > window:
        _refuse(module, f"has a sliding window of {window} over {num_keys} keys and no mask for it")
    starts = kwargs.get("cu_seq_lens_q")
    if starts is not None and len(starts) > 2:
        _refuse(
            module,
            "got packed sequences as cu_seq_lens_q without a mask",
            "pass position_ids that start again in every sequence, use_cache=False, no cu_seq_lens",
        )


def _are_attentions_wanted(kwargs: dict[str, Any]) -> bool:
    # Where models do not hand the argument on, transformers says it in a variable of the call.
    collector = getattr(output_capturing, "_active_collector", None)
    collected = None if collector is None else collector.get()
    return bool(kwargs.get("output_attentions")) or "attentions" in (collected or {})


# Layers whose model has been warned of, and these models.
_warned: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def _warn_of_no_attentions(layer: nn.Module) -> None:
    """Warns once per model, at the line that calls it."""
    if layer in _warned:
        return
    model = layer
    line: FrameType | None = None
    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, PreTrainedModel):
            model, line = caller, None
        elif line is None and _package(frame) not in _NOT_CALLERS:
            line = frame
        frame = frame.f_back
    is_known = model in _warned
    _warned.update((layer, model))
    if line is None or is_known:
        return
    warnings.warn_explicit(  # `warn` is silent about a second model at the same line
        f"attn_implementation='aero' of {type(model).__name__} returns no attentions: "
        "output_attentions=True gives an empty tuple; 'aero_entropy' gives row entropies [B, H, T] "
        "there, 'eager' weights",
        UserWarning,
        line.f_code.co_filename,
        line.f_lineno,
    )


def _package(frame: FrameType) -> str:
    # Code that `exec` runs need not be in a module.
    return str(frame.f_globals.get("__name__")).split(".")[0]


# Positions and mask of the last call that passed, and the positions' version.
_passed: tuple[list[weakref.ref[Tensor]], int] = ([], 0)


def _refuse_packed(
    module: nn.Module, mask: Tensor | None, num_keys: int, position_ids: Tensor | None
) -> None:
    """Refuses packed sequences that see each other; looks once per call, as GPUs wait for it."""
    global _passed
    if position_ids is None or torch.compiler.is_compiling():
        return
    call = [position_ids] if mask is None else [position_ids, mask]
    version = 0 if position_ids.is_inference() else position_ids._version
    before, at = _passed
    is_same = len(before) == len(call) and all(
        reference() is tensor for reference, tensor in zip(before, call, strict=True)
    )
    if not is_same or at != version:
        where = f"aero attention: {type(module).__name__}"
        refuse_crossing(where, position_ids, mask, num_keys)
        _passed = [weakref.ref(tensor) for tensor in call], version
