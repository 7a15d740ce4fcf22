"""A described network in the fixed-point arithmetic of private inference, Z_2^64.

Weights are encoded once. What is linear and known before inference is in them: foldable norms,
alpha, beta and the gain of skipless blocks. Values are NumPy int64 arrays.

Letters: B batch, T tokens, H heads, G key heads, D head width, C width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from aero.fixed_point import Approximations, functions
from aero.fixed_point.errors import exponential_settings
from aero.network import numpy_reader
from aero.network.description import Network, Operation, unknown_operation
from aero.network.folding import Folding, folded_steps
from aero.network.numpy_reader import (
    distances,
    first_row,
    given_values,
    last_row,
    own_rows,
    visible,
    with_sink,
)
from aero.network.primitives import READERS, functions_of
from aero.network.ring_elements import ACTIVATIONS as _ACTIVATIONS
from aero.network.ring_elements import NORMS as _NORMS
from aero.network.ring_elements import Real, Ring, RingOperations, Weights

_FOLDING = Folding(head_temperatures=False, stream="joined", shared_norms=False)


class RingNetwork:
    """A network with encoded weights.

    Args:
        network: described, its weights float64.
        approximations: the arithmetic; the default is that of `spu-2024`.

    Raises:
        ValueError: the arithmetic lacks an operation of the network.
    """

    def __init__(self, network: Network, approximations: Approximations | None = None) -> None:
        self.network = network
        self.run = RingOperations(approximations or Approximations())
        self._steps = []
        unknown = unknown_operation("fixed point", network.operations())
        if unknown is not None:
            raise ValueError(f"fixed point: {unknown} is not computed in Z_2^64")
        for step in folded_steps(network, _FOLDING):
            operation = step.operation
            encoded = _PREPARED.get(operation.op, _encoded)
            self._steps.append((operation, encoded(self.run, step.weights)))

    def logits(self, token_ids: npt.NDArray[Any], lengths: npt.ArrayLike | None = None) -> Real:
        """Logits of every position, [B, T, V], of token ids [B, T].

        Arguments, errors and the results of other heads are those of `numpy_reader.forward`.
        """
        values = given_values(self.network, token_ids, lengths)
        for operation, weights in self._steps:
            inputs = (values[name] for name in operation.inputs)
            values[operation.output] = OPERATIONS[operation.op](
                self.run, operation, weights, *inputs
            )
        last, _ = self._steps[-1]
        found: Real = values[last.output]
        if last.op == "argmax":  # whose places are no numbers of the ring
            return found
        return functions.decode(values[last.output], arithmetic=self.run.arithmetic)


def _encoded(run: RingOperations, weights: dict[str, Real]) -> Weights:
    return {role: run.encode(np.ascontiguousarray(tensor)) for role, tensor in weights.items()}


def _as_numbers(_: RingOperations, weights: dict[str, Real]) -> Weights:
    return dict(weights)


# Weights that are factors of values, encoded where they are used.
_PREPARED = {"scores": _as_numbers, "shape": _as_numbers, "norm": _as_numbers}


def _of_numbers_too(name: str) -> Any:
    """An operation that does not compute, or adds: the same of ring elements as of numbers."""

    def function(_: RingOperations, operation: Operation, weights: Weights, *inputs: Ring) -> Ring:
        found: Ring = numpy_reader.OPERATIONS[name](operation, weights, *inputs)
        return found

    return function


_embed, _split_heads, _join_heads, _add, _shift, _unfold, _argmax = map(
    _of_numbers_too,
    ("embed", "split_heads", "join_heads", "add", "shift", "unfold", "argmax"),
)


def _linear(run: RingOperations, _: Operation, weights: Weights, x: Ring) -> Ring:
    product = run.matmul(x, weights["weight"])
    return product + weights["bias"] if "bias" in weights else product


def _rotate(run: RingOperations, operation: Operation, _: Weights, x: Ring) -> Ring:
    channels = operation["channels"]
    half = channels // 2
    frequencies = operation["base"] ** (-np.arange(0, channels, 2) / channels)
    angles = np.arange(x.shape[2])[:, None] * frequencies
    cos, sin = np.cos(angles), np.sin(angles)
    first, second = x[..., :half], x[..., half:channels]
    turned = (
        run.times(first, cos) - run.times(second, sin),
        run.times(second, cos) + run.times(first, sin),
        x[..., channels:],
    )
    return np.concatenate(turned, axis=-1)


def _scores(
    run: RingOperations, operation: Operation, weights: Weights, query: Ring, key: Ring
) -> Ring:
    """The scores of queries over ``t sqrt(D)``; a public t is part of the constant."""
    scale: Real | float = operation["scale"]
    if operation["temperature"]:
        factor = weights["inverse_temperature"][:, : query.shape[2], None]
        if run.approximations.secret_temperature:
            query = run.times(run.times(query, scale), factor, secret=True)
            scale = 1.0
        else:
            scale = scale * factor
    if not np.all(scale == 1.0):
        query = run.times(query, scale)
    scores = run.matmul(query, _grouped(key, operation).swapaxes(-1, -2))
    cap = operation["soft_cap"]
    if cap > 0:
        squashed = functions.hyperbolic_tangent(
            run.times(scores, 1 / cap), arithmetic=run.arithmetic
        )
        scores = run.times(squashed, cap)
    return scores


def _grouped(x: Ring, operation: Operation) -> Ring:
    """[B, G, S, D] -> [B, H, S, D]: each key head for all of its group."""
    group = operation["heads"] // operation["key_heads"]
    return x if group == 1 else np.repeat(x, group, axis=1)


def _softmax(
    run: RingOperations,
    operation: Operation,
    weights: Weights,
    scores: Ring,
    lengths: npt.NDArray[Any] | None = None,
) -> Ring:
    keys, chosen = scores.shape[-1], run.approximations
    if "bias" in weights:
        scores = scores + weights["bias"][:, distances(weights["bias"], keys)]
    seen = np.broadcast_to(visible(operation, keys, lengths), scores.shape)
    if "sink" in weights:
        scores = with_sink(scores, weights["sink"])
        seen = np.concatenate([seen, np.ones_like(seen[..., :1])], axis=-1)
    # Those that are seen in front, in their order; the places of the others hold zeros.
    places = np.argsort(~seen, axis=-1, kind="stable")
    found = functions.softmax(
        np.take_along_axis(scores, places, axis=-1),
        live=seen.sum(axis=-1),
        **exponential_settings(chosen),
        score_truncation=chosen.score_truncation,
        broadcast_reciprocal=chosen.broadcast_reciprocal,
        arithmetic=run.arithmetic,
    )
    probabilities = np.zeros_like(found)
    np.put_along_axis(probabilities, places, found, axis=-1)
    return probabilities[..., :keys]


def _shape(run: RingOperations, _: Operation, weights: Weights, probabilities: Ring) -> Ring:
    """``identity I + softmax P - uniform M`` of each head, with the public part added to P's."""
    identity, softmax, uniform = (
        weights[role][:, None, None] for role in ("identity", "softmax", "uniform")
    )
    length = probabilities.shape[-1]
    means = np.tril(np.ones((length, length)))
    means /= means.sum(axis=1, keepdims=True)
    public = identity * np.eye(length) - uniform * means
    return run.times(probabilities, softmax) + run.encode(public)


def _weighted_sum(
    run: RingOperations, operation: Operation, _: Weights, probabilities: Ring, value: Ring
) -> Ring:
    return run.matmul(probabilities, _grouped(value, operation))


def _norm(run: RingOperations, operation: Operation, weights: Weights, x: Ring) -> Ring:
    return _NORMS[operation["kind"]](run, operation, weights, x)


def _activation(run: RingOperations, operation: Operation, _: Weights, x: Ring) -> Ring:
    return _ACTIVATIONS[operation["function"]](run, operation, x)


def _multiply(run: RingOperations, _: Operation, __: Weights, x: Ring, y: Ring) -> Ring:
    return functions.product(x, y, arithmetic=run.arithmetic)


def _scale(run: RingOperations, operation: Operation, _: Weights, x: Ring) -> Ring:
    return run.times(x, operation["factor"])


def _pool(
    run: RingOperations,
    operation: Operation,
    _: Weights,
    x: Ring,
    lengths: npt.NDArray[Any] | None = None,
) -> Ring:
    return _POOLS[operation["kind"]](run, x, lengths)


def _mean_row(run: RingOperations, x: Ring, lengths: npt.NDArray[Any] | None) -> Ring:
    own, count = own_rows(x, lengths)
    return run.times(own.sum(axis=1), 1 / np.asarray(count))


_POOLS: dict[str, Callable[[RingOperations, Ring, Any], Ring]] = {
    "last": lambda _, x, lengths: last_row(x, lengths),
    "first": lambda _, x, lengths: first_row(x, lengths),
    "mean": _mean_row,
}


OPERATIONS = functions_of(
    globals(), READERS["fixed point"], norm=_NORMS, activation=_ACTIVATIONS, pool=_POOLS
)
