"""What a sweep varies, checked: values of fields, each given once, of stacks and of networks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aero import _core
from aero.architecture import ArchitectureSpec
from aero.mpc.cost import FieldValue
from aero.mpc.described_stacks import StackDescription
from aero.mpc.other_words import unknown_keyword
from aero.mpc.priced_network import exact_gelu_fields
from aero.mpc.simulation import plain_value

# Fields of a network that change no operation, only how much of each there is.
_SIZES = {
    "num_layers", "num_heads", "head_dim", "width", "hidden_width", "context_length", "vocab_size",
}  # fmt: skip


def axis_values(name: str, value: Sequence[FieldValue] | FieldValue) -> list[FieldValue]:
    """One value or several as a list, each once."""
    single = isinstance(value, str | bytes) or not isinstance(value, Iterable)
    found = [value] if single else list(value)  # type: ignore[arg-type]
    if not found:
        raise ValueError(f"sweep: {name} must have at least one value")
    require_once(name, found)
    return [plain_value(name, one) for one in found]


def several(given: Any) -> Any:
    """Values of which one alone may be given, by its name."""
    return [given] if isinstance(given, (str, Path)) else given


def require_once(name: str, values: Iterable[Any]) -> None:
    """Twice the same would be two rows of one thing."""
    seen: set[tuple[type, Any]] = set()
    unhashable: list[Any] = []
    for value in values:
        try:
            is_known = (type(value), value) in seen
            seen.add((type(value), value))
        except TypeError:
            is_known = any(value == one and type(value) is type(one) for one in unhashable)
            unhashable.append(value)
        if is_known:
            shown = getattr(value, "label", value)
            raise ValueError(f"sweep: {name} must name each once, got {shown!r} twice")


def split_axes(
    values: dict[str, list[FieldValue]], stacks: Sequence[StackDescription]
) -> tuple[dict[str, list[FieldValue]], dict[str, list[FieldValue]]]:
    """Axes of the stacks and of the networks; the names are checked."""
    fields = _core.Stack(stacks[0].base).fields
    stack_axes = {name: value for name, value in values.items() if name in fields}
    spec_axes = {name: value for name, value in values.items() if name not in fields}
    known = ArchitectureSpec.from_label("SM").to_dict()
    for name in spec_axes:
        if name not in known:
            raise unknown_keyword("sweep", name, [*known, *fields])
    return stack_axes, spec_axes


def kinds_of(
    spec: ArchitectureSpec, axes: Mapping[str, Sequence[FieldValue]]
) -> list[ArchitectureSpec]:
    """The network with every value of the swept fields that are no sizes, as far as it exists."""
    named = {name: values for name, values in axes.items() if name not in _SIZES}
    found = []
    for chosen in itertools.product(*named.values()):
        try:
            found.append(spec.replace(**dict(zip(named, chosen, strict=True))))
        except ValueError:  # of other sizes it may be one
            continue
    return found or [spec]


def by_gelu(
    variants: Sequence[tuple[StackDescription, Mapping[str, FieldValue]]], exact: Iterable[bool]
) -> dict[bool, list[_core.Stack]]:
    """The stacks with their fields, for networks with GELU's tanh form and with the exact one."""
    return {
        one: [
            stack.with_fields((exact_gelu_fields(stack, one) | dict(fields)).items())
            for stack, fields in variants
        ]
        for one in exact
    }
