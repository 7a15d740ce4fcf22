"""The attention operator for any `transformers` model, under the names aero and aero_entropy.

``attn_implementation="aero"`` computes attention with the fused operator; ``"aero_entropy"`` also
returns the row entropies [B, H, T] in place of attention weights, so that a call with
``output_attentions=True`` finds them in ``outputs.attentions``. What the operator does not compute
is refused, with an alternative. Padding, masks, windows and packed sequences decide which keys a
row sees.

Letters: B batch, H heads, G key heads, T queries, S keys, D head width.
"""

from __future__ import annotations

import importlib
import inspect
import warnings
import weakref
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    PreTrainedModel,
)
from transformers.utils import output_capturing

from aero.models.hugging_face_models import (
    model_mask,
    refuse_own_attention,
    visibility,
)
from aero.models.packed_sequences import packed_by_starts, refuse_packed_layer
from aero.nn.attention import written_keys
from aero.nn.linear import check_computable
from aero.nn.packed_mask import attend
from aero.nn.visible_keys import AttentionCall, recording

ATTENTION_NAMES = ("aero", "aero_entropy")

# Models that look implementations up in a table of their own, where an unknown one is a KeyError.
_OWN_TABLES = {
    "bark": "BARK_ATTENTION_CLASSES",
    "falcon": "FALCON_ATTENTION_CLASSES",
    "git": "GIT_SELF_ATTENTION_CLASSES",
    "gpt_neo": "GPT_NEO_ATTENTION_CLASSES",
    "gptj": "GPTJ_ATTENTION_CLASSES",
}
# Of the frames between a layer and the line that calls its model.
_NOT_CALLERS = ("aero", "torch", "transformers")
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
        module: the calling layer: self-attention of a decoder or an encoder, or cross attention.
        query: [B, H, T, D].
        key: [B, G, S, D], H a multiple of G.
        value: [B, G, S, Dv].
        attention_mask: [B, 1, T, S], causality, padding and sliding windows included: boolean, True
            where visible, or numbers to add to the scores; None for all keys, or for causal
            attention where `is_causal` of the arguments, or else of the layer, does not say False.
        scaling: of the scores, default ``1 / sqrt(D)``.
        dropout: of the attention weights; the entropies are those without it.
        temperature: as in `aero.ops.attention_entropy`.
        **kwargs: `softcap`; `position_bias`, broadcastable to [B, H, T, S]; `s_aux` or `sinks`, [H]
            or [B, H, T, 1], scores of a key without a value; others are ignored, except the
            features listed under Raises.

    Returns:
        Output [B, T, H, Dv] and row entropies over the keys [B, H, T], nats, float32.

    Raises:
        ValueError: a head mask, a mask of integers, a sliding window or packed sequences that the
            mask does not say, or float8 tensors.
    """
    if kwargs.get("head_mask") is not None:
        _refuse(module, "needs a head mask (head_mask), which is not supported")
    _check_tensors(module, query, key, value)
    is_causal = _is_causal(module, kwargs)
    if attention_mask is None:
        _check_needs_no_mask(module, key.shape[2], kwargs)
    mask, bias = visibility(module, attention_mask)
    starts = kwargs.get("cu_seq_lens_q")
    if starts is not None:
        starts = torch.as_tensor(starts, device=query.device)
    if is_causal:
        mask, positions = packed_by_starts(
            f"aero attention: {type(module).__name__}", mask, (query.shape[0], query.shape[2]),
            kwargs.get("sliding_window"), starts, kwargs.get("cu_seq_lens_k"),
        )  # fmt: skip
        positions = kwargs.get("position_ids") if positions is None else positions
        refuse_packed_layer(module, mask, key.shape[2], positions)
        key, value = written_keys(key, value, query.shape[2], attention_mask)
    elif attention_mask is None and starts is not None and len(starts) > 2:
        _refuse(module, "got cu_seq_lens_q without a mask, and is not causal")
    position_bias = kwargs.get("position_bias")
    if position_bias is not None:
        position_bias = position_bias[..., : key.shape[2]]
        bias = position_bias if bias is None else position_bias + bias
    output, entropy, logsumexp = _attend(
        query, key, value, mask, is_causal and mask is None, temperature=temperature,
        scale=scaling, softcap=kwargs.get("softcap"), dropout_p=dropout, bias=bias,
        window=_window(is_causal, query, key, kwargs),
    )  # fmt: skip
    sinks = _sinks(module, kwargs)
    if sinks is not None:
        output = _beside_sinks(output, logsumexp, sinks)
    return output.transpose(1, 2), entropy


def aero_attention_forward(*args: Any, **kwargs: Any) -> tuple[Tensor, None]:
    """Does what `aero_entropy_attention_forward` does, without the entropies."""
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
        AttentionMaskInterface.register(name, model_mask)
    for model, table in _OWN_TABLES.items():
        module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
        getattr(module, table, {}).update(dict.fromkeys(ATTENTION_NAMES, _refuse_layer))


def _refuse_layer(config: Any, *args: Any, **kwargs: Any) -> None:
    refuse_own_attention("aero attention", type(config))


def _refuse(module: nn.Module, what: str, way_out: str = _WAY_OUT) -> None:
    raise ValueError(f"aero attention: {type(module).__name__} {what}; {way_out}")


def _is_causal(module: nn.Module, kwargs: dict[str, Any]) -> bool:
    is_causal = kwargs.get("is_causal")
    return bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)


def _window(
    is_causal: bool, query: Tensor, key: Tensor, kwargs: dict[str, Any]
) -> tuple[int, int] | None:
    """The window that the mask says too, for the operator to skip what nobody sees.

    Only where all keys are those of the queries: a cache may have room behind its keys.
    """
    width = kwargs.get("sliding_window")
    if not is_causal or width is None or not 0 < width < key.shape[2] == query.shape[2]:
        return None
    return width - 1, 0


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    *,
    scale: float | None,
    **variants: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output [B, H, T, Dv], entropy and logsumexp [B, H, T]; for values of any width."""
    seen = mask
    if seen is None and not is_causal:
        seen = key.new_ones((1, 1, 1, key.shape[2]), dtype=torch.bool)
    if seen is not None and seen.shape[2] != query.shape[2]:
        seen = seen.expand(-1, -1, query.shape[2], -1)
    if recording.calls is not None:
        recording.calls.append(AttentionCall(seen, key.shape[2]))
    output, entropy, logsumexp = attend(
        query.expand(key.shape[0], -1, -1, -1),  # learned queries have a batch of one
        key,
        value,
        mask=mask,
        is_causal=is_causal,
        scale=scale,
        **variants,
    )
    return output, entropy, logsumexp


def _sinks(module: nn.Module, kwargs: dict[str, Any]) -> Tensor | None:
    """The sinks, under whichever of their two names."""
    given = [kwargs[name] for name in ("s_aux", "sinks") if kwargs.get(name) is not None]
    if len(given) == 2 and given[0] is not given[1]:
        _refuse(module, "got s_aux and sinks, which are two names of one thing", "pass one of them")
    return given[0] if given else None


def _beside_sinks(output: Tensor, logsumexp: Tensor, sinks: Tensor) -> Tensor:
    """The output where a key without a value takes its share of each row.

    ``sum_j exp(s_j) v_j / (exp(sink) + sum_j exp(s_j))`` is the output without it, times
    ``1 / (1 + exp(sink - logsumexp))``.
    """
    rows = sinks.view(1, -1, 1) if sinks.dim() == 1 else sinks.squeeze(-1)
    share = torch.sigmoid(logsumexp - rows.to(logsumexp.dtype))
    return output * share.unsqueeze(-1).to(output.dtype)


def _check_tensors(module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> None:
    for tensor in (query, key, value):
        check_computable(f"aero attention: {type(module).__name__}", tensor.dtype)


def _check_needs_no_mask(module: nn.Module, num_keys: int, kwargs: dict[str, Any]) -> None:
    """Refuses settings that only a mask could carry out where there is none."""
    window = kwargs.get("sliding_window")
    if window is not None and num_keys > window:
        _refuse(module, f"has a sliding window of {window} over {num_keys} keys and no mask for it")


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
