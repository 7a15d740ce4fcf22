"""A described network: its operations in the order in which they run, and its tensors.

Needs NumPy and safetensors, no torch. `read_description` needs neither.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aero.network.primitives import FUNCTIONS, NORM_ROLES, PRIMITIVES
from aero.reading import UnreadableFileError, checked, library_errors, read_json, shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

FORMAT, VERSION = "aero-network", 2
DESCRIPTION_FILE, WEIGHTS_FILE = "network.json", "weights.safetensors"
# The values that are given.
TOKENS, POSITIONS = "tokens", "positions"
# More would take minutes to read; the largest networks have some hundred layers.
_MOST_OPERATIONS = 100_000


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


@dataclass(frozen=True, eq=False)
class Network:
    """A network with its weights.

    Attributes:
        description: the content of `network.json`.
        tensors: by name, float64.
    """

    description: dict[str, Any]
    tensors: dict[str, Array]

    def operations(self) -> Iterator[Operation]:
        """Every operation of every layer, in order."""
        return operations_of(self.description)

    def weights(self, operation: Operation) -> dict[str, Array]:
        """The tensors of an operation by their roles."""
        return {role: self.tensors[name] for role, name in operation.weights.items()}


def operations_of(description: dict[str, Any]) -> Iterator[Operation]:
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


def layer_count(description: dict[str, Any]) -> int:
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


def read_network(folder: str | Path) -> Network:
    """Reads a folder of `aero.export_weights`.

    Raises:
        ValueError: a damaged file, another format or version, or weights of another export.
        OSError: the weights are missing.
    """
    import numpy as np
    import safetensors.numpy

    folder = Path(folder)
    description = read_description(folder)
    name = str(folder / DESCRIPTION_FILE)
    file = checked(description, {"weights": dict}, name)["weights"]
    content = (folder / file["file"]).read_bytes()
    if hashlib.sha256(content).hexdigest() != file["sha256"]:
        raise ValueError(
            f"read_network: {folder / file['file']} is not the file that network.json describes; "
            "export the network again"
        )
    with library_errors(folder / file["file"], "safetensors"):
        tensors = safetensors.numpy.load(content)
    described = {name: tensor["shape"] for name, tensor in description["tensors"].items()}
    found = {name: list(tensor.shape) for name, tensor in tensors.items()}
    if found != described:
        differing = sorted(k for k in {*found, *described} if found.get(k) != described.get(k))[0]
        raise UnreadableFileError(
            f"{name}: tensor {shown(differing)}: expected the shape of the weights' file, "
            f"{found.get(differing)}, got {described.get(differing)}"
        )
    return Network(description, {k: v.astype(np.float64) for k, v in tensors.items()})


_ENTRY = {"op": str, "inputs": [str], "output": str, "name?": str, "part?": str, "weights?": dict}
_DESCRIPTION = {
    "label": str | None,
    "spec": (dict, None),
    "context_length": int,
    "vocab_size": int,
    "operations": [dict],
    "tensors": dict,
    "weights?": {"file": str, "sha256": str},
}


def read_description(folder: str | Path) -> dict[str, Any]:
    """Reads the `network.json` of a folder, which may come from a stranger.

    Args:
        folder: from `aero.export_weights` or `aero private publish`.

    Returns:
        Its content. Every operation is known and has its fields, every value is written before it
        is read, and every weight is described in the shape that its operation needs.

    Raises:
        UnreadableFileError: it is missing, damaged, or of another format or version.
    """
    path = Path(folder) / DESCRIPTION_FILE
    described: dict[str, Any] = read_json(path)
    found = (described.get("format"), described.get("version"))
    if found == (FORMAT, 1):
        raise UnreadableFileError(
            f"{path}: expected an {FORMAT} {VERSION}, got version 1, which an earlier release "
            "wrote; export the network again"
        )
    if found != (FORMAT, VERSION):
        raise UnreadableFileError(f"{path}: expected an {FORMAT} {VERSION}, got {shown(found)}")
    check_description(described, str(path))
    file = described.get("weights", {}).get("file", "weights")
    if Path(file).name != file:
        raise UnreadableFileError(f"{path}: weights.file: expected a plain name, got {shown(file)}")
    return described


def check_description(described: dict[str, Any], where: str) -> None:
    """Refuses a description that a reader would stumble over.

    Args:
        described: any parsed JSON object.
        where: the file, for the message.

    Raises:
        UnreadableFileError: the text names the entry, what was expected and what was found.
    """
    checked(described, _DESCRIPTION, where)
    for name in ("context_length", "vocab_size"):
        if described[name] < 1:
            raise UnreadableFileError(
                f"{where}: {name}: expected at least 1, got {described[name]}"
            )
    for name, tensor in described["tensors"].items():
        sizes = checked(tensor, {"shape": [int]}, f"{where}: tensor {shown(name)}")["shape"]
        if any(size < 0 for size in sizes):
            raise UnreadableFileError(f"{where}: expected sizes >= 0 of {shown(name)}, got {sizes}")
    _check_entries(described["operations"], where)
    written = {TOKENS, POSITIONS}
    for operation in operations_of(described):
        _check_operation(operation, written, described, where)
        written.add(operation.output)
    if "logits" not in written:
        raise UnreadableFileError(f"{where}: operations: expected one that writes 'logits'")


def _check_entries(entries: list[dict[str, Any]], where: str) -> None:
    count = 0
    for entry in entries:
        times, inner = 1, [entry]
        if "repeat" in entry:
            checked(entry, {"repeat": int, "operations": [dict]}, f"{where}: operations")
            times, inner = entry["repeat"], entry["operations"]
        count += max(times, 1) * len(inner)
        if times < 1 or count > _MOST_OPERATIONS:
            raise UnreadableFileError(
                f"{where}: repeat: expected 1 to {_MOST_OPERATIONS} operations in all, "
                f"got {shown(times)} times {len(inner)}"
            )
        for operation in inner:
            _check_entry(operation, times, where)


def _check_entry(entry: dict[str, Any], times: int, where: str) -> None:
    checked(entry, _ENTRY, f"{where}: operations")
    name = entry["op"]
    if name not in PRIMITIVES:
        raise UnreadableFileError(
            f"{where}: op: expected one of {', '.join(PRIMITIVES)}, got {shown(name)}"
        )
    checked(entry, dict(PRIMITIVES[name].fields), f"{where}: {name}")
    for field_name in PRIMITIVES[name].fields:
        value = entry[field_name]
        if isinstance(value, list) and len(value) != times:
            raise UnreadableFileError(
                f"{where}: {name}.{field_name}: expected {times} numbers, one per repetition, "
                f"got {len(value)}"
            )
        smallest = 0 if field_name in ("start", "window") else 1
        if type(value) is int and value < smallest and PRIMITIVES[name].fields[field_name] is int:
            raise UnreadableFileError(
                f"{where}: {name}.{field_name}: expected at least {smallest}, got {value}"
            )
    checked(entry.get("weights", {}), dict.fromkeys(entry.get("weights", {}), str), where)


def _check_operation(
    operation: Operation, written: set[str], described: dict[str, Any], where: str
) -> None:
    primitive = PRIMITIVES[operation.op]
    place = f"{where}: {operation.op} {shown(operation.output)}"
    count = primitive.inputs or max(len(operation.inputs), 1)
    if len(operation.inputs) != count:
        raise UnreadableFileError(f"{place}: expected {count} inputs, got {len(operation.inputs)}")
    for value in operation.inputs:
        if value not in written:
            raise UnreadableFileError(f"{place}: expected a value, got {shown(value)}")
    if operation.op in ("scores", "weighted_sum") and operation["heads"] % operation["key_heads"]:
        raise UnreadableFileError(f"{place}: expected heads in whole groups of key_heads")
    choices = {"norm": NORM_ROLES, "activation": FUNCTIONS}.get(operation.op)
    chosen = operation.fields.get("kind", operation.fields.get("function"))
    if choices is not None and chosen not in choices:
        raise UnreadableFileError(f"{place}: expected {', '.join(choices)}, got {shown(chosen)}")
    needed = set(primitive.weights) - primitive.optional
    if operation.op == "norm":
        needed = set(NORM_ROLES[operation["kind"]]) - {"bias"}
    missing = sorted(needed - set(operation.weights))
    if missing:
        raise UnreadableFileError(f"{place}: expected a weight {missing[0]!r}, got none")
    for role, name in operation.weights.items():
        if role not in primitive.weights:
            raise UnreadableFileError(
                f"{place}: expected weights among {', '.join(primitive.weights)}, got {shown(role)}"
            )
        if name not in described["tensors"]:
            raise UnreadableFileError(f"{place}: expected a tensor {shown(name)}, got none")
        shape = primitive.weights[role](operation.fields, described["context_length"])
        if described["tensors"][name]["shape"] != shape:
            raise UnreadableFileError(
                f"{place}: {role}: expected the shape {shape}, got "
                f"{described['tensors'][name]['shape']}"
            )
