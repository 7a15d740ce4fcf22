"""Values and operations that a program makes, and how they are listed."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from math import prod
from typing import Any

from aero.families.traced_nodes import layer_of, line_of, shape_of
from aero.families.writer import Operation


@dataclass(frozen=True)
class Tensor:
    """What a node stands for.

    Attributes:
        value: the description's name for it; "" for weights and public numbers.
        is_weight: computed of parameters alone, so the server knows it.
    """

    value: str = ""
    is_weight: bool = False


@dataclass
class Size:
    """Rows and columns of a value of the description, and the operation that made it."""

    rows: int
    columns: int
    made: Operation = field(default_factory=dict)


class Tracing:
    """What nodes have become so far.

    Attributes:
        placed: the operations, each with the layer of its module.
        rows: the most that an input has.
        name: of the module's class.
    """

    def __init__(self, program: Any) -> None:
        signature = program.graph_signature
        self._weights = {*signature.inputs_to_parameters}
        self._inputs = {*map(str, signature.user_inputs)}
        self._tensors: dict[str, Tensor] = {}
        self._sizes: dict[str, Size] = {}
        self._lacking: Counter[tuple[str, str, str]] = Counter()
        self._folded: Counter[str] = Counter()
        self._numbers = itertools.count()
        self._factors: dict[str, str] = {}  # 1 / sqrt of a mean of squares: the norm that it makes
        self._bare: set[str] = set()  # norms that such products made, without a gain so far
        self._inverted: set[str] = set()  # nodes of sqrt that stand for 1 / sqrt
        self._node: Any = None
        self.placed: list[tuple[Operation, str]] = []
        self.rows = 1
        self.name = ""

    def end(self) -> None:
        """Ends the program with its features, where activations behind no vocabulary make them."""
        if not self._features() or self.placed[-1][0]["op"] == "linear":
            return
        last, layer = self.placed[-1]
        size = self._sizes[last["output"]]
        self._put("rearrange", size.rows, size.columns, last["output"], positions=size.rows,
                  width=size.columns)  # fmt: skip
        self.placed[-1] = (self.placed[-1][0], layer)

    def _features(self) -> int:
        """How many outputs the last product has; 0 where it has a vocabulary's, or is not last."""
        tables = {one["rows"] for one, _ in self.placed if one["op"] == "embed"}
        behind = (one for one, _ in reversed(self.placed) if one["op"] != "activation")
        last: Operation = next(behind, {"op": ""})
        return last["out"] if last["op"] == "linear" and last["out"] not in tables else 0

    def operations(self) -> list[Operation]:
        """Lists them as a description does: own layers where nothing within is read later."""
        runs = [
            (layer, [one for one, _ in run])
            for layer, run in itertools.groupby(self.placed, key=lambda pair: pair[1])
        ]
        listed: list[Operation] = []
        for place, (layer, inner) in enumerate(runs):
            later = {name for _, run in runs[place + 1 :] for one in run for name in one["inputs"]}
            inside = {one["output"] for one in inner[:-1]}
            if layer and not inside & later and layer not in [name for name, _ in runs[:place]]:
                listed.append({"repeat": 1, "operations": inner})
            else:
                listed += inner
        _name_parts(listed)
        return listed

    def unpriced(self) -> tuple[str, ...]:
        """Operations without a price, and factors that are thought to be in weights."""
        found = [
            f"no price: {word} of {shape}, {times} call{'s' * (times > 1)}, first at {line}"
            for (word, shape, line), times in _first_lines(self._lacking).items()
        ]
        if self._folded:
            times = sum(self._folded.values())
            found.append(
                f"{times} public factor{'s are' if times > 1 else ' is'} priced as part of the "
                f"weights beside, first at {next(iter(self._folded))}"
            )
        if outputs := self._features():
            found.append(
                f"argmax: the {outputs:,} outputs of the last product are taken as logits; "
                "argmax=False leaves their argmax out"
            )
        return tuple(found)

    # --- values ----------------------------------------------------------------------------------

    def _given(self, node: Any) -> Tensor:
        if node.name in self._weights:
            return Tensor(is_weight=True)
        if node.name not in self._inputs:  # buffers: masks and positions, which are public
            return Tensor()
        shape = shape_of(node)
        is_ids = not node.meta["val"].dtype.is_floating_point
        width = 1 if is_ids or not shape else shape[-1]
        rows = prod(shape) // width
        self.rows = max(self.rows, rows)
        return self._put("source", rows, width, positions=rows, width=width)

    def _put(self, op: str, rows: int, columns: int, /, *inputs: str, **fields: Any) -> Tensor:
        name = f"{op}_{next(self._numbers)}"
        entry = {"op": op, "name": line_of(self._node), "part": "", "inputs": [*inputs],
                 "output": name, **fields}  # fmt: skip
        self.placed.append((entry, layer_of(self._node)))
        self._sizes[name] = Size(rows, columns, entry)
        return Tensor(name)

    def _at(self, value: str, rows: int, columns: int) -> str:
        """The value with so many rows."""
        size = self._sizes[value]
        if (size.rows, size.columns) == (rows, columns):
            return value
        return self._put("rearrange", rows, columns, value, positions=rows, width=columns).value

    def _rows_of(self, node: Any) -> str:
        """The value of a node, a row for each of its last axis."""
        shape = shape_of(node)
        return self._at(self._tensors[node.name].value, prod(shape[:-1]), shape[-1])

    def _heads_of(self, node: Any) -> str:
        """The value of a node, its last two axes as rows and columns; the others are heads."""
        return self._at(self._tensors[node.name].value, *shape_of(node)[-2:])

    def _moved(self, value: str) -> str:
        """The value whose numbers these are, in other places."""
        while self._sizes[value].made["op"] == "rearrange":
            value = self._sizes[value].made["inputs"][0]
        return value

    def _is_weighting(self, value: str) -> bool:
        """Made of scores, as by a softmax, written out or not."""
        while (made := self._sizes[value].made)["op"] in ("activation", "add", "multiply",
                                                          "rearrange"):  # fmt: skip
            value = made["inputs"][0]
        return made["op"] in ("scores", "softmax")

    def _joined(self, values: list[str]) -> Tensor:
        """The sum of values, or any other that waits for them and costs nothing."""
        if len(values) == 1:
            return Tensor(values[0])
        size = self._sizes[values[0]]
        return self._put("add", size.rows, size.columns, *values)

    def _tensor(self, given: Any) -> Tensor:
        if isinstance(given, Tensor):
            return given
        return self._tensors[given.name] if hasattr(given, "name") else Tensor()


def _first_lines(lacking: Counter[tuple[str, str, str]]) -> dict[tuple[str, str, str], int]:
    """Calls of one operation and shape together, at the first of their lines."""
    lines: dict[tuple[str, str], str] = {}
    times: Counter[tuple[str, str]] = Counter()
    for (word, shape, line), count in lacking.items():
        lines.setdefault((word, shape), line)
        times[word, shape] += count
    return {(word, shape, lines[word, shape]): count for (word, shape), count in times.items()}


_PARTS = {
    "embed": "embed", "softmax": "softmax", "scores": "QK", "weighted_sum": "PV",
    "activation": "act", "multiply": "act", "norm": "layernorm",
}  # fmt: skip


def _name_parts(listed: list[Operation]) -> None:
    """The part of every operation, of a product by what its result goes into."""
    every = [one for entry in listed for one in entry.get("operations", [entry])]
    makers = {one["output"]: one for one in every}
    attended: set[int] = set()
    for one in every:
        if one["op"] in ("scores", "weighted_sum"):
            attended |= {id(maker) for name in one["inputs"] if (maker := _linear(name, makers))}
    for one in every:
        one["part"] = _PARTS.get(one["op"], "")
        if one["op"] == "linear":
            after = _made_of(one["inputs"][0], makers)
            is_attention = id(one) in attended or after == "weighted_sum"
            one["part"] = "qkv/proj" if is_attention else "ffn"
    if every[-1]["op"] == "linear":
        every[-1]["part"] = "lm head"


def _linear(name: str, makers: dict[str, Operation]) -> Operation | None:
    """The product behind a value that is only moved since; None where there is another thing."""
    while makers[name]["op"] in ("rearrange", "add", "norm"):
        name = makers[name]["inputs"][0]
    return makers[name] if makers[name]["op"] == "linear" else None


def _made_of(name: str, makers: dict[str, Operation]) -> str:
    while makers[name]["op"] == "rearrange":
        name = makers[name]["inputs"][0]
    return str(makers[name]["op"])
