"""The approximations of a stack, and their errors on the ranges that networks use."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from aero._core import Arithmetic
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
from aero.mpc.described_stacks import StackDescription, stack_description
from aero.mpc.simulation import plain_value

_FieldValue = bool | int | float | str

# Field of a stack (csrc/mpc/stacks.h) -> field of Approximations.
_STACK_FIELDS = {
    "exp_squarings": "exp_squarings",
    "exp_clip": "exp_clip",
    "clip_bits": "clip_bits",
    "exp_ring_bits": "exp_ring_bits",
    "gelu": "gelu",
    "one_bit_product_error": "one_bit_product_error",
    "extra_score_truncation": "score_truncation",
    "broadcast_reciprocal": "broadcast_reciprocal",
    "secret_temperature": "secret_temperature",
}
_OWN_FIELDS = ("fraction_bits", "truncation", "seed")


@dataclass(frozen=True)
class Approximations:
    """The arithmetic of a stack: the fields that change results, not those that change costs only.

    Attributes:
        fraction_bits: f, from 12 to 30.
        truncation: "floor", "nearest" or "shares", see `Arithmetic`.
        seed: of the shares' random error.
        one_bit_product_error: products may be off by one before they are truncated.
        exp_squarings: t of ``(1 + x / 2**t)**(2**t)``.
        exp_clip: exp is 0 below -14.
        clip_bits: width of that comparison.
        exp_ring_bits: ring of exp's squarings; 32 leaves 12 fraction bits.
        gelu: "tanh", "segment" or "piecewise".
        score_truncation: one more truncation of every attention score.
        broadcast_reciprocal: one reciprocal per softmax row, else a division per element.
        secret_temperature: ``1 / t`` is a separate product, else part of the queries' constant.

    Example:
        >>> from aero.fixed_point import Approximations
        >>> Approximations.of_stack("spu-2024", exp_squarings=5).exp_squarings
        5
    """

    fraction_bits: int = 18
    truncation: Literal["floor", "nearest", "shares"] = "floor"
    seed: int = 0
    one_bit_product_error: bool = False
    exp_squarings: int = 8
    exp_clip: bool = True
    clip_bits: int = 64
    exp_ring_bits: int = 64
    gelu: Literal["tanh", "segment", "piecewise"] = "tanh"
    score_truncation: bool = True
    broadcast_reciprocal: bool = True
    secret_temperature: bool = False

    @classmethod
    def of_stack(
        cls, stack: str | Path | StackDescription, /, **fields: _FieldValue
    ) -> Approximations:
        """Returns the arithmetic of a stack of `aero.mpc`.

        Args:
            stack: such as "spu-2024", "aero-approximate" or the path of a description. Prices that
                a description quotes say nothing on arithmetic: there it is the base's.
            **fields: fields of the stack (`exp_squarings=5`), and `fraction_bits`, `truncation` and
                `seed`. Fields that only change costs change nothing.

        Raises:
            ValueError: an unknown stack or field, a value out of its range, the exact GELU, other
                fields that are priced only, or `static_max`: what the static bound of the scores
                would be is up to the network's owner.
        """
        own = {name: fields.pop(name) for name in _OWN_FIELDS if name in fields}
        try:
            plain = {name: plain_value(name, value) for name, value in fields.items()}
            values = stack_description(stack).with_fields(plain.items()).fields
        except ValueError as error:
            raise ValueError(f"fixed point: {str(error).removeprefix('simulate: ')}") from None
        for name, computed in (("softmax_steps", 0), ("truncations", True), ("silu", "tanh")):
            if values[name] != computed:
                raise ValueError(
                    f"fixed point: {name} is priced only and must be {computed}, got {values[name]}"
                )
        if values["static_max"]:
            raise ValueError(
                "fixed point: static_max needs a bound of the scores and is not simulated"
            )
        if values["gelu"] in ("erf", "erfc"):
            raise ValueError(
                f'fixed point: gelu="{values["gelu"]}" is priced only; "tanh", "segment" or '
                '"piecewise"'
            )
        for name in ("fraction_bits", "seed"):
            if type(own.get(name, 0)) is not int:
                raise ValueError(f"fixed point: {name} must be an integer, got {own[name]!r}")
        if own.get("seed", 0) not in range(2**64):
            raise ValueError(f"fixed point: seed must be from 0 to 2^64 - 1, got {own['seed']}")
        named = {ours: values[theirs] for theirs, ours in _STACK_FIELDS.items()}
        found = cls(**named, **own)  # type: ignore[arg-type]
        found.arithmetic()  # checks the other fields
        return found

    def arithmetic(self) -> Arithmetic:
        """Returns a fresh `Arithmetic` whose generator starts at the seed."""
        return Arithmetic(
            fraction_bits=self.fraction_bits,
            truncation=str(self.truncation),
            one_bit_product_error=self.one_bit_product_error,
            seed=self.seed,
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
        """Returns its values ready for JSON."""
        return asdict(self)


def function_errors(approximations: Approximations | None = None) -> tuple[FunctionError, ...]:
    """Measures the errors of a stack's arithmetic, function by function.

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
        lambda x, a: exponential(x, **exponential_settings(chosen), arithmetic=a),
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
            **exponential_settings(chosen),
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


def exponential_settings(chosen: Approximations) -> dict[str, Any]:
    """Returns the settings of `functions.exponential` and of softmax's."""
    return {
        "squarings": chosen.exp_squarings,
        "clip": chosen.exp_clip,
        "clip_bits": chosen.clip_bits,
        "ring_32": chosen.exp_ring_bits == 32,
    }
