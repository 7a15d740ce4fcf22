"""The masks that models of `transformers` get with this attention; models that have their own.

Letters: B batch, T queries, S keys.
"""

from __future__ import annotations

import weakref
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import MODEL_MAPPING
from transformers.masking_utils import eager_mask, sdpa_mask

from aero.models.packed_sequences import packed_mask


def computes_own_attention(model_class: type) -> bool:
    """True if a `transformers` model class ignores `attn_implementation`, as BLOOM and MPT do."""
    return not model_class._can_set_attn_implementation()  # type: ignore[attr-defined]


def refuse_own_attention(operation: str, model_class: type) -> None:
    """Raises the error for a model class of which `computes_own_attention` is true."""
    name = model_class.__name__.removesuffix("Config")
    raise ValueError(
        f"{operation}: {name} computes attention with code of its own and would "
        "ignore attn_implementation='aero'; keep attn_implementation='eager', or take a model that "
        "uses transformers.AttentionInterface (GPT-2, GPT-NeoX, Llama, Mistral, Qwen2, OPT, ...)"
    )


@cache
def check_configuration(config_class: Any) -> None:
    """Raises the error of `refuse_own_attention` where it is due for a configuration's model."""
    model_class: Any = MODEL_MAPPING.get(config_class, None)
    if isinstance(model_class, type) and computes_own_attention(model_class):
        refuse_own_attention("aero attention", model_class)


def model_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """The mask of a model: boolean, or what eager gets where the model can do with nothing else."""
    kind: Any = type(kwargs.get("config"))
    # A compiled graph cannot read sources; it is traced after an eager call.
    if not torch.compiler.is_compiling() and "config" in kwargs:
        # Models with attention of their own still ask for a mask here, and would add True as 1 to
        # their scores.
        check_configuration(kind)
        _known.setdefault(kind, _is_made_for_masks(kind))
    mask: Tensor | None
    if _known.get(kind) and (packed := packed_mask(**kwargs)) is not None:
        mask = packed
    elif _known.get(kind) is False:
        mask = eager_mask(*args, **{**kwargs, **_EXPLICIT})
    else:
        mask = sdpa_mask(*args, **{**kwargs, **({} if _known.get(kind) else _EXPLICIT)})
    return mask


# For models whose layers may not say whether they are causal: no mask is left out.
_EXPLICIT = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
# Whether a configuration's model can do with boolean masks and without one; None if unknown.
_known: dict[type, bool | None] = {}


def _is_made_for_masks(config_class: Any) -> bool | None:
    """True if a model runs on kernels that get boolean masks, or none, where eager's are numbers.

    Models that run on eager alone may add to the numbers, as DeepSeek-V4 does, and their layers
    need not say that they are causal, as BigBird-Pegasus's do not.
    """
    model_class: Any = MODEL_MAPPING.get(config_class, None)
    if not isinstance(model_class, type):
        return None
    others = ("_supports_sdpa", "_supports_flash_attn", "_supports_flex_attn")
    own = "_takes_boolean_masks"  # of AeroModel
    return any(getattr(model_class, name, False) for name in (*others, own))


# A mask of numbers, its version, and what `visibility` made of it: layers share them.
_Split = tuple[Tensor, Tensor | None]
_split: tuple[weakref.ref[Tensor] | None, int, _Split | None] = (None, 0, None)
# Numbers below hide a key beside any score.
_HIDDEN = torch.finfo(torch.float16).min


def visibility(module: nn.Module, mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """A mask as a boolean one, True where visible, and as numbers to add where it has others.

    Raises:
        ValueError: it has neither booleans nor floating-point numbers.
    """
    global _split
    if mask is None or mask.dtype == torch.bool:
        return mask, None
    if not mask.is_floating_point():
        raise ValueError(
            f"aero attention: {type(module).__name__} got an attention_mask of {mask.dtype}; "
            "pass [B, S] with 0 for padding, or a boolean [B, 1, T, S], True where visible"
        )
    if torch.compiler.is_compiling():  # which cannot look
        return mask > _HIDDEN, mask
    version = 0 if mask.is_inference() else mask._version
    before, at, split = _split
    if split is None or before is None or before() is not mask or at != version:
        visible = mask > _HIDDEN
        split = visible, mask if mask.requires_grad or torch.where(visible, mask, 0).any() else None
        if not mask.requires_grad:  # else a graph would live on
            _split = weakref.ref(mask), version, split
    return split
