"""A causal convolution along the tokens: linear, so a private run has nothing to compare in it.

In Primer (arXiv 2109.08668) a depthwise one follows queries, keys and values. Canon layers
(Allen-Zhu, 2025) are depthwise ones before attention and FFN. H3 (2212.14052) and Mamba
(2312.00752) have short ones before their long memory. RWKV (2305.13048) mixes in the last token.

Letters: B batch, T tokens of this call, S keys with cached ones, H heads, C model width.
"""

from __future__ import annotations

import math
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aero.architecture import ArchitectureSpec
from aero.nn.attention import SequenceContext
from aero.nn.block import BlockPart, Place
from aero.nn.linear import linear

ConvolutionKind = Literal["full", "depthwise", "token_shift"]
_PLACES: dict[str, Place] = {
    "full": "beside FFN",
    "depthwise": "FFN",
    "token_shift": "attention",
}


class CausalConvolution(BlockPart):
    """What the tokens before add to each token; a token reads those that attention lets it see.

    ``"full"``: ``y_t = sum over k >= 1 of x_{t-k} W_k``, to be added to what an FFN makes of x_t;
    the FFN is the newest tap. ``"depthwise"`` and ``"token_shift"``: ``y_t = sum over k >= 0 of
    w_k * x_{t-k}``, to be read by an FFN, or by queries, keys and values, in place of x_t.

    Args:
        width: C.
        taps: how many tokens there are, the token's own included.
        kind: the one of `ArchitectureSpec.convolution`.
        layer_index: this layer's place in the cache.

    Attributes:
        weight: of a full one [taps - 1, C in, C out], from k = 1 on, starting at 0; else [taps, C],
            from k = 0 on, starting at 1 for the token itself and 0 for those before, which in a
            network that is trained from scratch start at random.
    """

    def __init__(
        self, width: int, taps: int, kind: ConvolutionKind, *, layer_index: int = 0
    ) -> None:
        super().__init__()
        self.taps, self.kind, self.layer_index = taps, kind, layer_index
        if kind != "full":
            self._scale_names = ("weight",)
        shape = (taps - 1, width, width) if kind == "full" else (taps, width)
        self.weight = nn.Parameter(torch.empty(shape))
        self.reset_parameters()

    @classmethod
    def place_in(cls, spec: ArchitectureSpec) -> Place | None:
        """Returns where it stands in a network; None where that has none."""
        return _PLACES.get(spec.convolution)

    @classmethod
    def of(cls, spec: ArchitectureSpec, layer_index: int) -> CausalConvolution:
        """Returns the one of a layer of a network."""
        kind = cast(Any, spec.convolution)
        return cls(spec.width, spec.convolution_taps, kind, layer_index=layer_index)

    @property
    def place(self) -> Place:
        """The place of its kind."""
        return _PLACES[self.kind]

    def reset_parameters(self) -> None:
        """The start, at which there is no convolution."""
        with torch.no_grad():
            self.weight.zero_()
            if self.kind != "full":
                self.weight[0] = 1.0

    def first_parameters(self) -> dict[str, Tensor]:
        """The factors of the tokens before start like torch's `Conv1d`, matrices at zero.

        Factors that start at zero stay alike in all channels: D4 with one head then ends at an
        eighth more perplexity (docs/explanation/negative_results.md). For matrices the two starts
        are equal.
        """
        if self.kind == "full":
            return {"weight": torch.zeros_like(self.weight)}
        bound = 1.0 / math.sqrt(self.taps)
        start = torch.empty_like(self.weight).uniform_(-bound, bound)
        start[0] = 1.0
        return {"weight": start}

    def multiplied_out(self, newest: Tensor | None) -> Tensor:
        """Returns its weights in the rows of the product that reads all taps, newest first."""
        if self.kind == "full":
            earlier = self.weight.flatten(0, 1)
            return earlier if newest is None else torch.cat([newest, earlier])
        assert newest is not None
        return (self.weight.double().unsqueeze(-1) * newest.double()).flatten(0, 1)

    def forward(self, inputs: Tensor, context: SequenceContext) -> Tensor:
        """Returns y, [B, T, C].

        Args:
            inputs: x, [B, T, C].
            context: mask and cache of this call.
        """
        earlier = self._earlier(inputs, context)
        if self.kind == "full":
            # One product: as fast as torch's conv1d, and as one for each tap.
            return linear(torch.cat(earlier, dim=-1), self.weight.flatten(0, 1).t())
        mixed = inputs * self.weight[0]
        for factor, values in zip(self.weight[1:], earlier, strict=True):
            mixed = torch.addcmul(mixed, values, factor.to(values.dtype))
        return mixed

    def _earlier(self, inputs: Tensor, context: SequenceContext) -> list[Tensor]:
        """x_{t-1}, x_{t-2}, ..., [B, T, C] each; 0 where there is none or it is not visible."""
        length, most = inputs.shape[1], self.taps - 1
        known = inputs
        if context.cache is not None:
            cache: Any = context.cache
            known = cache.update_conv_state(
                inputs.transpose(1, 2), self.layer_index, conv_kernel_size=most
            ).transpose(1, 2)[:, -(length + most) :]
        known = F.pad(known, (0, 0, length + most - known.shape[1], 0))
        found = [known[:, most - delay : most - delay + length] for delay in range(1, self.taps)]
        if context.mask is None:
            return found
        return [
            values * _sees(context, length, delay).to(values.dtype)
            for delay, values in enumerate(found, start=1)
        ]

    def extra_repr(self) -> str:
        """Kind, taps and width."""
        return f"{self.kind!r}, taps={self.taps}, width={self.weight.shape[-1]}"


def _sees(context: SequenceContext, length: int, delay: int) -> Tensor:
    """Returns whether each token sees the one `delay` before it, [B or 1, T, 1]."""
    assert context.mask is not None
    queries = torch.arange(length, device=context.mask.device)
    keys = queries + context.num_cached - delay
    seen = context.mask.any(dim=1)[:, queries, keys.clamp(min=0)]
    return (seen & (keys >= 0)).unsqueeze(-1)
