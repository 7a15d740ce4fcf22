"""The functions on arrays of ring elements: checks here, arithmetic in `csrc/fixed_point`.

Every function takes int64 arrays of any shape unless said otherwise, and `arithmetic`, by default
f = 18 with truncation by arithmetic shift.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from aero._core import Arithmetic

Ring = npt.NDArray[np.int64]
GeluKind = Literal["tanh", "segment", "piecewise"]


def encode(values: npt.ArrayLike, *, arithmetic: Arithmetic | None = None) -> Ring:
    """Ring elements ``values * 2**f``, rounded towards zero (SPU, encoding.cc).

    NaN becomes 0; values beyond ±2^(62 - f) become that bound, as in SPU.

    Args:
        values: real numbers.
        arithmetic: gives f.
    """
    return _of(arithmetic).encode(np.asarray(values, dtype=np.float64))


def decode(elements: Ring, *, arithmetic: Arithmetic | None = None) -> npt.NDArray[np.float64]:
    """Real numbers ``elements * 2**-f``."""
    return _of(arithmetic).decode(_ring("decode", "elements", elements))


def truncate(elements: Ring, bits: int, *, arithmetic: Arithmetic | None = None) -> Ring:
    """Ring elements divided by ``2**bits``, rounded down, or off by one as shares are.

    With ``Arithmetic(truncation="shares")`` each party shifts its own share and one of them rounds
    to even: the result is ``floor - c + r``, c the carry out of the dropped bits and r a coin
    (SPU, truncate_prot.cc).

    Args:
        elements: ring elements.
        bits: from 0 to 63.
        arithmetic: how to truncate.
    """
    if not 0 <= bits <= 63:
        raise ValueError(f"truncate: bits must be from 0 to 63, got {bits}")
    return _of(arithmetic).truncate(_ring("truncate", "elements", elements), bits)


def product(
    a: Ring, b: Ring, *, arithmetic: Arithmetic | None = None, public: bool = False
) -> Ring:
    """Elementwise product ``a b / 2**f``: exact in the ring, then truncated (SPU, f_mul).

    Args:
        a: ring elements.
        b: ring elements, broadcastable to the shape of `a`.
        arithmetic: how to truncate.
        public: both parties know b, so the product itself is local and has no one-bit error.
    """
    a = _ring("product", "a", a)
    b = _ring("product", "b", b)
    try:
        b = np.broadcast_to(b, a.shape)
    except ValueError:
        raise ValueError(
            f"product: b must be broadcastable to the shape of a, {a.shape}, got {b.shape}"
        ) from None
    return _of(arithmetic).product(a, b, public)


def matmul(a: Ring, b: Ring, *, arithmetic: Arithmetic | None = None) -> Ring:
    """Matrix product ``a b / 2**f``: exact in the ring, one truncation (SPU, f_mmul).

    Args:
        a: [..., rows, inner].
        b: [inner, columns], or [..., inner, columns] with the leading sizes of `a`.
        arithmetic: how to truncate.

    Returns:
        [..., rows, columns].
    """
    a = _ring("matmul", "a", a)
    b = _ring("matmul", "b", b)
    is_shared = b.ndim == 2
    if a.ndim < 2 or b.ndim < 2 or not (is_shared or b.shape[:-2] == a.shape[:-2]):
        raise ValueError(
            f"matmul: a must be [..., rows, inner] and b [inner, columns] or [..., inner, columns] "
            f"with the same leading sizes, got {a.shape} and {b.shape}"
        )
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"matmul: the inner sizes must be equal, got {a.shape[-1]} and {b.shape[-2]}"
        )
    shape = (*a.shape[:-1], b.shape[-1])
    left = a.reshape(1, -1, a.shape[-1]) if is_shared else a.reshape(-1, *a.shape[-2:])
    return _of(arithmetic).matmul(left, b.reshape(-1, *b.shape[-2:])).reshape(shape)


def exponential(
    x: Ring,
    *,
    squarings: int = 8,
    clip: bool = True,
    clip_bits: int = 64,
    ring_32: bool = False,
    arithmetic: Arithmetic | None = None,
) -> Ring:
    """``exp(x)`` for x <= 0 as ``(1 + x / 2**t)**(2**t)`` (SPU, fxp_approx.cc, exp_taylor).

    A shift by t, then t truncated squares. The relative error is about ``-x**2 / 2**(t + 1)``.

    Args:
        x: ring elements of numbers <= 0.
        squarings: t, from 1 to 17.
        clip: 0 below -14 (SPU's example flax_llama7b.py). Without it results are meaningless below
            ``-2**(t + 1)``.
        clip_bits: width of that comparison, from 5 to 64; 64 is exact, 50 resolves 1/16
            (OpenBumbleBee, alg.cc, batch_less_ap).
        ring_32: squares in Z_2^32 with 12 fraction bits.
        arithmetic: how to truncate.
    """
    _check_exponential("exponential", squarings, clip_bits)
    x = _ring("exponential", "x", x)
    return _of(arithmetic).exponential(x, squarings, clip, clip_bits, ring_32)


def reciprocal(x: Ring, *, arithmetic: Arithmetic | None = None) -> Ring:
    """``1 / x`` by two Goldschmidt iterations (SPU, fxp_base.cc, reciprocal_goldschmidt).

    ``c = |x| / 2**m`` in [1/2, 1), ``r = 2.9142 - 2 c``, ``e = 1 - c r``, then twice ``r (1 + e)``,
    ``e**2``; last ``r / 2**m``. Relative error up to 6e-5 and one unit of ``2**-f``. 0 gives 0.

    Args:
        x: ring elements, ``|x| < 2**f``.
        arithmetic: how to truncate.
    """
    return _of(arithmetic).reciprocal(_ring("reciprocal", "x", x))


def reciprocal_square_root(x: Ring, *, arithmetic: Arithmetic | None = None) -> Ring:
    """``1 / sqrt(x)`` by a polynomial of degree 4 (SPU, fxp_approx.cc, f_rsqrt).

    ``x = u 2**(e + 1)`` with u in [1/4, 1/2), the polynomial in u, times ``2**(-(e + 1) / 2)``.
    Relative error up to 1e-3; 0 outside ``0 < x < 2**(f - 1)``.
    """
    return _of(arithmetic).reciprocal_square_root(_ring("reciprocal_square_root", "x", x))


def hyperbolic_tangent(x: Ring, *, arithmetic: Arithmetic | None = None) -> Ring:
    """``tanh(x)`` as a Chebyshev series (SPU, fxp_approx.cc, tanh_chebyshev).

    ``sum c_n T_n(x / 5)`` over n = 1, 3, ..., 17, with x clamped to [-5, 5]. Error up to 0.005.
    """
    return _of(arithmetic).hyperbolic_tangent(_ring("hyperbolic_tangent", "x", x))


def error_function(x: Ring, *, arithmetic: Arithmetic | None = None) -> Ring:
    """``erf(x)`` as ``1 - 1 / p(|x|)**4`` with the sign of x (SPU, fxp_approx.cc, f_erf).

    p is the polynomial of degree 4 of Abramowitz and Stegun's equation 7.1.27; from |x| = 3 on the
    result is 1. Error up to 6e-4.

    Args:
        x: ring elements.
        arithmetic: how to truncate.
    """
    used = _of(arithmetic)
    three, one = (int(encode(value, arithmetic=used)) for value in (3.0, 1.0))
    y = np.minimum(np.abs(_ring("error_function", "x", x)), three)
    powers = [y, square := product(y, y, arithmetic=used)]
    powers += [product(factor, square, arithmetic=used) for factor in powers]
    factors = (0.278393, 0.230389, 0.000972, 0.078108)
    terms = [p * encode(f, arithmetic=used) for p, f in zip(powers, factors, strict=True)]
    p = truncate(np.sum(terms, axis=0), used.fraction_bits, arithmetic=used) + one
    for _ in range(2):
        p = product(p, p, arithmetic=used)
    erf: Ring = np.where(y < three, one - reciprocal(p, arithmetic=used), one)
    return np.where(x < 0, -erf, erf)


def gelu(x: Ring, *, kind: GeluKind = "tanh", arithmetic: Arithmetic | None = None) -> Ring:
    """GELU in one of the forms that stacks use.

    Args:
        x: ring elements.
        kind: ``"tanh"``, ``0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3)))`` with
            `hyperbolic_tangent` (SPU's lowering of `jax.nn.gelu`; error up to 0.011 on [-8, 8]);
            ``"segment"``, a polynomial of degree 4 in |x| on [-3, 3] in Z_2^32 with 12 fraction
            bits (OpenBumbleBee, activation.cc; 0.009); ``"piecewise"``, degrees 3 and 6 on
            [-4, 3] in Z_2^64 (PUMA, arXiv 2307.12533; 0.018).
        arithmetic: how to truncate.
    """
    return _of(arithmetic).gelu(_ring("gelu", "x", x), kind)


def leaky_relu(x: Ring, slope: float, *, arithmetic: Arithmetic | None = None) -> Ring:
    """``x`` where x >= 0, else ``slope * x``; with slope 0 the ReLU, which is exact.

    Args:
        x: ring elements.
        slope: of the negative side, a constant that both parties know.
        arithmetic: how to truncate.
    """
    used = _of(arithmetic)
    return used.leaky_relu(_ring("leaky_relu", "x", x), int(used.encode(np.asarray(slope))))


def softmax(
    scores: Ring,
    *,
    live: npt.ArrayLike | None = None,
    squarings: int = 8,
    clip: bool = True,
    clip_bits: int = 64,
    ring_32: bool = False,
    score_truncation: bool = False,
    broadcast_reciprocal: bool = True,
    arithmetic: Arithmetic | None = None,
) -> Ring:
    """``exp(x - max) * (1 / sum exp(x - max))`` of each row (SPU's flax_llama7b.py, hack_softmax).

    Args:
        scores: [..., columns] ring elements.
        live: [...] integers, how many leading entries of each row are visible; the others become
            0. None: all.
        squarings: as in `exponential`.
        clip: as in `exponential`.
        clip_bits: as in `exponential`.
        ring_32: as in `exponential`.
        score_truncation: the scores are first multiplied by a constant 1 and truncated.
        broadcast_reciprocal: one reciprocal per row (SPU's option
            enable_optimize_denominator_with_broadcast), else a division per element.
        arithmetic: how to truncate.

    Returns:
        [..., columns] probabilities.
    """
    _check_exponential("softmax", squarings, clip_bits)
    scores = _ring("softmax", "scores", scores)
    if scores.ndim < 1:
        raise ValueError("softmax: scores must be [..., columns], got a scalar")
    columns = scores.shape[-1]
    counts = np.full(scores.shape[:-1], columns, dtype=np.int64)
    if live is not None:
        counts = np.asarray(live)
        wrong = counts.shape != scores.shape[:-1] or not np.issubdtype(counts.dtype, np.integer)
        if wrong or (counts.size and not 0 <= counts.min() <= counts.max() <= columns):
            raise ValueError(
                f"softmax: live must be integers from 0 to {columns} of shape {scores.shape[:-1]}, "
                f"got shape {counts.shape}, dtype {counts.dtype}"
            )
    rows = scores.reshape(counts.size, columns)
    return (
        _of(arithmetic)
        .softmax(
            rows,
            np.ascontiguousarray(counts, dtype=np.int64).ravel(),
            squarings,
            clip,
            clip_bits,
            ring_32,
            score_truncation,
            broadcast_reciprocal,
        )
        .reshape(scores.shape)
    )


def layer_norm(
    x: Ring, gain: Ring, bias: Ring, *, epsilon: float, arithmetic: Arithmetic | None = None
) -> Ring:
    """``(x - m) (rsqrt(max(0, mean(x**2) - m**2) + epsilon) gain) + bias``, Flax's LayerNorm.

    Args:
        x: [..., width] ring elements; m is the mean of a row.
        gain: [width] ring elements.
        bias: [width] ring elements.
        epsilon: added to the variance.
        arithmetic: how to truncate.
    """
    x = _ring("layer_norm", "x", x)
    gain, bias = _ring("layer_norm", "gain", gain), _ring("layer_norm", "bias", bias)
    if x.ndim < 1 or not gain.shape == bias.shape == x.shape[-1:] or x.shape[-1] == 0:
        raise ValueError(
            "layer_norm: x must be [..., width], gain and bias [width] with width > 0, got "
            f"{x.shape}, {gain.shape} and {bias.shape}"
        )
    rows = x.reshape(-1, x.shape[-1])
    return _of(arithmetic).layer_norm(rows, gain, bias, epsilon).reshape(x.shape)


def _of(arithmetic: Arithmetic | None) -> Arithmetic:
    return Arithmetic() if arithmetic is None else arithmetic


def _ring(operator: str, argument: str, array: Any) -> Ring:
    found = np.asarray(array)
    if found.dtype != np.int64:
        raise ValueError(
            f"{operator}: {argument} must be an int64 array of ring elements (see encode), "
            f"got {found.dtype}"
        )
    return found


def _check_exponential(operator: str, squarings: int, clip_bits: int) -> None:
    if not 1 <= squarings <= 17:
        raise ValueError(f"{operator}: squarings must be from 1 to 17, got {squarings}")
    if not 5 <= clip_bits <= 64:
        raise ValueError(f"{operator}: clip_bits must be from 5 to 64, got {clip_bits}")
