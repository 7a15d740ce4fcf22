"""Weights of linear layers in other forms: GPT-2's layout, weight and spectral norms."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from aero.nn.linear import Linear, Start, is_recomputing, linear

WeightNormalization = Literal["weight_norm", "spectral_norm"]
WeightLayout = Literal["out_in", "in_out"]
Module = TypeVar("Module", bound=nn.Module)


def normalize_weight(linear: nn.Linear, kind: WeightNormalization) -> nn.Linear:
    """Reparametrizes the weight of `linear` in place (AERO, Section 3.2).

    Args:
        linear: the layer, weight [out, in].
        kind: ``"weight_norm"``, ``W = g * V / |V|`` with one gain per output (Salimans & Kingma,
            2016), or ``"spectral_norm"``, ``W = V / sigma(V)`` with the largest singular value from
            one power iteration per training forward (Miyato et al., 2018).
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


def _parametrization(linear: nn.Linear) -> Any:
    return linear.parametrizations["weight"][0]  # type: ignore[index]


def _freeze_recomputed_iteration(module: Any, _inputs: Any) -> None:
    """Keeps the singular vectors of the first forward when a checkpoint recomputes it."""
    module.n_power_iterations = 0 if is_recomputing() else 1


class TransposedLinear(nn.Module):
    """A linear layer with its weight as [in, out], like `transformers`' Conv1D.

    Args:
        in_features: width of the inputs.
        out_features: width of the outputs.
        bias: whether there is one.
        start: as in `Linear`.

    Attributes:
        weight: [in, out].
        bias: [out] or None.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, start: Start = "normal"
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.start: Start = start
        drawn = nn.Linear(in_features, out_features, bias)
        self.weight = nn.Parameter(drawn.weight.detach().t().contiguous())
        self.bias = drawn.bias if bias else None

    def forward(self, inputs: Tensor) -> Tensor:
        """Returns ``inputs W + b``, [..., out]."""
        return linear(inputs, self.weight.t(), self.bias)

    def extra_repr(self) -> str:
        """The widths."""
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


def set_weight_layout(module: Module, layout: WeightLayout) -> Module:
    """Turns the weights of all linear layers within a module, in place; its results stay.

    Args:
        module: attention, feed-forward or block. Fused FFNs are [in, out] always; weights under
            weight or spectral norm stay as they are.
        layout: ``"out_in"``, `torch.nn.Linear` as in nanoGPT, or ``"in_out"``, Conv1D as in
            `transformers`' GPT-2.

    Raises:
        ValueError: another layout.
    """
    if layout not in ("out_in", "in_out"):
        raise ValueError(f"set_weight_layout: layout must be 'out_in' or 'in_out', got {layout!r}")
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if layout == "in_out" and type(child) is Linear:
                setattr(parent, name, _turned(child, TransposedLinear))
            elif layout == "out_in" and type(child) is TransposedLinear:
                setattr(parent, name, _turned(child, Linear))
    return module


def _turned(
    layer: Linear | TransposedLinear, kind: type[Linear] | type[TransposedLinear]
) -> nn.Module:
    weight = layer.weight
    with torch.random.fork_rng(devices=[]), torch.device(weight.device):
        turned = kind(
            layer.in_features, layer.out_features, layer.bias is not None, start=layer.start
        )
    turned.weight = nn.Parameter(weight.detach().t().contiguous(), weight.requires_grad)
    if layer.bias is not None:
        turned.bias = layer.bias
    return turned.train(layer.training)
