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
from aero.network.numpy_reader import distances, given_values, one_row, own_rows, visible, with_sink
from aero.network.primitives import READERS, functions_of

Ring = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]
Weights = dict[str, Any]

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


class RingOperations:
    """The functions of `aero.fixed_point` with the settings of one stack and one generator."""

    def __init__(self, approximations: Approximations) -> None:
        self.approximations = approximations
        self.arithmetic = approximations.arithmetic()

    def encode(self, values: Real | float) -> Ring:
        """Ring elements of real numbers."""
        return functions.encode(values, arithmetic=self.arithmetic)

    def matmul(self, a: Ring, b: Ring) -> Ring:
        """Truncated matrix product."""
        whole = (np.ascontiguousarray(each) for each in (a, b))
        return functions.matmul(*whole, arithmetic=self.arithmetic)

    def times(self, x: Ring, factor: Real | float, *, secret: bool = False) -> Ring:
        """``x * factor``, truncated; the factor is public or, if `secret`, shared."""
        return functions.product(
            x, self.encode(factor), arithmetic=self.arithmetic, public=not secret
        )


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
    kind, arithmetic = operation["kind"], run.arithmetic
    if kind == "diagonal":
        return run.times(x, weights["scale"])
    gain = run.encode(weights["weight"])
    bias = run.encode(weights.get("bias", np.zeros_like(weights["weight"])))
    if kind == "layer":
        epsilon = operation["epsilon"]
        return functions.layer_norm(x, gain, bias, epsilon=epsilon, arithmetic=arithmetic)
    if kind == "rms":
        return _rms(run, x, gain, operation["epsilon"])
    scaled = run.times(x, weights["alpha"], secret=True)
    if kind == "dynamic_tanh":
        squashed = functions.hyperbolic_tangent(scaled, arithmetic=arithmetic)
    else:
        shifted = scaled + run.encode(weights["shift"])
        squashed = functions.error_function(shifted, arithmetic=arithmetic)
    return functions.product(squashed, gain, arithmetic=arithmetic) + bias


def _rms(run: RingOperations, x: Ring, gain: Ring, epsilon: float) -> Ring:
    """The mean of the squares, and the gain in the reciprocal root, as SPU runs it."""
    arithmetic = run.arithmetic
    squares = functions.product(x, x, arithmetic=arithmetic)
    mean = run.times(squares.sum(axis=-1, keepdims=True), 1 / x.shape[-1])
    root = functions.reciprocal_square_root(mean + run.encode(epsilon), arithmetic=arithmetic)
    factor = functions.product(np.broadcast_to(root, x.shape), gain, arithmetic=arithmetic)
    return functions.product(x, factor, arithmetic=arithmetic)


def _activation(run: RingOperations, operation: Operation, _: Weights, x: Ring) -> Ring:
    function, arithmetic = operation["function"], run.arithmetic
    if function == "relu":
        return np.maximum(x, 0)
    if function == "leaky_relu":
        return functions.leaky_relu(x, operation["slope"], arithmetic=arithmetic)
    if function in _FUNCTIONS:
        return _FUNCTIONS[function](run, x)
    return functions.gelu(x, kind=run.approximations.gelu, arithmetic=arithmetic)


def _silu(run: RingOperations, x: Ring) -> Ring:
    """``x / 2 (1 + tanh(x / 2))``."""
    half = run.times(x, 0.5)
    squashed = functions.hyperbolic_tangent(half, arithmetic=run.arithmetic)
    return functions.product(half, squashed + run.encode(1.0), arithmetic=run.arithmetic)


def _exp(run: RingOperations, x: Ring) -> Ring:
    """Computes exp as softmax does."""
    return functions.exponential(
        x, **exponential_settings(run.approximations), arithmetic=run.arithmetic
    )


def _relu_squared(run: RingOperations, x: Ring) -> Ring:
    positive = np.maximum(x, 0)
    return functions.product(positive, positive, arithmetic=run.arithmetic)


def _sigmoid(run: RingOperations, x: Ring) -> Ring:
    """``1 / (1 + exp(-x))``; of either sign, so that nothing clips exp."""
    squarings, arithmetic = run.approximations.exp_squarings, run.arithmetic
    grown = functions.exponential(-x, squarings=squarings, clip=False, arithmetic=arithmetic)
    return functions.reciprocal(grown + run.encode(1.0), arithmetic=arithmetic)


_FUNCTIONS: dict[str, Callable[[RingOperations, Ring], Ring]] = {
    "silu": _silu,
    "tanh": lambda run, x: functions.hyperbolic_tangent(x, arithmetic=run.arithmetic),
    "sigmoid": _sigmoid,
    "exp": _exp,
    "reciprocal": lambda run, x: functions.reciprocal(x, arithmetic=run.arithmetic),
    "relu_squared": _relu_squared,
    "rsqrt": lambda run, x: functions.reciprocal_square_root(x, arithmetic=run.arithmetic),
}


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
    if operation["kind"] != "mean":
        return one_row(operation, x, lengths)
    own, count = own_rows(x, lengths)
    return run.times(own.sum(axis=1), 1 / np.asarray(count))


OPERATIONS = functions_of(globals(), READERS["fixed point"])
