"""How far results may be from the oracle's: bounds of rounding, entry by entry, in NumPy's float64.

`u` is the machine epsilon of the arithmetic (float32, or float64 for float64 operands), twice the
error of one rounding, and `w` that of the operands' dtype. A sum of n products, in whatever order,
is within n u of the sum of their absolute values; `few` more roundings stand for what is done to
each term. So every bound is the formula of the result, with absolute values in place of values,
times the roundings on the way. Numbers of half precision are also rounded where the kernels say so
(kernels/README.md and the tests' COARSE): P, dS, the results, products and their operands.

The scores of a row are off by sigma_j. Then P_j changes by a factor of at most exp(sigma_j + L)
with L = ln sum_k P_k exp(sigma_k), which also holds where scores are so large that nothing is left
of P: the bound then exceeds 1, and says nothing.

Letters: B batch, H heads, G key heads, T queries, S keys, D head width, L layers, C model width.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
FEW = 16


def float64(tensor: Tensor) -> Array:
    array: Array = tensor.detach().to(torch.float64).resolve_neg().numpy()
    return array


class Precision:
    """The roundings that come with a dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        own = torch.finfo(dtype)
        self.w, self.u = own.eps, min(own.eps, torch.finfo(torch.float32).eps)
        self.is_half = self.w > self.u
        # What is smaller is rounded to a multiple of this, or to zero.
        self.step = own.smallest_normal * own.eps
        self.tiny = max(
            self.step, 2 * torch.finfo(torch.float64 if self.u < 1e-9 else torch.float32).tiny
        )
        self.largest = own.max


class Rows:
    """Rows of P: [B, H, T, S] and their bounds.

    Args:
        scores: `scale q k^T / t`; anything where hidden.
        sigma: how far each may be off.
        visible: which keys each row sees.
    """

    def __init__(self, scores: Array, sigma: Array, visible: Array, precision: Precision) -> None:
        self.precision, u = precision, precision.u
        self.visible, self.scores = visible, np.where(visible, scores, 0)
        empty = ~visible.any(-1, keepdims=True)
        top = np.where(visible, scores, -np.inf).max(-1, keepdims=True, initial=-np.inf)
        self.top = np.where(empty, 0, top)
        self.x = np.where(visible, scores - self.top, 0)
        e = np.where(visible, np.exp(self.x), 0)
        total = np.where(empty, 1, e.sum(-1, keepdims=True))
        self.p, log_total = e / total, np.log(total)
        self.log_p = self.x - log_total
        self.sigma = np.where(visible, sigma + 4 * u * np.abs(self.x), 0)
        self.gamma = (scores.shape[-1] + FEW) * u
        shift = np.log(
            np.where(
                empty, 1, (self.p * np.exp(np.minimum(self.sigma, 300))).sum(-1, keepdims=True)
            )
        )
        self.rho = np.minimum(self.sigma + shift + self.gamma, 300)
        self.p_error = np.where(visible, self.p * np.expm1(self.rho) + precision.tiny, 0)
        self.u_bar = np.abs((self.p * self.x).sum(-1, keepdims=True))
        self.entropy = log_total + self.u_bar
        self.size = 1 + log_total + self.u_bar
        self.entropy_error = (
            (self.p_error * (np.abs(self.log_p) + 1 + self.rho)).sum(-1, keepdims=True)
            + self.gamma * self.size + precision.tiny
        )  # fmt: skip
        self.logsumexp_error = (
            shift + self.gamma + 4 * u * (np.abs(self.top) + log_total) + precision.tiny
        )

    def score_gradient(
        self, dp: Array, dp_bar: Array, dp_error: Array | float, delta_error: Array | float,
        dentropy: Array, dlogsumexp: Array,
    ) -> tuple[Array, Array]:  # fmt: skip
        """dL/ds [B, H, T, S] and its bound.

        Args:
            dp: dL/dP, `dp_bar` with absolute values, `dp_error` its bound.
            delta_error: what the sum P dP is off by besides.
            dentropy: [B, H, T, 1]
            dlogsumexp: [B, H, T, 1]
        """
        delta, delta_bar = ((self.p * x).sum(-1, keepdims=True) for x in (dp, dp_bar))
        delta_error = delta_error + (self.p_error * dp_bar + self.p * dp_error).sum(
            -1, keepdims=True
        )
        size = dp_bar + delta_bar + np.abs(dlogsumexp)
        size = size + np.abs(dentropy) * (np.abs(self.x) + self.size + 1)
        off = dp_error + delta_error + np.abs(dentropy) * (self.rho + self.entropy_error)
        off = off + self.gamma * size
        ds = self.p * (dp - delta + dlogsumexp - dentropy * (self.log_p + self.entropy))
        rounding = self.precision.w if self.precision.is_half else 0.0
        error = self.p_error * size + (self.p + self.p_error) * off
        return ds, error + rounding * (np.abs(ds) + error) + self.precision.tiny


def temperature_gradient(rows: Rows, ds: Array, error: Array, t: Array, shape: Any) -> Array:
    """The bound of `-sum_j ds_j s_j / t`, summed to the temperature's shape."""
    size = np.abs(rows.scores) + np.abs(rows.top)
    bar = np.abs(ds) * size
    own = (error * size + (np.abs(ds) + error) * rows.sigma + rows.gamma * bar).sum(-1) / np.abs(
        t[..., 0]
    )
    bar = bar.sum(-1) / np.abs(t[..., 0])
    own = own + rows.precision.tiny / np.minimum(np.abs(t[..., 0]), 1)
    axes = {3: (), 2: (0,), 1: (0, 2)}.get(len(shape), (0, 1, 2))
    if len(shape) == 1 and shape[0] != ds.shape[1]:
        axes = (0, 1, 2)
    count = math.prod(ds.shape[:3])
    summed: Array = own.sum(axes) + (count + FEW) * rows.precision.u * bar.sum(axes)
    return summed.reshape(shape)


def softmax(
    tensors: dict[str, Tensor], visible: Array, t: Array, cotangents: list[Array]
) -> tuple[Rows, dict[str, Array]]:
    """Bounds of all results and gradients of temperature_softmax, by name."""
    precision = Precision(tensors["scores"].dtype)
    scores = float64(tensors["scores"])
    visible = visible & (scores != -np.inf)
    scaled = np.where(visible, scores, 0) / t
    rows = Rows(scaled, 8 * precision.u * np.abs(scaled), visible, precision)
    dp, dentropy, dlogsumexp = cotangents
    ds, ds_error = rows.score_gradient(
        dp, np.abs(dp), 0.0, 0.0, dentropy[..., None], dlogsumexp[..., None]
    )
    errors = {
        # A row that sees NaN or infinity is NaN, with or without its hidden keys.
        "result 0": np.where(
            ~visible & ~np.isfinite(scaled).all(-1, keepdims=True),
            np.inf,
            rows.p_error + precision.w * rows.p + precision.tiny,
        ),
        "result 1": rows.entropy_error[..., 0],
        "result 2": rows.logsumexp_error[..., 0],
        "scores": (ds_error + precision.w * np.abs(ds)) / np.abs(t) + precision.tiny,
    }
    if "temperature" in tensors:
        shape = tuple(tensors["temperature"].shape)
        errors["temperature"] = temperature_gradient(rows, ds, ds_error, t, shape)
    return rows, errors


def attention(
    tensors: dict[str, Tensor], visible: Array, t: Array, scale: float, cotangents: list[Array]
) -> tuple[Rows, dict[str, Array]]:
    """The same of attention_entropy."""
    precision = Precision(tensors["q"].dtype)
    u, w = precision.u, precision.w
    q, k, v = (float64(tensors[name]) for name in "qkv")
    groups = k.shape[1]
    per_group = q.shape[1] // groups if groups else 0
    k, v = (np.repeat(x, per_group, axis=1) for x in (k, v))
    width, value_width, keys = q.shape[3], v.shape[3], k.shape[2]
    factor = scale / t
    abs_k, abs_q, abs_v = np.abs(k), np.abs(q), np.abs(v)
    size = np.abs(factor) * (abs_q @ abs_k.swapaxes(2, 3))
    rows = Rows(
        factor * (q @ k.swapaxes(2, 3)),
        (width + FEW) * u * size + precision.tiny,
        visible,
        precision,
    )
    dout, dentropy, dlogsumexp = cotangents
    abs_dout = np.abs(dout)
    dp, dp_bar = dout @ v.swapaxes(2, 3), abs_dout @ abs_v.swapaxes(2, 3)
    coarse = w if precision.is_half else u
    # Delta is dout . out, and out was rounded, as was P before it.
    out_bar = rows.p @ abs_v
    delta_error = 2 * coarse * (abs_dout * out_bar).sum(-1, keepdims=True)
    delta_error = delta_error + precision.tiny * abs_dout.sum(-1, keepdims=True) * (
        1 + abs_v.max(initial=0)
    )
    ds, ds_error = rows.score_gradient(
        dp, dp_bar, (value_width + FEW) * u * dp_bar, delta_error,
        dentropy[..., None], dlogsumexp[..., None],
    )  # fmt: skip
    weighted = np.abs(factor) * ds_error + precision.tiny * np.maximum(1, np.abs(factor))
    ds_size = np.abs(factor * ds)

    def of_key_heads(x: Array) -> Array:
        batch, _, *rest = x.shape
        summed: Array = x.reshape(batch, groups, per_group, *rest).sum(2)
        return summed

    rounds = (q.shape[2] * per_group + FEW) * u
    flat, p_flat = ds_size.swapaxes(2, 3), rows.p.swapaxes(2, 3)
    p_error = rows.p_error + coarse * rows.p + precision.tiny
    errors = {
        "result 0": p_error @ abs_v + (rows.gamma + 2 * w) * out_bar + precision.tiny,
        "result 1": rows.entropy_error[..., 0],
        "result 2": rows.logsumexp_error[..., 0],
        "q": weighted @ abs_k + (rows.gamma + 2 * w) * (ds_size @ abs_k) + precision.tiny,
        "k": of_key_heads(
            weighted.swapaxes(2, 3) @ abs_q + (rounds + 2 * w) * (flat @ abs_q)) + precision.tiny,
        "v": of_key_heads(
            p_error.swapaxes(2, 3) @ abs_dout + (rounds + 2 * w) * (p_flat @ abs_dout)
        ) + precision.tiny,
    }  # fmt: skip
    # The docstring leaves rows with larger scores or products open.
    largest = (abs_q @ abs_k.swapaxes(2, 3)) * np.maximum(1, np.abs(factor)) * max(1, abs(scale))
    beyond = (np.where(visible, largest, 0) > (1e307 if u < 1e-9 else 5e37)).any(-1)
    for name in ("result 0", "result 1", "result 2"):
        errors[name][beyond] = np.inf
    if keys and (ds_size + np.abs(ds)).max(initial=0) > precision.largest / 4:
        errors["q"][:], errors["k"][:] = np.inf, np.inf  # dS itself overflows
    if "temperature" in tensors:
        shape = tuple(tensors["temperature"].shape)
        errors["temperature"] = temperature_gradient(rows, ds, ds_error, t, shape)
    if beyond.any():  # and so are the gradients, in which rows are summed
        for name in tensors:
            errors[name] = np.full_like(errors[name], np.inf)
    return rows, errors


def scaled_ffn(tensors: dict[str, Tensor], dy: Array) -> dict[str, Array]:
    """The same of scaled_ffn."""
    outer, inner = Precision(tensors["x"].dtype), Precision(tensors["weight"].dtype)
    width = tensors["x"].shape[-1]
    shape = tensors["x"].shape
    x, dy = (np.abs(a.reshape(-1, max(width, 1) if width else 0)) if width else np.zeros((0, 0))
             for a in (float64(tensors["x"]), dy))  # fmt: skip
    weight, bias = np.abs(float64(tensors["weight"])), np.abs(float64(tensors["bias"]))
    alpha, beta = (abs(float64(tensors[name]).item()) for name in ("alpha", "beta"))
    coarse = 4 * inner.w if inner.is_half else 0.0
    tiny = max(inner.tiny, outer.tiny)

    def rounds(n: int) -> float:
        return (n + FEW) * outer.u + coarse

    linear, back = x @ weight + bias, dy @ weight.T
    product, dbias = x.T @ dy, dy.sum(0)
    count = len(x)
    y_bar, dx_bar = beta * x + linear / alpha, beta * dy + back / alpha
    dalpha_bar = ((product * weight).sum() + (bias * dbias).sum()) / alpha**2
    slack = tiny * (1 + 1 / alpha)
    errors = {
        "result 0": (rounds(width) + 2 * outer.w) * y_bar + slack,
        "x": (rounds(width) + 2 * outer.w) * dx_bar + slack,
        "weight": (rounds(count) + 2 * inner.w) * product / alpha + slack,
        "bias": (rounds(count) + 2 * inner.w) * dbias / alpha + slack,
        "alpha": rounds(count + width * width) * dalpha_bar
        + slack * (1 + weight.sum() + bias.sum()) * (1 + 1 / alpha),
        "beta": rounds(count * max(width, 1)) * (x * dy).sum() + slack * (1 + width),
    }
    if max(a.max(initial=0) for a in (linear, back, product, dbias)) > inner.largest / 4:
        errors = {name: np.asarray(np.inf) for name in errors}
    shapes = {"result 0": shape, **{name: tensor.shape for name, tensor in tensors.items()}}
    errors = {name: np.asarray(error) for name, error in errors.items()}
    return {
        name: np.broadcast_to(error, shapes[name])
        if error.ndim == 0
        else error.reshape(shapes[name])
        for name, error in errors.items()
    }


def regularization(
    tensors: dict[str, Tensor], largest: Array, counted: Array, margin: float, query_mean: bool,
    dloss: float,
) -> dict[str, Array]:  # fmt: skip
    """The same of entropy_regularization; `largest` and `counted` are [B, T].

    An entry so near the edge of the free band that rounding decides may count or not.
    """
    precision = Precision(tensors["entropies"].dtype)
    u = precision.u
    entropies = float64(tensors["entropies"])
    thresholds = float64(tensors["thresholds"])[:, None, :, None]
    layers, batch, heads, queries = entropies.shape
    rows, share = counted[None, :, None], np.ones((1, batch, 1, 1))
    bar, possible = np.abs(entropies), largest[None, :, None]
    if query_mean:
        number = np.maximum(counted.sum(-1), 1)
        share = counted[None, :, None] / number[None, :, None, None]
        entropies, bar = (x.sum(-1, keepdims=True) for x in (entropies * share, bar * share))
        possible = (possible * share).sum(-1, keepdims=True)
        rows = (counted.any(-1))[None, :, None, None]
    divisor = max(layers * heads * (counted.any(-1).sum() if query_mean else 1), 1)
    deviation = np.where(rows, entropies - thresholds * possible, 0)
    off = (queries + FEW) * u * np.where(
        rows, bar + np.abs(thresholds) * possible, 0
    ) + precision.tiny
    edge = np.abs(np.abs(deviation) - margin * possible) <= off + 4 * u * margin * possible
    undecided = np.where(edge & rows, np.abs(deviation) + off, 0)
    count = layers * batch * heads * max(queries, 1) + FEW
    loss = (2 * np.abs(deviation) * off + off**2 + undecided**2 + count * u * deviation**2).sum()
    gradient = (2 * (off + undecided) + FEW * u * 2 * np.abs(deviation)) * abs(dloss) / divisor
    summed = (gradient + count * u * np.abs(deviation) * abs(dloss) / divisor) * (possible + u)
    per_row = gradient * (share if query_mean else 1)
    huge = (deviation**2).sum() * max(1, abs(dloss)) > precision.largest / 4
    errors = {
        "result 0": np.asarray(loss / divisor + precision.tiny),
        "entropies": np.broadcast_to(per_row, (layers, batch, heads, queries)) + precision.tiny,
        "thresholds": summed.sum((1, 3)) + precision.tiny,
    }
    return {name: np.full(e.shape, np.inf) for name, e in errors.items()} if huge else errors
