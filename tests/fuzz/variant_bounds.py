"""How far results of attention with its variants may be from the oracle's, as error_bounds.py.

A score is ``(cap(x) + bias - slope away) / t`` with ``x = scale q k``: the cap passes on at most
the error of x and adds a few roundings, and so does each sum. A sink is one more column of P, which
the values do not see. Dropout multiplies weights and their gradients by 0 or by 1 / (1 - p).

Letters: B batch, H heads, G key heads, T queries, S keys, D head width.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from error_bounds import FEW, Array, Precision, Rows, float64, temperature_gradient
from torch import Tensor


def scores_of(
    tensors: dict[str, Tensor],
    options: dict[str, Any],
    seen: tuple[Array, Array],
    t: Array,
    qk: tuple[Array, Array],
    precision: Precision,
) -> tuple[Array, Array, Array, Array, tuple[Array, Array]]:
    """Scores before the temperature, their bounds, sums of absolute terms, and which are seen;
    the derivative of the cap and its bound."""
    (q, k), (visible, away), u, tiny = qk, seen, precision.u, precision.tiny
    batch, heads, queries, width = q.shape
    keys, cap, scale = k.shape[2], options["softcap"], options["scale"]
    scale = width**-0.5 if scale is None else scale
    size = abs(scale) * (np.abs(q) @ np.abs(k).swapaxes(2, 3))
    x, sigma = scale * (q @ k.swapaxes(2, 3)), (width + FEW) * u * size + tiny
    slope, slope_error = np.ones_like(x), np.zeros_like(x)
    if cap is not None:
        tanh = np.tanh(x / cap)
        x, slope = cap * tanh, 1 - tanh**2
        # The second derivative of tanh is at most 0.77. The oracle's own tanh is good to a
        # rounding of the cap.
        slope_error = 0.77 * sigma / cap + FEW * u
        sigma = sigma + FEW * u * np.abs(x) + 8 * 2.0**-52 * cap
    bar = np.abs(x)
    for added in (tensors.get("bias"), options.get("mask")):
        if added is not None and added.is_floating_point():
            bias = np.broadcast_to(float64(added), (batch, heads, queries, keys))
            visible, bias = visible & (bias > -math.inf), np.where(bias > -math.inf, bias, 0)
            x, bar = x + bias, bar + np.abs(bias)
    # Beside others, keys of the least number count as hidden (the docstring's 5e37, or 1e307).
    low = x < -(1e306 if u < 1e-9 else 1e37)
    low = low & (visible & ~low).any(-1, keepdims=True) & (t > 0)
    visible, x, bar = visible & ~low, np.where(low, 0, x), np.where(low, 0, bar)
    if "alibi_slopes" in tensors:
        slopes = np.broadcast_to(float64(tensors["alibi_slopes"]), (batch, heads))
        down = slopes[:, :, None, None] * away
        x, bar = x - down, bar + np.abs(down)
    return x, sigma, bar, visible, (slope, slope_error)


def attention(
    tensors: dict[str, Tensor],
    options: dict[str, Any],
    seen: tuple[Array, Array],
    t: Array,
    factor: Array | None,
    cotangents: list[Array],
) -> tuple[dict[str, Array], Array, Array]:
    """The bounds of results and gradients; [B, H, T, S] scores, -inf where hidden, and theirs.

    Args:
        tensors: q, k, v, and what else has a gradient.
        options: scale, soft cap and mask, which may be numbers.
        seen: [B, H, T, S] visible keys and [T, S] how far each is from the newest.
        t: [B, H, T, 1] temperatures.
        factor: [B, H, T, S] of dropout.
        cotangents: of the results, that of max_logits where it was asked for.
    """
    precision = Precision(tensors["q"].dtype)
    u, w, tiny = precision.u, precision.w, precision.tiny
    coarse = w if precision.is_half else u
    q, k, v = (float64(tensors[name]) for name in "qkv")
    (batch, heads, queries, width), keys, groups = q.shape, k.shape[2], k.shape[1]
    value_width = v.shape[3]
    per_group = heads // groups
    k, v = (np.repeat(x, per_group, axis=1) for x in (k, v))
    abs_q, abs_k, abs_v = np.abs(q), np.abs(k), np.abs(v)
    scale = options["scale"]
    scale = width**-0.5 if scale is None else scale
    away = seen[1]
    factor = np.ones((1, 1, 1, 1)) if factor is None else factor

    x, sigma, bar, visible, (slope, slope_error) = scores_of(
        tensors, options, seen, t, (q, k), precision
    )
    size = abs(scale) * (abs_q @ abs_k.swapaxes(2, 3))
    sigma = (sigma + FEW * u * bar) / np.abs(t)
    x, bar = x / t, bar / np.abs(t)
    scores = np.where(visible, x, -np.inf)
    scores_error = np.where(visible, sigma, 0).max(-1, initial=0)
    has_sinks = "sinks" in tensors
    if has_sinks:
        sinks = np.broadcast_to(float64(tensors["sinks"]), (batch, heads))[:, :, None, None] / t
        x = np.concatenate((x, sinks), -1)
        sigma = np.concatenate((sigma, FEW * u * np.abs(sinks)), -1)
        visible = np.concatenate((np.broadcast_to(visible, x[..., :-1].shape),
                                  np.ones_like(sinks, bool)), -1)  # fmt: skip
    rows = Rows(x, sigma, np.broadcast_to(visible, x.shape), precision)
    p, p_error = rows.p[..., :keys] * factor, rows.p_error[..., :keys] * factor

    dout, dentropy, dlogsumexp, *dmax_logits = cotangents
    abs_dout = np.abs(dout)
    dp, dp_bar = (dout @ v.swapaxes(2, 3)) * factor, (abs_dout @ abs_v.swapaxes(2, 3)) * factor
    out_bar = p @ abs_v
    delta_error = 2 * coarse * (abs_dout * out_bar).sum(-1, keepdims=True)
    delta_error = delta_error + tiny * abs_dout.sum(-1, keepdims=True) * (
        1 + abs_v.max(initial=0)) * max(1.0, factor.max(initial=0))  # fmt: skip
    if has_sinks:
        dp, dp_bar = (np.pad(y, ((0, 0), (0, 0), (0, 0), (0, 1))) for y in (dp, dp_bar))
    ds, ds_error = rows.score_gradient(
        dp, dp_bar, (value_width + FEW) * u * dp_bar, delta_error,
        dentropy[..., None], dlogsumexp[..., None],
    )  # fmt: skip
    if dmax_logits and keys:  # zero where two scores may be the largest
        largest = np.arange(ds.shape[-1]) == scores.argmax(-1)[..., None]
        own = np.where(largest & rows.visible, dmax_logits[0][..., None], 0)
        ds, ds_error = ds + own, ds_error + (w if precision.is_half else FEW * u) * np.abs(own)
    # What comes back to the score before the temperature, and to q k.
    back, back_error = np.abs(ds / t), (ds_error + tiny) / np.abs(t)
    back_error = back_error + FEW * u * back + tiny
    of_keys, of_keys_error = back[..., :keys], back_error[..., :keys]
    product = abs(scale) * of_keys * np.abs(slope)
    product_error = abs(scale) * (
        of_keys_error * np.abs(slope) + (of_keys + of_keys_error) * slope_error
    ) + tiny * max(1.0, abs(scale))
    product_error = product_error + (w if precision.is_half else FEW * u) * product

    def of_key_heads(y: Array) -> Array:
        summed: Array = y.reshape(batch, groups, per_group, *y.shape[2:]).sum(2)
        return summed

    rounds = (queries * per_group + FEW) * u
    weight_error = p_error + coarse * p + tiny * (1 + factor)
    turned = product.swapaxes(2, 3)
    errors = {
        "result 0": weight_error @ abs_v + (rows.gamma + 2 * w) * out_bar + tiny,
        "result 1": rows.entropy_error[..., 0],
        "result 2": rows.logsumexp_error[..., 0],
        "q": product_error @ abs_k + (rows.gamma + 2 * w) * (product @ abs_k) + tiny,
        "k": of_key_heads(
            product_error.swapaxes(2, 3) @ abs_q + (rounds + 2 * w) * (turned @ abs_q)) + tiny,
        "v": of_key_heads(
            weight_error.swapaxes(2, 3) @ abs_dout
            + (rounds + 2 * w) * (p.swapaxes(2, 3) @ abs_dout)) + tiny,
    }  # fmt: skip

    def summed(name: str, error: Array, bars: Array) -> Array:
        """The bound of a sum to the shape of a tensor that broadcasts."""
        shape = tuple(tensors[name].shape)
        axes = tuple(
            d for d in range(error.ndim)
            if d < error.ndim - len(shape) or shape[d - error.ndim + len(shape)] == 1
        )  # fmt: skip
        count = math.prod(error.shape[d] for d in axes)
        total = error.sum(axes) + (count + FEW) * u * bars.sum(axes)
        return np.asarray(total).reshape(shape) + tiny

    if "bias" in tensors:
        errors["bias"] = summed("bias", of_keys_error, of_keys)
    if "alibi_slopes" in tensors:
        error, bars = ((away * y).sum((2, 3)) for y in (of_keys_error, of_keys))
        errors["alibi_slopes"] = summed(
            "alibi_slopes", error + (queries * (keys + FEW)) * u * bars, bars
        )
    if has_sinks:
        error, bars = (y[..., -1].sum(-1) for y in (back_error, back))
        errors["sinks"] = summed("sinks", error + (queries + FEW) * u * bars, bars)
    if "temperature" in tensors:
        shape = tuple(tensors["temperature"].shape)
        errors["temperature"] = temperature_gradient(rows, ds, ds_error, t, shape)
        # Scores are differences of terms as large as `bar`.
        lost = (np.abs(ds[..., :keys]) + ds_error[..., :keys]) * np.where(
            visible[..., :keys], FEW * u * bar, 0)  # fmt: skip
        errors["temperature"] = errors["temperature"] + (lost.sum(-1) / np.abs(t[..., 0])).sum()
    beyond = (np.where(visible[..., :keys], bar + size / np.abs(t), 0) > 5e36).any(-1)
    scores_error = np.where(beyond, np.inf, scores_error)
    errors["result 3"] = scores_error
    for name in ("result 0", "result 1", "result 2"):
        errors[name] = np.where(beyond[..., None] if name[-1] == "0" else beyond, np.inf,
                                errors[name])  # fmt: skip
    if beyond.any() or (product + back.max(initial=0)).max(initial=0) > precision.largest / 4:
        errors |= {name: np.full(tuple(x.shape), np.inf) for name, x in tensors.items()}
    return errors, scores, scores_error
