"""One layer: attention and feed-forward joined by a residual scheme."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aero.architecture import ArchitectureSpec
from aero.nn.annealed_modules import AnnealedNorm
from aero.nn.attention import CausalSelfAttention, SequenceContext, ShapedSelfAttention
from aero.nn.feed_forward import (
    FeedForward,
    FusedFeedForward,
    ScaledFeedForward,
    ScaledFusedFeedForward,
)
from aero.nn.norm import DynamicNorm, FoldableNorm
from aero.nn.weight_decay import Scales

Norm = nn.LayerNorm | FoldableNorm | DynamicNorm | AnnealedNorm
Residual = Literal["sequential", "parallel", "skipless"]
Place = Literal["attention", "FFN", "beside FFN"]

# Start of the trainable gain on a skipless block's feed-forward (He & Hofmann, 2024).
INITIAL_GAIN = 0.1


def normalize(norm: Norm | None, stream: Tensor, token_mask: Tensor | None) -> Tensor:
    """Applies a norm that may be absent; foldable statistics leave masked tokens out."""
    if norm is None:
        return stream
    if isinstance(norm, (FoldableNorm, AnnealedNorm)):
        return norm(stream, token_mask)  # type: ignore[no-any-return]
    return norm(stream)  # type: ignore[no-any-return]


class BlockPart(Scales, ABC):
    """What a label adds to a layer, linear along the tokens: [B, T, C] from [B, T, C].

    In place ``"attention"`` or ``"FFN"`` it makes what that reads; ``"beside FFN"`` it adds to the
    FFN's output. `aero.nn.parts` lists all kinds.
    """

    @classmethod
    @abstractmethod
    def place_in(cls, spec: ArchitectureSpec) -> Place | None:
        """Returns where it stands in a network; None where that has none."""

    @classmethod
    @abstractmethod
    def of(cls, spec: ArchitectureSpec, layer_index: int) -> BlockPart:
        """Returns the one of a layer of a network that has it."""

    @property
    @abstractmethod
    def place(self) -> Place:
        """The place where it stands."""

    @abstractmethod
    def reset_parameters(self) -> None:
        """Sets the start at which the layer is as without it."""

    @abstractmethod
    def first_parameters(self) -> dict[str, Tensor]:
        """Returns what its parameters start as in a network that is trained from scratch."""

    @abstractmethod
    def multiplied_out(self, newest: Tensor | None) -> Tensor:
        """Returns the rows [n C, out] of the product that reads each token beside those before it.

        Args:
            newest: the product without the part, [C, out]; None of a product of its own beside an
                FFN of two layers, which reads the tokens before alone.
        """


class Block(Scales):
    """A transformer layer.

    - ``"sequential"`` (GPT-2): ``Y = X + MHA(N1(X))``, ``X' = Y + FFN(N2(Y))``.
    - ``"parallel"`` (Pythia): ``X' = X + MHA(N1(X)) + FFN(N2(X))``.
    - ``"skipless"`` (He & Hofmann, 2024): ``X' = MHA(N1(X)) + g * FFN(N1(X))``, g learned from 0.1.

    A scaled feed-forward replaces ``Y + FFN`` by ``beta * Y + FFN / alpha``, except in a skipless
    block, where g takes the place of both scales.

    Args:
        attn: the attention.
        mlp: the feed-forward; None for a pruned one, whose sub-block is then absent.
        ln_1: the norm before the attention; None without.
        ln_2: the norm before the feed-forward; None without, and always in a skipless block.
        residual: the scheme.
        parts: what else its label names, by the name that its weights have in state dicts.

    Example:
        >>> from aero.nn import Block, SequenceContext
        >>> import torch
        >>> from aero.nn import CausalSelfAttention, FeedForward
        >>> block = Block(CausalSelfAttention(16, 4), FeedForward(16, 64))
        >>> stream, entropy = block(torch.randn(2, 5, 16), SequenceContext())
        >>> stream.shape, entropy.shape
        (torch.Size([2, 5, 16]), torch.Size([2, 4, 5]))
    """

    _scale_names = ("gain",)

    def __init__(
        self,
        attn: CausalSelfAttention | ShapedSelfAttention,
        mlp: FeedForward | FusedFeedForward | None,
        ln_1: Norm | None = None,
        ln_2: Norm | None = None,
        *,
        residual: Residual = "sequential",
        parts: Mapping[str, BlockPart] | None = None,
    ) -> None:
        super().__init__()
        if residual not in get_args(Residual):
            known = ", ".join(get_args(Residual))
            raise ValueError(f"Block: residual must be one of {known}, got {residual!r}")
        self.ln_1 = ln_1
        self.attn = attn
        self.ln_2 = ln_2
        self.mlp = mlp
        self.residual = residual
        given: Mapping[str, nn.Module] = parts or {}
        for name, part in given.items():
            if not isinstance(part, BlockPart):
                kind = type(part).__name__
                raise ValueError(f"Block: parts must be of BlockPart, got {kind} for {name}")
            self.add_module(name, part)
        has_gain = residual == "skipless" and mlp is not None
        self.gain = nn.Parameter(torch.full((1,), INITIAL_GAIN)) if has_gain else None

    # The share that training drops of what attention and feed-forward add to the stream.
    dropout = 0.0

    def parts(self) -> dict[str, BlockPart]:
        """Returns what else its label names, by name."""
        return {name: part for name, part in self.named_children() if isinstance(part, BlockPart)}

    def forward(self, stream: Tensor, context: SequenceContext) -> tuple[Tensor, Tensor]:
        """Returns the new stream, [B, T, C], and the attention's row entropies, [B, H, T]."""
        inputs = normalize(self.ln_1, stream, context.token_mask)
        attended, entropy = self.attn(self._read_by("attention", inputs, context), context)
        attended = self._dropped(attended)
        if self.residual == "parallel":
            return attended + self._after_feed_forward(stream, context), entropy
        if self.residual == "sequential":
            return self._after_feed_forward(stream + attended, context), entropy
        if self.gain is not None:
            attended = attended + self.gain * self._dropped(self._feed_forward(inputs, context))
        return attended, entropy

    def _after_feed_forward(self, stream: Tensor, context: SequenceContext) -> Tensor:
        """The stream after feed-forward and gate, residual connection included."""
        if self.mlp is None:
            return stream
        fed = self._fed(self.mlp, stream, context)
        gates = context.gates
        return fed if gates is None else gates.on_ffn(stream, fed, self.attn.layer_index)

    def _fed(
        self, mlp: FeedForward | FusedFeedForward, stream: Tensor, context: SequenceContext
    ) -> Tensor:
        norm = self.ln_2
        # What is added to the FFN's output, or changes its input, needs the two apart.
        drops = self.dropout > 0 and self.training
        apart = drops or any(part.place != "attention" for part in self.parts().values())
        if isinstance(mlp, ScaledFusedFeedForward) and (
            not apart and (norm is None or isinstance(norm, FoldableNorm))
        ):
            scale = None if norm is None else norm.scale(stream, context.token_mask)
            return mlp.scaled(stream, input_scale=scale)
        inputs = normalize(norm, stream, context.token_mask)
        if not isinstance(mlp, (ScaledFeedForward, ScaledFusedFeedForward)):
            return stream + self._dropped(self._feed_forward(inputs, context))
        if apart:
            return (
                mlp.beta * stream + self._dropped(self._feed_forward(inputs, context)) / mlp.alpha
            )
        return mlp.scaled(stream, inputs)

    def _dropped(self, added: Tensor) -> Tensor:
        drops = self.dropout > 0 and self.training
        return F.dropout(added, self.dropout) if drops else added

    def _read_by(self, place: Place, inputs: Tensor, context: SequenceContext) -> Tensor:
        """The inputs through the parts in front of attention or feed-forward."""
        for part in self.parts().values():
            if part.place == place:
                inputs = part(inputs, context)
        return inputs

    def _feed_forward(self, inputs: Tensor, context: SequenceContext) -> Tensor:
        """The feed-forward with its parts."""
        read = self._read_by("FFN", inputs, context)
        gate = None if context.gates is None else context.gates.activation
        if isinstance(self.mlp, FeedForward) and self.mlp.activation == "leaky_relu":
            fed: Tensor = self.mlp(read, context.negative_slope)
        elif isinstance(self.mlp, FeedForward) and gate is not None:
            fed = self.mlp(read, activation_gate=gate)
        else:
            fed = self.mlp(read)  # type: ignore[misc]
        for part in self.parts().values():
            if part.place == "beside FFN":
                fed = fed + part(inputs, context)
        return fed
