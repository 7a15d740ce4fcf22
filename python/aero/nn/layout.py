"""Linear layers whose weights lie as in GPT-2's checkpoints."""

from __future__ import annotations

from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from aero.nn.linear import Linear, Start, linear

WeightLayout = Literal["out_in", "in_out"]
Module = TypeVar("Module", bound=nn.Module)


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

    Example:
        >>> import torch
        >>> from aero.nn.layout import TransposedLinear
        >>> layer = TransposedLinear(4, 8)
        >>> layer(torch.zeros(2, 3, 4)).shape, layer.weight.shape
        (torch.Size([2, 3, 8]), torch.Size([4, 8]))
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

    Returns:
        The module.

    Raises:
        ValueError: another layout.

    Example:
        >>> from aero.nn.layout import set_weight_layout
        >>> from aero.nn import FeedForward
        >>> set_weight_layout(FeedForward(8, 32), "in_out").c_fc.weight.shape
        torch.Size([8, 32])
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
