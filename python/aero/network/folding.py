"""The products that the owner of a network computes before a private run, at no cost.

Constants that a run would pay a product or a truncation for go into the weights: factors of values
into the weights that make them, diagonal norms into the weights that read them. The network
computes the same function in fewer operations. The choices depend on the description only, so that
both parties come to the same network.

`stored` values may differ from the true ones by a factor that the next weights make good.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from aero.network.description import GIVEN, Description, Network, Operation
from aero.network.primitives import PRIMITIVES

Array = NDArray[np.float64]

# The stored stream is the true one divided by what the layers multiplied it with. Within this range
# that costs the fixed-point numbers less than 4 of their 18 fraction bits.
_STREAM_SCALES = (1 / 16, 16.0)


@dataclass(frozen=True)
class Folding:
    """What is folded.

    Attributes:
        score_scale: the factor of the scores, 1/sqrt(D), too.
        head_temperatures: temperatures of whole heads, into the queries' weights.
        stream: factors of the residual stream: "deferred" to the weights that read it, or "joined"
            with a linear feed-forward of the same stream to one matrix, W + factor I.
        shared_norms: whether a diagonal norm whose values are also read as they are is computed
            once for all readers; else products with weights fold it all the same.
    """

    score_scale: bool = False
    head_temperatures: bool = True
    stream: str = "deferred"
    shared_norms: bool = True


@dataclass(eq=False)
class Step:
    """An operation with weights of its own, which folding may multiply."""

    operation: Operation
    weights: dict[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Value:
    """A value as it is stored: the true one is `name` times `factor`."""

    name: str
    factor: Array = field(default_factory=lambda: np.ones(()))
    maker: Step | None = None  # a product or table that no other operation reads
    origin: tuple[_Value, float] | None = None  # of a factor of the stream that is not yet applied
    norm: Step | None = None  # a diagonal norm that readers other than products need


def folded_steps(network: Network, folding: Folding) -> list[Step]:
    """The same function from fewer operations on secrets, every layer with its own operations.

    Args:
        network: from `read_network`, or of `with_blank_weights`.
        folding: the choices.

    Returns:
        The operations in order. Every value is written once.
    """
    return _Folder(network, folding).steps()


def with_blank_weights(description: Description) -> Network:
    """A network of zeros: all that the other party knows of it."""
    shapes = {name: tuple(tensor["shape"]) for name, tensor in description["tensors"].items()}
    # One element each, seen as a whole tensor.
    return Network(description, {k: np.broadcast_to(0.0, shape) for k, shape in shapes.items()})


def _single_assignment(network: Network) -> Iterator[Operation]:
    """Operations whose values have names of their own."""
    current = {name: name for name in GIVEN}
    for number, operation in enumerate(network.operations()):
        inputs = tuple(current[name] for name in operation.inputs)
        current[operation.output] = f"{operation.output} {number}"
        yield replace(operation, inputs=inputs, output=current[operation.output])


class _Folder:
    def __init__(self, network: Network, folding: Folding) -> None:
        self.network, self.folding = network, folding
        self.operations = list(_single_assignment(network))
        self.readers = Counter(name for one in self.operations for name in one.inputs)
        self.others: set[str] = set()  # read by one that cannot take up a factor per channel
        for one in reversed(self.operations):
            hands_on = PRIMITIVES[one.op].moves_tokens and one.output not in self.others
            if one.op != "linear" and not hands_on:
                self.others |= set(one.inputs)
        self.values = {name: _Value(name) for name in GIVEN}
        self.found: list[Step] = []

    def steps(self) -> list[Step]:
        for operation in self.operations:
            moves = PRIMITIVES[operation.op].moves_tokens
            other = self._moved if moves else self._plain
            take: Callable[..., _Value] = getattr(self, f"_{operation.op}", other)
            inputs = [self.values[name] for name in operation.inputs]
            self.values[operation.output] = take(operation, *inputs)
        return self.found

    def _emit(
        self, operation: Operation, inputs: list[_Value], weights: dict[str, Array] | None = None
    ) -> Step:
        names = tuple(value.name for value in inputs)
        own = self.network.weights(operation) if weights is None else weights
        self.found.append(Step(replace(operation, inputs=names), own))
        return self.found[-1]

    def _made(self, operation: Operation, step: Step) -> _Value:
        single = self.readers[operation.output] == 1
        return _Value(operation.output, maker=step if single else None)

    def _settled(self, value: _Value, operation: Operation) -> _Value:
        """The value without a factor, by an operation if it has one."""
        if value.norm is not None:
            if value.norm not in self.found:
                self.found.append(value.norm)
            return _Value(value.norm.operation.output)
        if value.origin is not None:
            start, factor = value.origin
            value = replace(start, factor=start.factor * factor)
        if np.all(value.factor == 1.0):
            return value
        name = f"{value.name} for {operation.output}"
        factor = float(value.factor)
        self._emit(Operation("scale", {"factor": factor}, (), name, layer=operation.layer), [value])
        return _Value(name)

    # --- one function per primitive that can take up or hand on factors ------------------------

    def _plain(self, operation: Operation, *inputs: _Value) -> _Value:
        self._emit(operation, [self._settled(value, operation) for value in inputs])
        return _Value(operation.output)

    def _embed(self, operation: Operation, rows: _Value) -> _Value:
        return self._made(operation, self._emit(operation, [rows]))

    def _linear(self, operation: Operation, x: _Value) -> _Value:
        if x.origin is not None:
            x = self._settled(x, operation)
        weights = self.network.weights(operation)
        matrix = weights["weight"].T if operation["transposed"] else weights["weight"]
        weights = {**weights, "weight": x.factor[..., None] * matrix}
        plain = replace(operation, fields={**operation.fields, "transposed": False})
        return self._made(operation, self._emit(plain, [x], weights))

    def _handed_on(self, operation: Operation, x: _Value) -> _Value:
        """Hands a factor of all channels on through an operation."""
        if x.factor.ndim or x.origin is not None or x.norm is not None:
            x = self._settled(x, operation)
        self._emit(operation, [x])
        return _Value(operation.output, x.factor)

    _split_heads = _join_heads = _handed_on

    def _moved(self, operation: Operation, x: _Value) -> _Value:
        """Hands a factor per channel on too, as the operation only moves tokens."""
        if x.origin is not None or x.norm is not None:
            x = self._settled(x, operation)
        self._emit(operation, [x])
        times = operation.fields.get("taps", 1) if x.factor.ndim else 1
        return _Value(operation.output, np.tile(x.factor, times) if times > 1 else x.factor)

    def _weighted_sum(self, operation: Operation, weights: _Value, values: _Value) -> _Value:
        values = values if values.factor.ndim == 0 else self._settled(values, operation)
        self._emit(operation, [self._settled(weights, operation), values])
        return _Value(operation.output, values.factor)

    def _scores(self, operation: Operation, query: _Value, key: _Value) -> _Value:
        weights, fields = self.network.weights(operation), dict(operation.fields)
        found = self._heads_of(operation.inputs[0])
        if found is not None:
            factor = np.ones(operation["heads"])
            if self.folding.score_scale:
                factor, fields["scale"] = factor * operation["scale"], 1.0
            one_each = fields["temperature"] and not fields["per_position"]
            if self.folding.head_temperatures and one_each:
                factor = factor * weights.pop("inverse_temperature")[:, 0]
                fields["temperature"] = False
            _scale_heads(*found, factor)
        inputs = [self._settled(query, operation), self._settled(key, operation)]
        self._emit(replace(operation, fields=fields), inputs, weights)
        return _Value(operation.output)

    def _heads_of(self, name: str) -> tuple[Step, Operation] | None:
        """The product whose columns are these heads and nobody else's, and how they are split."""
        makers = {one.output: one for one in self.operations}
        while name in makers and makers[name].op == "rotate" and self.readers[name] == 1:
            name = makers[name].inputs[0]
        heads = makers.get(name)
        if heads is None or heads.op != "split_heads" or self.readers[name] != 1:
            return None
        product = next((one for one in self.found if one.operation.output == heads.inputs[0]), None)
        if product is None or product.operation.op != "linear":
            return None
        for one in self.operations:
            others = heads.inputs[0] in one.inputs and one is not heads
            if others and (one.op != "split_heads" or _columns(one) & _columns(heads)):
                return None
        return product, heads

    def _norm(self, operation: Operation, x: _Value) -> _Value:
        if x.origin is not None or x.factor.ndim:
            x = self._settled(x, operation)
        weights, kind = self.network.weights(operation), operation["kind"]
        if kind == "diagonal":
            return self._diagonal(operation, x, weights["scale"] * x.factor)
        fields = dict(operation.fields)
        if kind in ("layer", "rms"):
            # The norm of s x with epsilon is sign(s) times that of x with epsilon / s^2.
            scale = float(x.factor)
            weights = {**weights, "weight": np.sign(scale) * weights["weight"]}
            fields["epsilon"] = operation["epsilon"] / scale**2
        else:  # f(a s x)
            weights = {**weights, "alpha": weights["alpha"] * x.factor}
        self._emit(replace(operation, fields=fields), [x], weights)
        return _Value(operation.output)

    def _diagonal(self, operation: Operation, x: _Value, scale: Array) -> _Value:
        step = Step(replace(operation, inputs=(x.name,)), {"scale": scale})
        is_shared = operation.output in self.others
        if is_shared and self.folding.shared_norms:
            self.found.append(step)
            return _Value(operation.output)
        return _Value(x.name, scale, norm=step if is_shared else None)

    def _scale(self, operation: Operation, x: _Value) -> _Value:
        factor = operation["factor"]
        if x.origin is not None or x.factor.ndim:
            x = self._settled(x, operation)
        if x.maker is not None:
            _multiply_columns(x.maker, np.asarray(factor))
            single = self.readers[operation.output] == 1
            return replace(x, maker=x.maker if single else None)
        if self.folding.stream == "joined":
            return _Value(x.name, x.factor, origin=(x, factor))
        low, high = _STREAM_SCALES
        if low <= abs(float(x.factor) * factor) <= high:
            return replace(x, factor=x.factor * factor)
        self._emit(operation, [x])
        return _Value(operation.output, x.factor)

    def _add(self, operation: Operation, *summands: _Value) -> _Value:
        if self.folding.stream == "joined":
            summands = self._joined(operation, summands)
        if len(summands) == 1:
            single = self.readers[operation.output] == 1
            return summands[0] if single else replace(summands[0], maker=None)
        first = summands[0] if summands[0].factor.ndim == 0 else None
        first = first or self._settled(summands[0], operation)
        taken = [first]
        for one in summands[1:]:
            ratio = one.factor / first.factor
            if one.maker is not None:
                _multiply_columns(one.maker, ratio)
            elif not np.all(ratio == 1.0):
                one = self._settled(replace(one, factor=ratio), operation)
            taken.append(one)
        self._emit(operation, taken)
        return _Value(operation.output, first.factor)

    def _joined(self, operation: Operation, summands: tuple[_Value, ...]) -> tuple[_Value, ...]:
        """``factor x + (x W + b)`` as one product, ``W + factor I``."""
        kept: list[_Value] = []
        for one in summands:
            start = one.origin
            partner = None
            if start is not None:
                partner = next((each for each in summands if _reads(each, start[0].name)), None)
            if start is None:
                kept.append(one)
            elif partner is not None and partner.maker is not None:
                weights = partner.maker.weights
                identity = np.eye(len(weights["weight"]))
                weights["weight"] = weights["weight"] + start[1] * identity
            elif start[1] == 1:
                kept.append(start[0])
            else:
                kept.append(self._settled(one, operation))
        return tuple(kept)


def _reads(value: _Value, name: str) -> bool:
    maker = value.maker
    return maker is not None and maker.operation.op == "linear" and name in maker.operation.inputs


def _columns(heads: Operation) -> set[int]:
    return set(range(heads["start"], heads["start"] + heads["heads"] * heads["head_dim"]))


def _scale_heads(step: Step, heads: Operation, factors: Array) -> None:
    """Multiplies heads by a factor each, in the weights that make them."""
    if np.all(factors == 1.0):
        return
    columns = np.ones(step.weights["weight"].shape[1])
    width = heads["head_dim"]
    end = heads["start"] + heads["heads"] * width
    columns[heads["start"] : end] = np.repeat(factors, width)
    _multiply_columns(step, columns)


def _multiply_columns(step: Step, factors: Array) -> None:
    for role, tensor in step.weights.items():
        step.weights[role] = tensor * factors
