"""Feed-forward networks: two layers with or without activation, fused, and scaled."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aero import ops
from aero.nn.linear import Linear, linear
from aero.nn.weight_decay import Scales

Activation = Literal["gelu", "relu", "leaky_relu", "linear"]
_ACTIVATIONS = ("gelu", "relu", "leaky_relu", "linear")


class FeedForward(Scales):
    """``FFN(x) = act(x W_in + b_in) W_out + b_out``.

    Args:
        width: C.
        hidden_width: inner width F.
        activation: ``"gelu"``, ``"relu"``, ``"leaky_relu"`` (learned slope) or ``"linear"``
            (nothing between the two layers).
        negative_slope: start of this layer's own leaky slope; None when the slope comes with each
            call (one slope for a whole network).
        gelu_approximation: ``"tanh"`` (GPT-2) or ``"none"``, the exact GELU (Pythia, nanoGPT).

    Example:
        >>> from aero.nn import FeedForward
        >>> import torch
        >>> FeedForward(8, 32, "relu")(torch.zeros(2, 3, 8)).shape
        torch.Size([2, 3, 8])
    """

    _scale_names: tuple[str, ...] = ("negative_slope",)

    def __init__(
        self,
        width: int,
        hidden_width: int,
        activation: Activation = "gelu",
        *,
        negative_slope: float | None = None,
        gelu_approximation: Literal["tanh", "none"] = "tanh",
    ) -> None:
        super().__init__()
        if activation not in _ACTIVATIONS:
            raise ValueError(
                f"FeedForward: activation must be one of {', '.join(_ACTIVATIONS)}, "
                f"got {activation!r}"
            )
        if gelu_approximation not in ("tanh", "none"):
            raise ValueError(
                "FeedForward: gelu_approximation must be 'tanh' or 'none', "
                f"got {gelu_approximation!r}"
            )
        self.activation = activation
        self.gelu_approximation = gelu_approximation
        self.c_fc = Linear(width, hidden_width)
        self.c_proj = Linear(hidden_width, width, start="residual")
        self.negative_slope = (
            None if negative_slope is None else nn.Parameter(torch.full((1,), negative_slope))
        )

    def forward(
        self,
        inputs: Tensor,
        negative_slope: Tensor | None = None,
        *,
        activation_gate: Tensor | None = None,
    ) -> Tensor:
        """Returns FFN(inputs), [B, T, C].

        Args:
            inputs: [B, T, C].
            negative_slope: [1], the network's leaky slope where this layer has none of its own.
            activation_gate: [1], the activation's share, from 1 to 0, which leaves it out.
        """
        linear_part = hidden = self.c_fc(inputs)
        if self.activation == "gelu":
            hidden = F.gelu(hidden, approximate=self.gelu_approximation)
        elif self.activation == "relu":
            hidden = F.relu(hidden)
        elif self.activation == "leaky_relu":
            slope = self.negative_slope if negative_slope is None else negative_slope
            if slope is None:
                raise ValueError("FeedForward: leaky_relu needs a negative_slope, got none")
            hidden = F.prelu(hidden, slope.to(hidden.dtype))
        if activation_gate is not None:
            hidden = torch.lerp(linear_part, hidden, activation_gate.to(hidden.dtype))
        output: Tensor = self.c_proj(hidden)
        return output

    def extra_repr(self) -> str:
        """Shows the activation."""
        return f"activation={self.activation!r}"


class FusedFeedForward(Scales):
    """``FFN(x) = x W + b``: the two layers of a linear FFN as one (AERO, Section 4.2).

    Attributes:
        weight: [C_in, C_out], the layout of `aero.ops.scaled_ffn`.
        bias: [C].

    Example:
        >>> from aero.nn import FusedFeedForward
        >>> ffn = FusedFeedForward(16)
        >>> ffn.weight.shape, ffn.bias.shape
        (torch.Size([16, 16]), torch.Size([16]))
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, width))
        self.bias = nn.Parameter(torch.zeros(width))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, inputs: Tensor) -> Tensor:
        """Returns FFN(inputs), [B, T, C]."""
        return linear(inputs, self.weight.t(), self.bias)

    def extra_repr(self) -> str:
        """Shows the width."""
        return str(self.weight.shape[0])


class ScaledFeedForward(FeedForward):
    """Linear FFN with learned scales: ``y = beta * stream + FFN(inputs) / alpha`` (AERO, Eq. 6).

    Args:
        width: C.
        hidden_width: F.
        trainable: which of ``"alpha"`` and ``"beta"`` are learned; the others stay 1.

    Attributes:
        alpha: [1], starts at 1.
        beta: [1], starts at 1.

    Example:
        >>> from aero.nn import ScaledFeedForward
        >>> ffn = ScaledFeedForward(16, 64, trainable=("beta",))
        >>> ffn.alpha.item(), ffn.alpha.requires_grad, ffn.beta.requires_grad
        (1.0, False, True)
    """

    _scale_names = (*FeedForward._scale_names, "alpha", "beta")

    def __init__(
        self, width: int, hidden_width: int, *, trainable: Collection[str] = ("alpha", "beta")
    ) -> None:
        super().__init__(width, hidden_width, "linear")
        self.alpha, self.beta = _scales(trainable)

    def scaled(self, stream: Tensor, inputs: Tensor) -> Tensor:
        """Returns ``beta * stream + FFN(inputs) / alpha``, [B, T, C]."""
        return self.beta * stream + self.forward(inputs) / self.alpha


class ScaledFusedFeedForward(FusedFeedForward):
    """Fused FFN with learned scales: ``y = beta * stream + (inputs W + b) / alpha`` (AERO, 4.2).

    Args:
        width: C.
        trainable: which of ``"alpha"`` and ``"beta"`` are learned; the others stay 1.

    Attributes:
        alpha: [1], starts at 1.
        beta: [1], starts at 1.

    Example:
        >>> from aero.nn import ScaledFusedFeedForward
        >>> import torch
        >>> feed_forward = ScaledFusedFeedForward(4)
        >>> _ = torch.nn.init.zeros_(feed_forward.weight)
        >>> feed_forward.scaled(torch.ones(1, 1, 4)).tolist()
        [[[1.0, 1.0, 1.0, 1.0]]]
    """

    _scale_names = ("alpha", "beta")

    def __init__(self, width: int, *, trainable: Collection[str] = ("alpha", "beta")) -> None:
        super().__init__(width)
        self.alpha, self.beta = _scales(trainable)

    def scaled(
        self, stream: Tensor, inputs: Tensor | None = None, *, input_scale: Tensor | None = None
    ) -> Tensor:
        """Returns ``beta * stream + (inputs W + b) / alpha``, [B, T, C].

        Args:
            stream: the residual stream, [B, T, C].
            inputs: the FFN's input where it is not the stream itself, [B, T, C].
            input_scale: [C], per-channel factor of the stream before W (a foldable norm). It goes
                into the rows of W, ``(x * s) W = x (diag(s) W)``: a pass over C*C numbers in place
                of several over B*T*C, and one operator call as without norm.
        """
        if inputs is not None:
            return self.beta * stream + self.forward(inputs) / self.alpha
        weight: Tensor = self.weight
        if input_scale is not None:
            weight = input_scale.to(weight.dtype).unsqueeze(-1) * weight
        return ops.scaled_ffn(stream, weight, self.bias, alpha=self.alpha, beta=self.beta)


def _scales(trainable: Collection[str]) -> tuple[nn.Parameter, nn.Parameter]:
    unknown = sorted(set(trainable) - {"alpha", "beta"})
    if unknown:
        raise ValueError(f"trainable must name 'alpha' and 'beta' only, got {', '.join(unknown)}")
    alpha, beta = (
        nn.Parameter(torch.ones(1), requires_grad=name in trainable) for name in ("alpha", "beta")
    )
    return alpha, beta
