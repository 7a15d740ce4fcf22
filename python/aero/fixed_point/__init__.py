"""Z_2^64 fixed-point arithmetic as SPU computes with it; importable without torch.

The differences of private inference from exact arithmetic: exp by squarings, reciprocals by
Goldschmidt iterations, polynomials for 1/sqrt, tanh and GELU, and a truncation after every product.
The functions of `aero.fixed_point.functions` take and return ring elements, int64 arrays of
``x * 2**f``; its `encode` and `decode` convert. The bits are those of SPU (tests hold bits that
SPU 0.9.5 computed) up to what the two parties' shares add at random, which an `Arithmetic` draws on
request. The C++ is in `csrc/fixed_point`.

Example:
    >>> import numpy as np
    >>> from aero.fixed_point.functions import decode, encode, softmax
    >>> scores = np.random.default_rng(0).standard_normal((12 * 128, 128))
    >>> exact = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    >>> for squarings in (8, 5):  # the formula alone: 0.0065 and 0.0570
    ...     found = softmax(encode(scores), squarings=squarings)
    ...     print(round(abs(decode(found) - exact).max(), 4))
    0.0068
    0.0571
"""

from __future__ import annotations

from aero._core import Arithmetic
from aero.fixed_point.errors import Approximations, function_errors

__all__ = [
    "Approximations",
    "Arithmetic",
    "function_errors",
]
