"""Weight and spectral normalization of linear layers: free at inference, unlike LayerNorm."""

from __future__ import annotations

from typing import Any, Literal

from torch import nn
from torch.nn.utils import parametrizations

from aero.nn.linear import Linear
from aero.nn.recomputation import is_recomputing

WeightNormalization = Literal["weight_norm", "spectral_norm"]


def normalize_weight(linear: nn.Linear, kind: WeightNormalization) -> nn.Linear:
    """Reparametrizes the weight of `linear` in place (AERO, Section 3.2).

    Args:
        linear: the layer, weight [out, in].
        kind: ``"weight_norm"``, ``W = g * V / |V|`` with one gain per output (Salimans & Kingma,
            2016), or ``"spectral_norm"``, ``W = V / sigma(V)`` with the largest singular value from
            one power iteration per training forward (Miyato et al., 2018).

    Returns:
        The same layer.

    Example:
        >>> from aero.nn.weight_normalization import normalize_weight
        >>> import torch
        >>> layer = normalize_weight(torch.nn.Linear(8, 8), "spectral_norm").eval()
        >>> round(torch.linalg.matrix_norm(layer.weight, 2).item(), 1)
        1.0
    """
    if kind == "weight_norm":
        parametrizations.weight_norm(linear, "weight")
    elif kind == "spectral_norm":
        parametrizations.spectral_norm(linear, "weight")
        _parametrization(linear).register_forward_pre_hook(_freeze_recomputed_iteration)
    else:
        raise ValueError(
            f"normalize_weight: kind must be 'weight_norm' or 'spectral_norm', got {kind!r}"
        )
    return linear


def plain_linear(linear: nn.Linear) -> nn.Linear:
    """Returns a linear layer with the present weight of `linear` and no normalization.

    Unlike `torch.nn.utils.parametrize.remove_parametrizations` this also serves deep copies, whose
    class is shared with the original.

    Example:
        >>> import torch
        >>> from aero.nn.weight_normalization import normalize_weight
        >>> from aero.nn.weight_normalization import plain_linear
        >>> linear = normalize_weight(torch.nn.Linear(4, 3), "weight_norm")
        >>> torch.equal(plain_linear(linear).weight, linear.weight)
        True
    """
    plain = Linear(linear.in_features, linear.out_features)
    plain.weight = nn.Parameter(linear.weight.detach().clone())
    plain.bias = nn.Parameter(linear.bias.detach().clone())
    return plain


def _parametrization(linear: nn.Linear) -> Any:
    return linear.parametrizations["weight"][0]  # type: ignore[index]


def _freeze_recomputed_iteration(module: Any, _inputs: Any) -> None:
    """Keeps the singular vectors of the first forward when a checkpoint recomputes it."""
    module.n_power_iterations = 0 if is_recomputing() else 1
