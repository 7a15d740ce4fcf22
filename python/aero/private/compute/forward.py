"""The operations of a described network in JAX, as SPU is to compute them.

The compiled form of the lines below decides the cost of a private run; the simulator's stack
`spu-0.9.5` prices exactly these. Letters: B sequences, T new tokens, S tokens so far, C width, H
heads, G key heads, D head width, V vocabulary. Needs the private environment.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aero.network.description import POSITIONS, Operation
from aero.network.numpy_reader import distances, visible
from aero.network.primitives import READERS, functions_of
from aero.private.compute.elements import ACTIVATIONS as _ACTIVATIONS
from aero.private.compute.elements import NORMS as _NORMS
from aero.private.compute.elements import Array, Weights, clipped_exp
from aero.private.settings import PrivateSettings

Tensor = np.ndarray[Any, Any]

# Below every score; a causal row's largest is found without looking at the scores to its right.
LOWEST_SCORE = -16384.0


@dataclass(frozen=True)
class Blocks:
    """Blocks of attention of equal sizes, computed side by side as if they were sequences.

    Attributes:
        queries: of each its rows.
        keys: of each those that its queries see, and what a window hides between them.
        scores: [blocks B, H, rows, keys], or what is made of them.
    """

    queries: tuple[slice, ...]
    keys: tuple[slice, ...]
    scores: Array


def attention_blocks(
    rows: int, keys: int, *, block: int, causal: bool, window: int
) -> list[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """Rows of queries and the keys they read, block after block, those of equal sizes together.

    Args:
        rows: of queries, the last of the keys.
        keys: S.
        block: rows of a block; 0: all.
        causal: no query sees a key behind it; else all go at once.
        window: keys that a query sees, itself included; 0: all before it.
    """
    if not block or not causal:
        return [((slice(0, rows),), (slice(0, keys),))]
    cut = []
    for start in range(0, rows, block):
        end, earlier = min(start + block, rows), keys - rows
        first = max(0, earlier + start - window + 1) if window else 0
        cut.append((slice(start, end), slice(first, earlier + end)))

    def sizes(one: tuple[slice, slice]) -> tuple[int, ...]:
        return tuple(each.stop - each.start for each in one)

    groups = (list(group) for _, group in itertools.groupby(cut, sizes))
    return [(tuple(q for q, _ in group), tuple(k for _, k in group)) for group in groups]


def _taken(x: Array, rows: tuple[slice, ...]) -> Array:
    """[B, H, T, D] -> [blocks B, H, rows, D]."""
    if rows == (slice(0, x.shape[2]),):
        return x
    return jnp.concatenate([x[:, :, one] for one in rows])


def _embed(operation: Operation, weights: Weights, settings: PrivateSettings, rows: Array) -> Array:
    table = weights["weight"]
    if operation.inputs == (POSITIONS,):
        return table[rows[0] : rows[-1] + 1]
    if not settings.client_one_hot:
        return table.at[rows].get(mode="promise_in_bounds")
    products, start = [], 0
    for piece in _slices(table):
        tokens = jnp.arange(start, start + len(piece))
        one_hot = (rows.reshape(-1, 1) == tokens).astype(jnp.int32)
        # Integers times fixed point: the product needs no truncation.
        product = jax.lax.dot_general(
            one_hot, piece, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32
        )
        products.append(product)
        start += len(piece)
    return functools.reduce(operator.add, products).reshape(*rows.shape, -1)


def _linear(_: Operation, weights: Weights, __: PrivateSettings, x: Array) -> Array:
    rows = x.reshape(-1, x.shape[-1])
    columns = [rows @ piece for piece in _slices(weights["weight"])]
    product = columns[0] if len(columns) == 1 else jnp.concatenate(columns, axis=-1)
    product = product.reshape(*x.shape[:-1], -1)
    return product + weights["bias"] if "bias" in weights else product


def _slices(weight: Array) -> tuple[Array, ...]:
    """The slices of a weight, as `pieces` cuts it."""
    return weight if isinstance(weight, tuple) else (weight,)


def _split_heads(operation: Operation, _: Weights, __: PrivateSettings, x: Array) -> Array:
    start, heads, width = (operation[name] for name in ("start", "heads", "head_dim"))
    chosen = x[..., start : start + heads * width]
    return chosen.reshape(*x.shape[:2], heads, width).swapaxes(1, 2)


def _join_heads(_: Operation, __: Weights, ___: PrivateSettings, x: Array) -> Array:
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


def _rotate(
    operation: Operation, _: Weights, __: PrivateSettings, x: Array, positions: Tensor
) -> Array:
    channels = operation["channels"]
    half = channels // 2
    frequencies = operation["base"] ** (-np.arange(0, channels, 2) / channels)
    angles = positions[:, None] * frequencies
    cos, sin = (np.tile(f(angles), 2).astype(np.float32) for f in (np.cos, np.sin))
    turning = x[..., :channels]
    crossed = jnp.concatenate([-turning[..., half:], turning[..., :half]], axis=-1)
    turned = turning * cos + crossed * sin
    return jnp.concatenate([turned, x[..., channels:]], axis=-1)


def _scores(
    operation: Operation, weights: Weights, settings: PrivateSettings, query: Array, key: Array
) -> list[Blocks]:
    if operation["scale"] != 1.0:
        query = query * operation["scale"]
    rows, keys = query.shape[2], key.shape[2]
    if operation["temperature"]:
        query = query * weights["inverse_temperature"][:, keys - rows : keys, None]
    made = []
    # `pieces` adds what the softmax hides.
    seen = {name: operation.fields.get(name, 0) for name in ("causal", "window")}
    for blocks in attention_blocks(rows, keys, block=settings.attention_block, **seen):
        asking, asked = (_taken(x, each) for x, each in zip((query, key), blocks, strict=True))
        rows_of_keys = asked.reshape(-1, *asked.shape[2:])
        scores = _by_groups(asking, asked) @ rows_of_keys.swapaxes(-1, -2)
        scores = scores.reshape(*asking.shape[:3], -1)
        cap = operation["soft_cap"]
        made.append(Blocks(*blocks, cap * jnp.tanh(scores * (1 / cap)) if cap > 0 else scores))
    return made


def _by_groups(x: Array, key: Array) -> Array:
    """[B, H, T, D] -> [B G, H / G T, D]: heads that share a key head are rows of one product."""
    return x.reshape(key.shape[0] * key.shape[1], -1, x.shape[-1])


def _softmax(
    operation: Operation,
    weights: Weights,
    settings: PrivateSettings,
    attention: list[Blocks],
    lengths: Tensor | None = None,
) -> list[Blocks]:
    rows, keys = attention[-1].queries[-1].stop, attention[-1].keys[-1].stop
    seen = visible(operation, keys, lengths)[..., -rows:, :]
    made = []
    for blocks in attention:
        scores, places = blocks.scores, (blocks.queries[0], blocks.keys[0])
        if "bias" in weights:
            # Known places of a table: each party moves its own shares.
            by_distance = distances(weights["bias"], keys)[-rows:][places]
            scores = scores + weights["bias"][:, by_distance]
        # A mask of positions alone is the same for all blocks of these sizes.
        here = seen[places] if lengths is None else _of_each(seen, blocks)
        if "sink" in weights:
            column = jnp.broadcast_to(weights["sink"][:, None, None], (*scores.shape[:-1], 1))
            scores = jnp.concatenate([scores, column], axis=-1)
            here = np.concatenate([here, np.ones_like(here[..., :1])], axis=-1)
        shares = softmax(scores, settings, here)[..., : blocks.scores.shape[-1]]
        made.append(replace(blocks, scores=shares))
    return made


def _of_each(x: Array, blocks: Blocks) -> Array:
    """[B or 1, H or 1, T, S] -> [blocks times that, H or 1, rows, keys]."""
    each = zip(blocks.queries, blocks.keys, strict=True)
    cut = [x[..., queries, keys] for queries, keys in each]
    return (np if isinstance(x, np.ndarray) else jnp).concatenate(cut)


def softmax(scores: Array, settings: PrivateSettings, seen: Tensor | None = None) -> Array:
    """Softmax of [..., T, S] scores over the keys that are seen, by the operations of a run.

    Args:
        scores: of secret queries and keys.
        settings: of both parties.
        seen: [T, S] or [B, 1, T, S], public; causal by default, where T = S.
    """
    seen = np.tri(scores.shape[-1], dtype=bool) if seen is None else seen
    largest = jnp.max(jnp.where(seen, scores, LOWEST_SCORE), axis=-1, keepdims=True)
    # Choices by public masks are free. The first keeps exp's argument in its range, the second is
    # the mask: by a mask of -infinity exp would leave the ring.
    shifted = jnp.where(seen, scores - largest, 0.0)
    weights = jnp.where(seen, clipped_exp(shifted, settings), 0.0)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    some = seen.any(axis=-1, keepdims=True)
    if not some.all():  # rows without keys are 0
        total = jnp.where(some, total, 1.0)
    # SPU's compiler makes one reciprocal of each row of it, with `broadcast_reciprocal`.
    return weights / total


def _shape(
    _: Operation, weights: Weights, __: PrivateSettings, attention: list[Blocks]
) -> list[Blocks]:
    rows, keys = attention[-1].queries[-1].stop, attention[-1].keys[-1].stop
    matrix = weights["matrix"][None, :, keys - rows : keys, :keys]
    made = []
    for blocks in attention:
        shares = blocks.scores
        own = _of_each(matrix, blocks)
        own = jnp.repeat(own, len(shares) // len(own), axis=0) if len(own) > 1 else own
        made.append(replace(blocks, scores=weights["softmax"] * shares + own))
    return made


def _weighted_sum(
    operation: Operation, _: Weights, __: PrivateSettings, attention: list[Blocks], value: Array
) -> Array:
    made: list[Array] = []
    for blocks in attention:
        shares, values = blocks.scores, _taken(value, blocks.keys)
        heads = _by_groups(shares, values) @ values.reshape(-1, *values.shape[2:])
        heads = heads.reshape(*shares.shape[:3], operation["head_dim"])
        made += jnp.split(heads, len(blocks.queries)) if len(blocks.queries) > 1 else [heads]
    return jnp.concatenate(made, axis=2) if len(made) > 1 else made[0]


def _norm(operation: Operation, weights: Weights, _: PrivateSettings, x: Array) -> Array:
    return _NORMS[operation["kind"]](operation, weights, x)


def _activation(operation: Operation, _: Weights, settings: PrivateSettings, x: Array) -> Array:
    return _ACTIVATIONS[operation["function"]](operation, settings, x)


def _multiply(_: Operation, __: Weights, ___: PrivateSettings, x: Array, y: Array) -> Array:
    return x * y


def _add(_: Operation, __: Weights, ___: PrivateSettings, *summands: Array) -> Array:
    return functools.reduce(operator.add, summands)


def _scale(operation: Operation, _: Weights, __: PrivateSettings, x: Array) -> Array:
    return operation["factor"] * x


def _shift(operation: Operation, _: Weights, __: PrivateSettings, x: Array) -> Array:
    return _delayed(x, min(operation["tokens"], x.shape[1]))


def _unfold(operation: Operation, _: Weights, __: PrivateSettings, x: Array) -> Array:
    known = [_delayed(x, delay) for delay in range(min(operation["taps"], x.shape[1]))]
    missing = (operation["taps"] - len(known)) * x.shape[-1]
    return jnp.pad(jnp.concatenate(known, axis=-1), ((0, 0), (0, 0), (0, missing)))


def _delayed(x: Array, by: int) -> Array:
    """[B, T, C], each row `by` tokens later; zeros come in."""
    return jnp.pad(x, ((0, 0), (by, 0), (0, 0)))[:, : x.shape[1]]


def _pool(
    operation: Operation, _: Weights, __: PrivateSettings, x: Array, lengths: Tensor | None = None
) -> Array:
    """[B, T, C] to [B, 1, C]: a piece gives rows. Lengths are public."""
    own = np.full(x.shape[0], x.shape[1]) if lengths is None else lengths
    return _POOLS[operation["kind"]](x, own)


def _mean_row(x: Array, own: Tensor) -> Array:
    seen = np.arange(x.shape[1])[:, None] < own[:, None, None]
    return jnp.sum(jnp.where(seen, x, 0.0), axis=1, keepdims=True) * (1 / own[:, None, None])


def _rows_at(x: Array, rows: Tensor) -> Array:
    return jnp.concatenate([x[i : i + 1, row : row + 1] for i, row in enumerate(rows)])


_POOLS: dict[str, Callable[[Array, Tensor], Array]] = {
    "last": lambda x, own: _rows_at(x, own - 1),
    "first": lambda x, own: _rows_at(x, np.zeros_like(own)),
    "mean": _mean_row,
}


def _argmax(_: Operation, __: Weights, ___: PrivateSettings, x: Array) -> Array:
    return jnp.argmax(x, axis=-1).astype(jnp.int32)


OPERATIONS = functions_of(
    globals(), READERS["private"], norm=_NORMS, activation=_ACTIVATIONS, pool=_POOLS
)
