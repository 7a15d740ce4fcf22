"""Attention and feed-forward of AERO networks on ring elements, as SPU would run them.

Weights are encoded once. What is linear and known before inference goes into them: foldable norms,
alpha, beta and the gain of skipless blocks. Activations are numpy int64 arrays.

Letters: B batch, T tokens, H heads, D head width, C model width.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from aero.fixed_point import Approximations, functions
from aero.fixed_point.functions import (
    error_function,
    gelu,
    hyperbolic_tangent,
    layer_norm,
    leaky_relu,
)
from aero.nn import (
    CausalSelfAttention,
    FeedForward,
    FoldableNorm,
    FusedFeedForward,
    ScaledFeedForward,
    ScaledFusedFeedForward,
    ShapedSelfAttention,
)
from aero.nn.norm import DynamicNorm
from aero.nn.rotary import RotaryTables

Ring = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]


class FixedPointOperations:
    """The functions of `aero.fixed_point` with the settings of one stack and one generator."""

    def __init__(self, approximations: Approximations) -> None:
        self.approximations = approximations
        self.arithmetic = approximations.arithmetic()

    def encode(self, values: Real | float) -> Ring:
        """Ring elements of real numbers."""
        return functions.encode(values, arithmetic=self.arithmetic)

    def matmul(self, a: Ring, b: Ring) -> Ring:
        """Truncated matrix product."""
        return functions.matmul(a, b, arithmetic=self.arithmetic)

    def times(self, x: Ring, factor: Real | float, *, secret: bool = False) -> Ring:
        """``x * factor``, truncated; the factor is public or, if `secret`, shared."""
        return functions.product(
            x, self.encode(factor), arithmetic=self.arithmetic, public=not secret
        )

    def softmax(self, scores: Ring, live: npt.NDArray[np.int64]) -> Ring:
        """Softmax of each row over its first `live` entries."""
        chosen = self.approximations
        return functions.softmax(
            scores,
            live=live,
            squarings=chosen.exp_squarings,
            clip=chosen.exp_clip,
            clip_bits=chosen.clip_bits,
            ring_32=chosen.exp_ring_bits == 32,
            score_truncation=chosen.score_truncation,
            broadcast_reciprocal=chosen.broadcast_reciprocal,
            arithmetic=self.arithmetic,
        )


class Affine:
    """``x W + b`` with an encoded weight.

    Args:
        operations: the arithmetic.
        weight: [in, out].
        bias: [out], or None.
    """

    def __init__(
        self, operations: FixedPointOperations, weight: Real, bias: Real | None = None
    ) -> None:
        self.operations = operations
        self.weight = operations.encode(np.ascontiguousarray(weight))
        self.bias = None if bias is None else operations.encode(bias)

    def __call__(self, x: Ring) -> Ring:
        """Returns [..., out] of [..., in]."""
        product = self.operations.matmul(x, self.weight)
        return product if self.bias is None else product + self.bias


class Normalization:
    """A norm before a layer, as far as it cannot be folded into that layer's weights.

    Args:
        operations: the arithmetic.
        norm: LayerNorm, foldable norm, DyT, Derf or None.

    Attributes:
        scale: [C], the factors of the next weight's inputs; all 1 but for a foldable norm.
        kept: the norm where it does not fold.
    """

    def __init__(
        self, operations: FixedPointOperations, norm: nn.Module | None, width: int
    ) -> None:
        self.operations = operations
        self.scale = np.ones(width)
        self.kept = norm if isinstance(norm, (nn.LayerNorm, DynamicNorm)) else None
        if isinstance(norm, FoldableNorm):
            mean_square = norm.running_mean_square.double()
            self.scale = self.scale * real(norm.weight * torch.rsqrt(mean_square + norm.eps))
        if self.kept is not None:
            self.gain = operations.encode(real(self.kept.weight))
            self.bias = operations.encode(real(self.kept.bias))

    def __call__(self, x: Ring) -> Ring:
        """LayerNorm, DyT or Derf of [..., C]; a foldable norm leaves x to the weights."""
        arithmetic = self.operations.arithmetic
        if isinstance(self.kept, nn.LayerNorm):
            epsilon = self.kept.eps
            return layer_norm(x, self.gain, self.bias, epsilon=epsilon, arithmetic=arithmetic)
        if self.kept is None:
            return x
        scaled = self.operations.times(x, real(self.kept.alpha), secret=True)
        if self.kept.shift is None:
            squashed = hyperbolic_tangent(scaled, arithmetic=arithmetic)
        else:
            shift = self.operations.encode(real(self.kept.shift))
            squashed = error_function(scaled + shift, arithmetic=arithmetic)
        return functions.product(squashed, self.gain, arithmetic=arithmetic) + self.bias


class Attention:
    """Causal attention of both kinds.

    Args:
        operations: the arithmetic.
        attention: the trained module.
        input_scale: [C], folded into the weights that read the inputs.
    """

    def __init__(
        self,
        operations: FixedPointOperations,
        attention: CausalSelfAttention | ShapedSelfAttention,
        input_scale: Real,
    ) -> None:
        self.operations = operations
        self.module = attention
        self.input_scale = input_scale
        names = ["q_attn", "k_attn", "v_attn"]
        if isinstance(attention, ShapedSelfAttention):
            names = names[:2]
        elif not attention.separate_projections:
            names = ["c_attn"]
        layers = [getattr(attention, name) for name in names]
        weight = np.concatenate([real(layer.weight) for layer in layers])
        bias = np.concatenate([real(layer.bias) for layer in layers])
        self.projection = Affine(operations, (weight * input_scale).T, bias)
        self.output = None
        if isinstance(attention, CausalSelfAttention):
            self.output = affine(operations, attention.c_proj)

    def __call__(self, inputs: Ring, rotary: RotaryTables | None) -> Ring:
        """Returns [B, T, C] of the inputs, [B, T, C], without their foldable norm."""
        num_tokens = inputs.shape[1]
        projected = self.projection(inputs)
        width = self.module.num_heads * self.module.head_dim
        query, key = (self._heads(projected[..., i * width :][..., :width]) for i in range(2))
        if rotary is not None:
            query, key = self._rotated(query, rotary), self._rotated(key, rotary)
        scores = self.operations.matmul(
            self._scaled_queries(query), np.ascontiguousarray(key.swapaxes(-1, -2))
        )
        live = np.broadcast_to(np.arange(1, num_tokens + 1), scores.shape[:-1])
        probabilities = self.operations.softmax(scores, live)
        if self.output is not None:
            attended = self.operations.matmul(
                probabilities, self._heads(projected[..., 2 * width :])
            )
            return self.output(_merged(attended))
        return self._shaped(inputs, probabilities)

    def _heads(self, projected: Ring) -> Ring:
        """[B, T, H * D] -> [B, H, T, D]."""
        split = projected.reshape(*projected.shape[:-1], self.module.num_heads, -1)
        return np.ascontiguousarray(split.swapaxes(1, 2))

    def _scaled_queries(self, query: Ring) -> Ring:
        """Queries over ``t sqrt(D)``; a public t is part of the constant."""
        scale = 1 / math.sqrt(self.module.head_dim)
        temperature = self.module.temperature
        if temperature is None:
            return self.operations.times(query, scale)
        values = 1 / real(temperature(num_positions=query.shape[2]))
        factor = values[:, :, None] if values.ndim == 2 else values[:, None, None]
        if self.operations.approximations.secret_temperature:
            return self.operations.times(self.operations.times(query, scale), factor, secret=True)
        return self.operations.times(query, scale * factor)

    def _rotated(self, heads: Ring, rotary: RotaryTables) -> Ring:
        cos, sin = (real(table) for table in rotary)
        half = cos.shape[-1]
        times = self.operations.times
        first, second = heads[..., :half], heads[..., half : 2 * half]
        return np.concatenate(
            (
                times(first, cos) - times(second, sin),
                times(second, cos) + times(first, sin),
                heads[..., 2 * half :],
            ),
            axis=-1,
        )

    def _shaped(self, inputs: Ring, probabilities: Ring) -> Ring:
        """``(alpha I + beta P - gamma C) X`` of each head, with the public part added to beta P."""
        module = self.module
        assert isinstance(module, ShapedSelfAttention)
        alpha, beta, gamma = (
            real(factor)[:, None, None] for factor in (module.alpha, module.beta, module.gamma)
        )
        num_tokens = inputs.shape[1]
        uniform = np.tril(np.ones((num_tokens, num_tokens)))
        uniform /= uniform.sum(axis=1, keepdims=True)
        public = alpha * np.eye(num_tokens) - gamma * uniform
        matrix = self.operations.times(probabilities, beta) + self.operations.encode(public)
        values = inputs
        if not np.all(self.input_scale == 1):
            values = self.operations.times(inputs, self.input_scale)
        return _merged(self.operations.matmul(matrix, self._heads(values)))


class FeedForwardNetwork:
    """``act(x W_in + b_in) W_out + b_out``, or one matrix for a fused one.

    Args:
        operations: the arithmetic.
        feed_forward: the trained module.
        input_scale: [C], folded into the first weight.
        output_scale: folded into the last weight and bias: 1 / alpha or a gain.
        network_slope: the leaky slope where the module has none of its own.
    """

    def __init__(
        self,
        operations: FixedPointOperations,
        feed_forward: FeedForward | FusedFeedForward,
        input_scale: Real,
        output_scale: float = 1.0,
        network_slope: Tensor | None = None,
    ) -> None:
        self.activation: Callable[[Ring], Ring] | None = None
        if isinstance(feed_forward, FusedFeedForward):  # weight [in, out]
            weight = input_scale[:, None] * real(feed_forward.weight) * output_scale
            self.layers = [Affine(operations, weight, real(feed_forward.bias) * output_scale)]
            return
        self.layers = [
            affine(operations, feed_forward.c_fc, input_scale=input_scale),
            affine(operations, feed_forward.c_proj, output_scale=output_scale),
        ]
        slope = feed_forward.negative_slope
        self.activation = _activation(
            operations, feed_forward.activation, network_slope if slope is None else slope
        )

    def __call__(self, inputs: Ring) -> Ring:
        """Returns [..., C]."""
        hidden = self.layers[0](inputs)
        if self.activation is not None:
            hidden = self.activation(hidden)
        return self.layers[1](hidden) if len(self.layers) == 2 else hidden


def joined_scaled_feed_forward(
    operations: FixedPointOperations, feed_forward: ScaledFusedFeedForward, input_scale: Real
) -> Affine:
    """``beta y + (y W + b) / alpha`` as one matrix, ``beta I + W / alpha`` (AERO, Eq. 6)."""
    alpha, beta = scales(feed_forward)
    weight = input_scale[:, None] * real(feed_forward.weight) / alpha
    return Affine(operations, weight + beta * np.eye(len(weight)), real(feed_forward.bias) / alpha)


def scales(feed_forward: ScaledFeedForward | ScaledFusedFeedForward) -> tuple[float, float]:
    """Alpha and beta."""
    return feed_forward.alpha.item(), feed_forward.beta.item()


def affine(
    operations: FixedPointOperations,
    linear: nn.Linear,
    *,
    input_scale: Real | float = 1.0,
    output_scale: float = 1.0,
) -> Affine:
    """A linear layer, weight [out, in], with factors folded in."""
    weight = real(linear.weight) * input_scale * output_scale
    bias = None if linear.bias is None else real(linear.bias) * output_scale
    return Affine(operations, weight.T, bias)


def real(tensor: Tensor) -> Real:
    """The values of a tensor, float64."""
    return tensor.detach().double().cpu().numpy()


def _activation(
    operations: FixedPointOperations, name: str, slope: Tensor | None
) -> Callable[[Ring], Ring] | None:
    arithmetic = operations.arithmetic
    if name == "gelu":
        kind = operations.approximations.gelu
        return lambda x: gelu(x, kind=kind, arithmetic=arithmetic)
    if name == "relu":
        return lambda x: np.maximum(x, 0)
    if name == "leaky_relu":
        assert slope is not None
        value = slope.item()
        return lambda x: leaky_relu(x, value, arithmetic=arithmetic)
    return None


def _merged(heads: Ring) -> Ring:
    """[B, H, T, D] -> [B, T, H * D]."""
    swapped = heads.swapaxes(1, 2)
    return np.ascontiguousarray(swapped).reshape(*swapped.shape[:2], -1)
