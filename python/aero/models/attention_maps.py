"""Attention weights of any decoder whose entropies can be measured; the operator never forms them.

Letters: L layers, B batch, H heads, T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from aero.models.row_entropies import entropies
from aero.ops import reference

__all__ = ["attention_maps"]

# The arguments of the operator that the weights depend on, besides q and k.
_SHAPING = ("temperature", "mask", "is_causal", "scale")


def attention_maps(model: nn.Module, batch: Tensor | Mapping[str, Any]) -> Tensor:
    """Returns the attention weights of every head, [L, B, H, T, T], float32.

    The model computes as for `aero.entropies`. Queries and keys are taken as they reach the
    operator, so temperatures, rotation and masks count.

    Args:
        model: as of `aero.entropies`.
        batch: as of `aero.entropies`.

    Raises:
        ValueError: as of `aero.entropies`.

    Example:
        >>> import torch
        >>> from aero import AeroConfig, AeroForCausalLM
        >>> from aero.models.attention_maps import attention_maps
        >>> model = AeroForCausalLM(AeroConfig.from_label("SM", model="tiny"))
        >>> attention_maps(model, torch.tensor([[1, 2, 3]])).sum(-1).round().unique().tolist()
        [1.0]
    """
    recorded = _Recorded()
    with recorded:
        layers = entropies(model, batch).layers
    assert len(recorded.weights) == len(layers), "every layer calls the operator once"
    return torch.stack(recorded.weights)


class _Recorded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes the weights of every call of the operator besides the call itself."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.weights: list[Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aero.attention_entropy.default:
            names = [argument.name for argument in func._schema.arguments]
            self.weights.append(_weights(**dict(zip(names, args, strict=False)), **(kwargs or {})))
        return func(*args, **(kwargs or {}))


def _weights(q: Tensor, k: Tensor, **others: Any) -> Tensor:
    """Of one layer, [B, H, T, S], by the operator's own arguments."""
    # Values of one at one key each give the weights back.
    ones = torch.eye(k.shape[2], dtype=q.dtype, device=q.device).expand(*k.shape[:2], -1, -1)
    given = {name: others[name] for name in _SHAPING if name in others}
    found, _, _ = reference.attention_entropy(q, k, ones, **given)
    return found.float()
