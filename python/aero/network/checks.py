"""Refuses a description that a reader would stumble over; it may come from a stranger.

Needs neither torch nor NumPy. Letters: T tokens, S keys, H heads, D head width.
"""

from __future__ import annotations

from typing import Any

from aero.network.description import (
    GIVEN,
    LENGTHS,
    POSITIONS,
    TOKENS,
    Description,
    Operation,
    operations_of,
)
from aero.network.primitives import FUNCTIONS, NORM_ROLES, POOLS, PRIMITIVES, functions_of
from aero.reading import UnreadableFileError, checked, shown

# As the simulator's: sizes beyond these are typing errors.
_MOST = {
    "context_length": 2**24, "vocab_size": 2**28, "rows": 2**28, "in": 2**28, "out": 2**28,
    "heads": 2**16, "key_heads": 2**16,
}  # fmt: skip
_MOST_SIZE, _MOST_LAYERS, _MOST_OPERATIONS = 2**24, 4096, 100_000
# Integers and real numbers that may be 0; bases and factors have rules of their own.
_FROM_ZERO = ("start", "window")
_NOT_NEGATIVE = ("epsilon", "soft_cap")

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

# What a value is: "ids"; "lengths"; "channels" and their number of each position; "heads", their
# number and width; "scores" and the number of heads; "pooled" channels.
Kind = tuple[Any, ...]


class _RefusalError(Exception):
    """Expected and got, without the place."""


def check_description(described: Description, where: str) -> None:
    """Refuses a description that a reader would stumble over.

    Args:
        described: any parsed JSON object.
        where: the file, for the message.

    Raises:
        UnreadableFileError: the text names the entry, what was expected and what was found.
    """
    checked(described, _DESCRIPTION, where)
    for name in ("context_length", "vocab_size"):
        _check_size(where, name, described[name])
    for name, tensor in described["tensors"].items():
        sizes = checked(tensor, {"shape": [int]}, f"{where}: tensor {shown(name)}")["shape"]
        if any(size < 0 for size in sizes):
            raise UnreadableFileError(f"{where}: expected sizes >= 0 of {shown(name)}, got {sizes}")
    _check_entries(described["operations"], where)
    kinds: dict[str, Kind] = {TOKENS: ("ids",), POSITIONS: ("ids",), LENGTHS: ("lengths",)}
    operations = list(operations_of(described))
    for operation in operations:
        place = f"{where}: {operation.op} {shown(operation.output)}"
        try:
            inputs = _kinds_of_inputs(operation, kinds)
            kinds[operation.output] = _AFTER[operation.op](operation, described, *inputs)
            _check_weights(operation, described)
        except _RefusalError as refusal:
            raise UnreadableFileError(f"{place}: {refusal}") from None
    _check_result(operations, where)


def _check_entries(entries: list[dict[str, Any]], where: str) -> None:
    places = [index for index, entry in enumerate(entries) if "repeat" in entry]
    if not places or places[0] == 0 or len(places) != places[-1] - places[0] + 1:
        raise UnreadableFileError(
            f"{where}: operations: expected some, then all repeated ones, then the head's, got "
            f"repeat at {places[:8]} of {len(entries)}"
        )
    layers = count = 0
    repeated = []
    for entry in entries:  # before any operation is looked at: there may be millions
        times, inner = _repeated(entry, where)
        repeated.append((times, inner))
        layers += times * ("repeat" in entry)
        count += times * len(inner)
        if layers > _MOST_LAYERS or count > _MOST_OPERATIONS:
            raise UnreadableFileError(
                f"{where}: repeat: expected 1 to {_MOST_LAYERS} layers of 1 to {_MOST_OPERATIONS} "
                f"operations in all, got {shown(times)} times {len(inner)} after "
                f"{len(repeated) - 1} entries"
            )
    for times, inner in repeated:
        for operation in inner:
            _check_entry(operation, times, where)


def _repeated(entry: dict[str, Any], where: str) -> tuple[int, list[dict[str, Any]]]:
    """How often an entry runs, and its operations."""
    if "repeat" not in entry:
        return 1, [entry]
    checked(entry, {"repeat": int, "operations": [dict]}, f"{where}: operations")
    times, inner = entry["repeat"], entry["operations"]
    if times < 1 or not inner:
        raise UnreadableFileError(
            f"{where}: repeat: expected at least 1 layer of 1 operation, got {shown(times)} times "
            f"{len(inner)}"
        )
    return times, inner


def _check_entry(entry: dict[str, Any], times: int, where: str) -> None:
    checked(entry, _ENTRY, f"{where}: operations")
    op = entry["op"]
    if op not in PRIMITIVES:
        raise UnreadableFileError(
            f"{where}: op: expected one of {', '.join(PRIMITIVES)}, got {shown(op)}"
        )
    checked(entry, dict(PRIMITIVES[op].fields), f"{where}: {op}")
    for name, kind in PRIMITIVES[op].fields.items():
        value = entry[name]
        if isinstance(value, list) and len(value) != times:
            raise UnreadableFileError(
                f"{where}: {op}.{name}: expected {times} numbers, one per repetition, got "
                f"{len(value)}"
            )
        if kind is int:
            _check_size(f"{where}: {op}", name, value)
        elif name in _NOT_NEGATIVE and min(value if isinstance(value, list) else [value]) < 0:
            raise UnreadableFileError(f"{where}: {op}.{name}: expected at least 0, got {value}")
    for name in entry.get("weights", {}).values():
        if not isinstance(name, str):
            raise UnreadableFileError(f"{where}: weights: expected names, got {shown(name)}")


def _check_size(where: str, name: str, value: int) -> None:
    smallest, most = int(name not in _FROM_ZERO), _MOST.get(name, _MOST_SIZE)
    if not smallest <= value <= most:
        raise UnreadableFileError(
            f"{where}: {name}: expected {smallest} to {most}, got {shown(value)}"
        )


def _check_result(operations: list[Operation], where: str) -> None:
    last = operations[-1]
    writes = sum(one.output == "logits" for one in operations)
    reads = sum("logits" in one.inputs for one in operations)
    if last.op not in ("linear", "argmax") or (last.output, writes, reads) != ("logits", 1, 0):
        raise UnreadableFileError(
            f"{where}: operations: expected the last, a linear or an argmax, to write 'logits' "
            f"once and nothing to read them, got {last.op} {shown(last.output)}, {writes} writes, "
            f"{reads} reads"
        )


def _kinds_of_inputs(operation: Operation, kinds: dict[str, Kind]) -> list[Kind]:
    primitive = PRIMITIVES[operation.op]
    count = max(len(operation.inputs), 1) if primitive.inputs is None else primitive.inputs
    if primitive.lengths and operation.inputs[count:] == (LENGTHS,):
        count += 1
    if len(operation.inputs) != count:
        raise _RefusalError(f"expected {count} inputs, got {len(operation.inputs)}")
    for value in operation.inputs:
        if value not in kinds:
            raise _RefusalError(f"expected a value, got {shown(value)}")
    if operation.output in GIVEN:
        raise _RefusalError(
            f"expected a name of its own for what it writes, got {operation.output!r}"
        )
    return [kinds[value] for value in operation.inputs]


def _check_weights(operation: Operation, described: Description) -> None:
    primitive = PRIMITIVES[operation.op]
    allowed = set(primitive.weights)
    if operation.op == "norm":
        allowed = set(NORM_ROLES[operation["kind"]])
    needed = allowed - primitive.optional
    if operation.op == "norm":
        needed = allowed - {"bias"}
    if operation.op == "scores":
        needed = allowed = allowed if operation["temperature"] else set()
    missing = sorted(needed - set(operation.weights))
    if missing:
        raise _RefusalError(f"expected a weight {missing[0]!r}, got none")
    for role, name in operation.weights.items():
        if role not in allowed:
            raise _RefusalError(f"expected weights among {sorted(allowed)}, got {shown(role)}")
        if name not in described["tensors"]:
            raise _RefusalError(f"expected a tensor {shown(name)}, got none")
        shape = primitive.weights[role](operation.fields, described["context_length"])
        if described["tensors"][name]["shape"] != shape:
            got = described["tensors"][name]["shape"]
            raise _RefusalError(f"{role}: expected the shape {shape}, got {got}")


# --- one function per primitive: the kind of its result -------------------------------------------


def _expect(kind: Kind, *expected: Any) -> Kind:
    if kind[: len(expected)] != expected:
        raise _RefusalError(f"expected a value of {_words(expected)}, got {_words(kind)}")
    return kind


def _words(kind: Kind) -> str:
    return " ".join(map(str, kind))


def _embed(operation: Operation, described: Description, given: Kind) -> Kind:
    _expect(given, "ids")
    if operation.layer is not None:
        raise _RefusalError("expected tables before the layers")
    is_token = operation.inputs == (TOKENS,)
    least = described["vocab_size" if is_token else "context_length"]
    if operation["rows"] < least:
        raise _RefusalError(f"expected at least {least} rows, got {operation['rows']}")
    return "channels", operation["width"]


def _linear(operation: Operation, _: dict[str, Any], given: Kind) -> Kind:
    _expect(given, "pooled" if given[0] == "pooled" else "channels", operation["in"])
    return given[0], operation["out"]


def _split_heads(operation: Operation, _: dict[str, Any], given: Kind) -> Kind:
    _expect(given, "channels")
    end = operation["start"] + operation["heads"] * operation["head_dim"]
    if end > given[1]:
        raise _RefusalError(f"expected channels up to {given[1]}, got {end}")
    return "heads", operation["heads"], operation["head_dim"]


def _join_heads(_: Operation, __: dict[str, Any], given: Kind) -> Kind:
    _expect(given, "heads")
    return "channels", given[1] * given[2]


def _rotate(operation: Operation, _: dict[str, Any], given: Kind) -> Kind:
    _expect(given, "heads", operation["heads"])
    if operation["channels"] % 2 or operation["channels"] > given[2] or operation["base"] <= 0:
        raise _RefusalError(
            f"expected an even number of channels up to {given[2]} and a base above 0, got "
            f"{operation['channels']} and {operation['base']}"
        )
    return given


def _groups(operation: Operation) -> None:
    if operation["heads"] % operation["key_heads"]:
        raise _RefusalError(
            f"expected heads in whole groups of key_heads, got {operation['heads']} and "
            f"{operation['key_heads']}"
        )


def _scores(operation: Operation, _: dict[str, Any], query: Kind, key: Kind) -> Kind:
    _groups(operation)
    _expect(query, "heads", operation["heads"], operation["head_dim"])
    _expect(key, "heads", operation["key_heads"], operation["head_dim"])
    return "scores", operation["heads"]


def _of_scores(operation: Operation, _: dict[str, Any], given: Kind, *__: Kind) -> Kind:
    return _expect(given, "scores", operation["heads"])


_softmax = _shape = _of_scores


def _weighted_sum(operation: Operation, _: dict[str, Any], weights: Kind, values: Kind) -> Kind:
    _groups(operation)
    _expect(weights, "scores", operation["heads"])
    _expect(values, "heads", operation["key_heads"], operation["head_dim"])
    return "heads", operation["heads"], operation["head_dim"]


def _chosen(operation: Operation, field: str, known: Any) -> None:
    if operation[field] not in known:
        raise _RefusalError(f"expected {', '.join(known)}, got {shown(operation[field])}")


def _norm(operation: Operation, _: dict[str, Any], given: Kind) -> Kind:
    _chosen(operation, "kind", NORM_ROLES)
    if given[0] != "heads":
        return _expect(given, "channels", operation["width"])
    if operation["kind"] not in ("layer", "rms"):
        raise _RefusalError(f"expected layer or rms of heads, got {operation['kind']}")
    if operation["width"] != given[2]:
        raise _RefusalError(f"expected the width of heads, {given[2]}, got {operation['width']}")
    return given


def _activation(operation: Operation, _: dict[str, Any], given: Kind) -> Kind:
    _chosen(operation, "function", FUNCTIONS)
    return _expect(given, given[0] if given[0] == "pooled" else "channels", operation["width"])


def _multiply(operation: Operation, _: dict[str, Any], x: Kind, y: Kind) -> Kind:
    _expect(y, *x)
    return _expect(x, "channels", operation["width"])


def _add(_: Operation, __: dict[str, Any], first: Kind, *rest: Kind) -> Kind:
    for one in rest:
        _expect(one, *first)
    return _expect(first, "channels")


def _of_channels(_: Operation, __: dict[str, Any], given: Kind) -> Kind:
    return _expect(given, "channels")


_scale = _shift = _of_channels


def _unfold(operation: Operation, _: dict[str, Any], given: Kind) -> Kind:
    width = _expect(given, "channels")[1] * operation["taps"]
    if width > _MOST["in"]:
        raise _RefusalError(f"expected at most {_MOST['in']} channels, got {width}")
    return "channels", width


def _pool(operation: Operation, _: dict[str, Any], given: Kind, *__: Kind) -> Kind:
    _chosen(operation, "kind", POOLS)
    return "pooled", _expect(given, "channels")[1]


def _argmax(operation: Operation, _: dict[str, Any], given: Kind) -> Kind:
    _expect(given, given[0] if given[0] == "pooled" else "channels", operation["width"])
    return ("places",)


def _priced_alone(_: Operation, __: dict[str, Any], *___: Kind) -> Kind:
    raise _RefusalError("expected an operation with numbers, got one that has a price alone")


_source = _rearrange = _route = _priced_alone

_AFTER = functions_of(globals(), PRIMITIVES)
