"""A described network: its operations in the order in which they run, and its tensors.

Needs neither torch nor NumPy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aero.network.primitives import NOT_CONTINUED, PRIMITIVES, READERS, names_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

FORMAT, VERSION = "aero-network", 2
DESCRIPTION_FILE, WEIGHTS_FILE = "network.json", "weights.safetensors"
# The values that are given: ids [B, T], 0 to T - 1, and how many tokens of each sequence are its
# own, [B]; those behind them are padding.
TOKENS, POSITIONS, LENGTHS = GIVEN = ("tokens", "positions", "lengths")


@dataclass(frozen=True)
class Operation:
    """One operation of one layer.

    Attributes:
        op: the primitive.
        fields: its own entries; what a file holds as a list is this layer's number.
        inputs: names of the values that it reads.
        output: name of the value that it writes.
        weights: the tensor of each role.
        name: its part in reports.
        layer: from 0; None outside the layers.
    """

    op: str
    fields: dict[str, Any]
    inputs: tuple[str, ...]
    output: str
    weights: dict[str, str] = field(default_factory=dict)
    name: str = ""
    layer: int | None = None

    def __getitem__(self, name: str) -> Any:
        """A field by its name."""
        return self.fields[name]


#: The content of `network.json`: format, version, label, spec, context_length, vocab_size, meaning,
#: operations and tensors, as `aero.network.checks` checks them.
Description = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Network:
    """A network with its weights.

    Attributes:
        description: the content of `network.json`.
        tensors: by name, float64.
    """

    description: Description
    tensors: dict[str, Array]

    def operations(self) -> Iterator[Operation]:
        """Every operation of every layer, in order."""
        return operations_of(self.description)

    def weights(self, operation: Operation) -> dict[str, Array]:
        """The tensors of an operation by their roles."""
        return {role: self.tensors[name] for role, name in operation.weights.items()}


def network_of(
    operations: list[dict[str, Any]],
    tensors: dict[str, Array],
    *,
    label: str,
    spec: dict[str, Any] | None,
    context_length: int,
    vocab_size: int,
) -> Network:
    """A network whose description is made from its operations and tensors.

    Args:
        operations: as a file lists them.
        tensors: by name, as they are to be stored.
        label: of AERO's networks, or the name of a family.
        spec: of AERO's networks.
        context_length: T, in tokens.
        vocab_size: V.
    """
    described = {
        "format": FORMAT,
        "version": VERSION,
        "label": label,
        "spec": spec,
        "context_length": context_length,
        "vocab_size": vocab_size,
        "meaning": {name: primitive.meaning for name, primitive in PRIMITIVES.items()},
        "operations": operations,
        "tensors": {
            name: {"shape": list(tensor.shape), "dtype": str(tensor.dtype)}
            for name, tensor in tensors.items()
        },
    }
    return Network(described, tensors)


def operations_of(description: Description) -> Iterator[Operation]:
    """Every operation of every layer of a description, in order."""
    layer = 0
    for entry in description["operations"]:
        if "repeat" not in entry:
            yield _operation(entry, None, 0)
            continue
        for time in range(entry["repeat"]):
            for operation in entry["operations"]:
                yield _operation(operation, layer, time)
            layer += 1


def layer_count(description: Description) -> int:
    """How many layers a description has."""
    return sum(entry.get("repeat", 0) for entry in description["operations"])


def _operation(entry: dict[str, Any], layer: int | None, time: int) -> Operation:
    fields = {
        name: entry[name][time] if isinstance(entry[name], list) else entry[name]
        for name in PRIMITIVES[entry["op"]].fields
    }
    weights = {
        role: name.replace("{layer}", str(layer)) for role, name in entry.get("weights", {}).items()
    }
    return Operation(
        entry["op"], fields, tuple(entry["inputs"]), entry["output"], weights,
        entry.get("name", ""), layer,
    )  # fmt: skip


def unknown_operation(reader: str, operations: Iterable[Operation]) -> str | None:
    """The first operation, or form of one, that a reader does not know; None where it knows all."""
    return next((name for name in _names(operations) if name not in READERS[reader]), None)


def not_continued(operations: Iterable[Operation]) -> str | None:
    """The first operation, or form of one, by which a network continues no text; or None."""
    return next((name for name in _names(operations) if name in NOT_CONTINUED), None)


def _names(operations: Iterable[Operation]) -> Iterator[str]:
    for one in operations:
        yield from names_of(one.op, one.fields, one.weights, len(one.inputs))
