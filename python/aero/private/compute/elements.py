"""Norms and activations in JAX, as SPU is to compute them: see `forward`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aero.network.description import Operation
from aero.private.settings import EXP_CLIP, PrivateSettings

Array = Any  # of JAX, or of SPU's compiler in its place
Weights = dict[str, Array]


def clipped_exp(x: Array, settings: PrivateSettings) -> Array:
    """exp(x) for x <= 0, and 0 below `EXP_CLIP` with `exp_clip`."""
    weights = jnp.exp(x)
    return jnp.where(x > EXP_CLIP, weights, 0.0) if settings.exp_clip else weights


def _diagonal(_: Operation, weights: Weights, x: Array) -> Array:
    return x * weights["scale"]


def _dynamic(function: Callable[[Array], Array]) -> Callable[[Operation, Weights, Array], Array]:
    """A function of SPU itself: its erf is right to 6e-4, its tanh to 5e-3."""

    def norm(_: Operation, weights: Weights, x: Array) -> Array:
        inner = x * weights["alpha"]
        if "shift" in weights:
            inner = inner + weights["shift"]
        return _with_bias(function(inner) * weights["weight"], weights)

    return norm


# As Flax computes both: the mean of the squares, and the gain in the reciprocal root.
def _layer(operation: Operation, weights: Weights, x: Array) -> Array:
    mean_square = jnp.mean(x * x, axis=-1, keepdims=True)
    mean = jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.maximum(0.0, mean_square - mean * mean)
    return _normed(operation, weights, x - mean, variance)


def _rms(operation: Operation, weights: Weights, x: Array) -> Array:
    return _normed(operation, weights, x, jnp.mean(x * x, axis=-1, keepdims=True))


def _normed(operation: Operation, weights: Weights, x: Array, mean_square: Array) -> Array:
    factor = jax.lax.rsqrt(mean_square + operation["epsilon"]) * weights["weight"]
    return _with_bias(x * factor, weights)


def _with_bias(x: Array, weights: Weights) -> Array:
    return x + weights["bias"] if "bias" in weights else x


NORMS: dict[str, Callable[[Operation, Weights, Array], Array]] = {
    "layer": _layer,
    "rms": _rms,
    "diagonal": _diagonal,
    "dynamic_tanh": _dynamic(jnp.tanh),
    "dynamic_erf": _dynamic(jax.lax.erf),
}


def _silu(_: Operation, __: PrivateSettings, x: Array) -> Array:
    """The tanh form: x times the logistic function takes 1.71 times the bytes."""
    half = x * 0.5
    return half * (1.0 + jnp.tanh(half))


def _gelu_erf(_: Operation, __: PrivateSettings, x: Array) -> Array:
    """The form of erf alone: JAX's own, which also divides into erfc, takes 3.2 times the bytes."""
    return (x * 0.5) * (1.0 + jax.lax.erf(x * float(np.sqrt(0.5))))


ACTIVATIONS: dict[str, Callable[[Operation, PrivateSettings, Array], Array]] = {
    "relu": lambda _, __, x: jnp.maximum(x, 0.0),
    "leaky_relu": lambda operation, _, x: jnp.where(x > 0, x, operation["slope"] * x),
    "gelu_tanh": lambda _, __, x: jax.nn.gelu(x, approximate=True),
    "gelu_erf": _gelu_erf,
    "silu": _silu,
    "tanh": lambda _, __, x: jnp.tanh(x),
    "sigmoid": lambda _, __, x: jax.nn.sigmoid(x),
    "exp": lambda _, settings, x: clipped_exp(x, settings),
    "reciprocal": lambda _, __, x: 1.0 / x,
    "rsqrt": lambda _, __, x: jax.lax.rsqrt(x),
    "relu_squared": lambda _, __, x: jnp.square(jnp.maximum(x, 0.0)),
}
