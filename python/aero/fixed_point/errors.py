"""How far each approximation is from exact arithmetic, on the ranges that networks use."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from aero._core import Arithmetic
from aero.fixed_point.approximations import Approximations
from aero.fixed_point.functions import (
    Ring,
    decode,
    encode,
    exponential,
    gelu,
    hyperbolic_tangent,
    layer_norm,
    product,
    reciprocal,
    reciprocal_square_root,
    softmax,
)

Reals = npt.NDArray[np.float64]

_POINTS = 20_001
# Below this a relative error says more about the last bit than about the approximation.
_SMALLEST = 2.0**-6


@dataclass(frozen=True)
class FunctionError:
    """The largest errors of one function.

    Attributes:
        name: The function.
        points: Where it was evaluated.
        largest: Largest absolute error.
        largest_relative: Largest error relative to exact values beyond 1/64 in magnitude.
    """

    name: str
    points: str
    largest: float
    largest_relative: float

    def to_dict(self) -> dict[str, str | float]:
        """As JSON-ready values."""
        return asdict(self)


def function_errors(approximations: Approximations | None = None) -> tuple[FunctionError, ...]:
    """The errors of a stack's arithmetic, function by function.

    Args:
        approximations: The arithmetic; by default that of `spu-2024`.

    Example:
        >>> from aero.fixed_point import Approximations, function_errors
        >>> five = function_errors(Approximations.of_stack("spu-2024", exp_squarings=5))
        >>> [f"{error.largest:.3f}" for error in five if error.name == "softmax"]
        ['0.057']
    """
    return tuple(_errors(approximations or Approximations()))


def _errors(chosen: Approximations) -> Iterator[FunctionError]:
    for name, points, x, function, exact in (*_elementwise(chosen), *_by_rows(chosen)):
        # A fresh one each: the shares' random error must not depend on the functions before.
        arithmetic = chosen.arithmetic()
        found = function(encode(x, arithmetic=arithmetic), arithmetic)
        error = np.abs(decode(found, arithmetic=arithmetic) - exact)
        large = np.abs(exact) > _SMALLEST
        relative = error[large] / np.abs(exact[large])
        yield FunctionError(name, points, float(error.max()), float(relative.max()))


# Name, range, points, the function in fixed point, its exact values.
_Case = tuple[str, str, Reals, Callable[[Ring, Arithmetic], Ring], Reals]


def _elementwise(chosen: Approximations) -> Iterator[_Case]:
    # Whole ring elements, so that nothing but the truncation of their product is left.
    unit = 2.0**-chosen.fraction_bits
    grid = np.round(np.linspace(-8, 8, _POINTS) / unit) * unit
    yield "product", "x * x on [-8, 8]", grid, lambda x, a: product(x, x, arithmetic=a), grid**2
    yield (
        f"exp, {chosen.exp_squarings} squarings",
        "[-14, 0]",
        (x := np.linspace(-14, 0, _POINTS)),
        lambda x, a: exponential(x, **_exponential(chosen), arithmetic=a),
        np.exp(x),
    )
    x = np.geomspace(_SMALLEST, 2.0 ** min(10, chosen.fraction_bits - 2), _POINTS)
    points = f"[1/64, {x[-1]:g}]"
    yield "1 / x", points, x, lambda x, a: reciprocal(x, arithmetic=a), 1 / x
    root = reciprocal_square_root
    yield "1 / sqrt(x)", points, x, lambda x, a: root(x, arithmetic=a), x**-0.5
    x = np.linspace(-8, 8, _POINTS)
    yield "tanh", "[-8, 8]", x, lambda x, a: hyperbolic_tangent(x, arithmetic=a), np.tanh(x)
    exact = np.array([0.5 * one * (1 + math.erf(one / math.sqrt(2))) for one in x])
    name = f"GELU, {chosen.gelu}"
    yield name, "[-8, 8]", x, lambda x, a: gelu(x, kind=chosen.gelu, arithmetic=a), exact


def _by_rows(chosen: Approximations) -> Iterator[_Case]:
    width = 128
    x = np.random.default_rng(0).standard_normal((12 * width, width))
    powers = np.exp(x - x.max(-1, keepdims=True))
    yield (
        "softmax",
        f"{len(x):,} rows of {width} scores from N(0, 1)",
        x,
        lambda x, a: softmax(
            x,
            **_exponential(chosen),
            score_truncation=chosen.score_truncation,
            broadcast_reciprocal=chosen.broadcast_reciprocal,
            arithmetic=a,
        ),
        powers / powers.sum(-1, keepdims=True),
    )

    def normalized(x: Ring, arithmetic: Arithmetic) -> Ring:
        gain, bias = (encode(np.full(width, one), arithmetic=arithmetic) for one in (1.0, 0.0))
        return layer_norm(x, gain, bias, epsilon=1e-5, arithmetic=arithmetic)

    deviations = np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    yield "LayerNorm", "the same rows", x, normalized, (x - x.mean(-1, keepdims=True)) / deviations


def _exponential(chosen: Approximations) -> dict[str, Any]:
    return {
        "squarings": chosen.exp_squarings,
        "clip": chosen.exp_clip,
        "clip_bits": chosen.clip_bits,
        "ring_32": chosen.exp_ring_bits == 32,
    }
