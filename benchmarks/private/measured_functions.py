"""The operations of `measure_bytes.py` in JAX, on random arguments.

Those of networks are the lines that networks run, from `aero.private.compute.forward`. Needs the
private environment.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from aero.network.description import TOKENS, Operation
from aero.private.compute import forward, pieces
from aero.private.compute.calls import Party
from aero.private.settings import PrivateSettings

__all__ = ["Argument", "Measured", "measured_operation"]

Sizes = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Argument:
    """An array that a party gives.

    Attributes:
        array: float32 or int32.
        owner: who.
        private: whether its owner keeps it.
    """

    array: NDArray[Any]
    owner: Party = Party.CLIENT
    private: bool = False


@dataclass(frozen=True, eq=False)
class Measured:
    """An operation with its arguments.

    Attributes:
        function: of arrays, one per argument.
        arguments: random.
    """

    function: Callable[..., Any]
    arguments: tuple[Argument, ...]


def measured_operation(
    operation: str, sizes: Sizes, settings: PrivateSettings, seed: int
) -> Measured:
    """One of `measured_grid.OPERATIONS`.

    Args:
        operation: its name.
        sizes: as there.
        settings: of both parties.
        seed: of the arguments.
    """
    return _OPERATIONS[operation](sizes, settings, np.random.default_rng(seed))


def _weight(array: NDArray[Any], settings: PrivateSettings) -> Argument:
    return Argument(array, Party.SERVER, private=settings.private_weights)


def _normal(random: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return random.standard_normal(shape).astype(np.float32)


def _elementwise(
    function: Callable[..., Any], arguments: int = 1, *, low: float = 0.0, sign: float = 0.0
) -> Callable[..., Measured]:
    """Bytes for standard normal numbers, or for `low` or more with the given sign."""

    def make(sizes: Sizes, _: PrivateSettings, random: np.random.Generator) -> Measured:
        arrays = [_normal(random, *sizes) for _ in range(arguments)]
        if sign:
            arrays = [np.float32(sign) * (np.abs(array) + np.float32(low)) for array in arrays]
        return Measured(function, tuple(Argument(array) for array in arrays))

    return make


def _by_weight(sizes: Sizes, settings: PrivateSettings, random: np.random.Generator) -> Measured:
    weight = _weight(_normal(random, *sizes), settings)
    return Measured(lambda x, w: x * w, (Argument(_normal(random, *sizes)), weight))


def _matmul(sizes: Sizes, settings: PrivateSettings, random: np.random.Generator) -> Measured:
    rows, inner, columns = sizes
    weight = _weight(_normal(random, inner, columns), settings)
    return Measured(lambda x, w: x @ w, (Argument(_normal(random, rows, inner)), weight))


def _exp(sizes: Sizes, settings: PrivateSettings, random: np.random.Generator) -> Measured:
    def function(x: Any) -> Any:
        return forward.clipped_exp(x, settings)

    return Measured(function, (Argument(-np.abs(_normal(random, *sizes))),))


def _softmax(sizes: Sizes, settings: PrivateSettings, random: np.random.Generator) -> Measured:
    heads, length = sizes
    function = functools.partial(forward.softmax, settings=settings)
    return Measured(function, (Argument(_normal(random, heads, length, length)),))


def _rms_norm(sizes: Sizes, settings: PrivateSettings, random: np.random.Generator) -> Measured:
    gain = _weight(_normal(random, sizes[1]), settings)
    norm = Operation("norm", {"kind": "rms", "epsilon": 1e-5}, ("x",), "y")

    def function(x: Any, weight: Any) -> Any:
        return forward.OPERATIONS["norm"](norm, {"weight": weight}, settings, x)

    return Measured(function, (Argument(_normal(random, *sizes)), gain))


def _silu(sizes: Sizes, settings: PrivateSettings, random: np.random.Generator) -> Measured:
    silu = Operation("activation", {"function": "silu"}, ("x",), "y")

    def function(x: Any) -> Any:
        return forward.OPERATIONS["activation"](silu, {}, settings, x)

    return Measured(function, (Argument(_normal(random, *sizes)),))


def _layer_norm(sizes: Sizes, settings: PrivateSettings, random: np.random.Generator) -> Measured:
    gain, bias = (_weight(_normal(random, sizes[1]), settings) for _ in range(2))
    norm = Operation("norm", {"kind": "layer", "epsilon": 1e-5}, ("x",), "y")

    def function(x: Any, weight: Any, shift: Any) -> Any:
        weights = {"weight": weight, "bias": shift}
        return forward.OPERATIONS["norm"](norm, weights, settings, x)

    return Measured(function, (Argument(_normal(random, *sizes)), gain, bias))


def _embedding(sizes: Sizes, settings: PrivateSettings, random: np.random.Generator) -> Measured:
    tokens, vocabulary, width = sizes
    numbers = random.integers(0, vocabulary, tokens).astype(np.int32)

    embed = Operation("embed", {}, (TOKENS,), "x")

    def function(chosen: Any, table: Any) -> Any:
        return forward.OPERATIONS["embed"](embed, {"weight": table}, settings, chosen)

    return Measured(
        function,
        (
            Argument(numbers, Party.CLIENT, private=settings.client_one_hot),
            _weight(_normal(random, vocabulary, width), settings),
        ),
    )


def _argmax(sizes: Sizes, _: PrivateSettings, random: np.random.Generator) -> Measured:
    return Measured(
        lambda logits: pieces.next_token(logits), (Argument(_normal(random, 1, 1, *sizes)),)
    )


_OPERATIONS: dict[str, Callable[[Sizes, PrivateSettings, np.random.Generator], Measured]] = {
    "truncation": _elementwise(lambda x: x * 0.3),
    "product": _elementwise(lambda x, y: x * y, arguments=2),
    "product by private weights": _by_weight,
    "matmul": _matmul,
    "comparison": _elementwise(lambda x: x > 0.0),
    "relu": _elementwise(lambda x: jnp.maximum(x, 0.0)),
    "maximum": _elementwise(lambda x: jnp.max(x, axis=-1)),
    "exp": _exp,
    "reciprocal": _elementwise(lambda x: 1.0 / x, low=0.5, sign=1.0),
    "rsqrt": _elementwise(jax.lax.rsqrt, low=0.5, sign=1.0),
    "softmax": _softmax,
    "layernorm": _layer_norm,
    "rmsnorm": _rms_norm,
    "gelu": _elementwise(lambda x: jax.nn.gelu(x, approximate=True)),
    "silu": _silu,
    "embedding": _embedding,
    "argmax": _argmax,
}
