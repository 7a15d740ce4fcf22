"""Norms and activations in the fixed-point arithmetic of private inference, Z_2^64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from aero.fixed_point import Approximations, functions
from aero.fixed_point.errors import exponential_settings
from aero.network.description import Operation

Ring = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]
Weights = dict[str, Any]


class RingOperations:
    """The functions of `aero.fixed_point` with the settings of one stack and one generator."""

    def __init__(self, approximations: Approximations) -> None:
        self.approximations = approximations
        self.arithmetic = approximations.arithmetic()

    def encode(self, values: Real | float) -> Ring:
        """Ring elements of real numbers."""
        return functions.encode(values, arithmetic=self.arithmetic)

    def matmul(self, a: Ring, b: Ring) -> Ring:
        """Truncated matrix product."""
        whole = (np.ascontiguousarray(each) for each in (a, b))
        return functions.matmul(*whole, arithmetic=self.arithmetic)

    def times(self, x: Ring, factor: Real | float, *, secret: bool = False) -> Ring:
        """``x * factor``, truncated; the factor is public or, if `secret`, shared."""
        return functions.product(
            x, self.encode(factor), arithmetic=self.arithmetic, public=not secret
        )


def _diagonal(run: RingOperations, _: Operation, weights: Weights, x: Ring) -> Ring:
    return run.times(x, weights["scale"])


def _layer(run: RingOperations, operation: Operation, weights: Weights, x: Ring) -> Ring:
    return functions.layer_norm(
        x, *_gain_and_bias(run, weights), epsilon=operation["epsilon"], arithmetic=run.arithmetic
    )


def _rms(run: RingOperations, operation: Operation, weights: Weights, x: Ring) -> Ring:
    """The mean of the squares, and the gain in the reciprocal root, as SPU runs it."""
    arithmetic, epsilon = run.arithmetic, run.encode(operation["epsilon"])
    squares = functions.product(x, x, arithmetic=arithmetic)
    mean = run.times(squares.sum(axis=-1, keepdims=True), 1 / x.shape[-1])
    root = functions.reciprocal_square_root(mean + epsilon, arithmetic=arithmetic)
    gain = run.encode(weights["weight"])
    factor = functions.product(np.broadcast_to(root, x.shape), gain, arithmetic=arithmetic)
    return functions.product(x, factor, arithmetic=arithmetic)


def _dynamic_tanh(run: RingOperations, _: Operation, weights: Weights, x: Ring) -> Ring:
    scaled = run.times(x, weights["alpha"], secret=True)
    squashed = functions.hyperbolic_tangent(scaled, arithmetic=run.arithmetic)
    return _with_gain(run, weights, squashed)


def _dynamic_erf(run: RingOperations, _: Operation, weights: Weights, x: Ring) -> Ring:
    scaled = run.times(x, weights["alpha"], secret=True)
    shifted = scaled + run.encode(weights["shift"])
    squashed = functions.error_function(shifted, arithmetic=run.arithmetic)
    return _with_gain(run, weights, squashed)


def _gain_and_bias(run: RingOperations, weights: Weights) -> tuple[Ring, Ring]:
    gain = weights["weight"]
    return run.encode(gain), run.encode(weights.get("bias", np.zeros_like(gain)))


def _with_gain(run: RingOperations, weights: Weights, x: Ring) -> Ring:
    gain, bias = _gain_and_bias(run, weights)
    return functions.product(x, gain, arithmetic=run.arithmetic) + bias


NORMS: dict[str, Callable[[RingOperations, Operation, Weights, Ring], Ring]] = {
    "layer": _layer,
    "rms": _rms,
    "diagonal": _diagonal,
    "dynamic_tanh": _dynamic_tanh,
    "dynamic_erf": _dynamic_erf,
}


def _gelu(run: RingOperations, _: Operation, x: Ring) -> Ring:
    """The stack's GELU, whichever form the network has."""
    return functions.gelu(x, kind=run.approximations.gelu, arithmetic=run.arithmetic)


def _silu(run: RingOperations, _: Operation, x: Ring) -> Ring:
    """``x / 2 (1 + tanh(x / 2))``."""
    half = run.times(x, 0.5)
    squashed = functions.hyperbolic_tangent(half, arithmetic=run.arithmetic)
    return functions.product(half, squashed + run.encode(1.0), arithmetic=run.arithmetic)


def _exp(run: RingOperations, _: Operation, x: Ring) -> Ring:
    """Computes exp as softmax does."""
    return functions.exponential(
        x, **exponential_settings(run.approximations), arithmetic=run.arithmetic
    )


def _relu_squared(run: RingOperations, _: Operation, x: Ring) -> Ring:
    positive = np.maximum(x, 0)
    return functions.product(positive, positive, arithmetic=run.arithmetic)


def _sigmoid(run: RingOperations, _: Operation, x: Ring) -> Ring:
    """``1 / (1 + exp(-x))``; of either sign, so that nothing clips exp."""
    squarings, arithmetic = run.approximations.exp_squarings, run.arithmetic
    grown = functions.exponential(-x, squarings=squarings, clip=False, arithmetic=arithmetic)
    return functions.reciprocal(grown + run.encode(1.0), arithmetic=arithmetic)


ACTIVATIONS: dict[str, Callable[[RingOperations, Operation, Ring], Ring]] = {
    "relu": lambda _, __, x: np.maximum(x, 0),
    "leaky_relu": lambda run, operation, x: functions.leaky_relu(
        x, operation["slope"], arithmetic=run.arithmetic
    ),
    "gelu_tanh": _gelu,
    "gelu_erf": _gelu,
    "silu": _silu,
    "tanh": lambda run, _, x: functions.hyperbolic_tangent(x, arithmetic=run.arithmetic),
    "sigmoid": _sigmoid,
    "exp": _exp,
    "reciprocal": lambda run, _, x: functions.reciprocal(x, arithmetic=run.arithmetic),
    "rsqrt": lambda run, _, x: functions.reciprocal_square_root(x, arithmetic=run.arithmetic),
    "relu_squared": _relu_squared,
}
