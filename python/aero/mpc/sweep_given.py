"""Networks of a sweep that have no label: every combination is a price of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aero.architecture import ArchitectureSpec
from aero.mpc.cost import Cost, FieldValue
from aero.mpc.cost_report import CostReport
from aero.mpc.described_stacks import StackDescription
from aero.mpc.given_networks import is_folder
from aero.mpc.profiles import ComputeProfile, NetworkProfile
from aero.mpc.simulation import simulate
from aero.reading import printable

_AXES = ("context_length", "vocab_size")


@dataclass(frozen=True)
class GivenPrice:
    """One combination, as `_core.SweepResult` tells it of a label.

    Attributes:
        error: Why it does not exist; the rest is then empty.
        total: The sum over its operations.
        nanoseconds: Per link.
        report: It without operations.
    """

    error: str = ""
    total: Cost | None = None
    nanoseconds: tuple[int, ...] = ()
    report: CostReport | None = None


def each_network(networks: Any) -> list[Any]:
    """One network or several as a list; models and configurations can be iterated over too."""
    single = isinstance(networks, str | Mapping) or not isinstance(networks, Iterable)
    is_object = hasattr(networks, "to_dict") or hasattr(networks, "named_parameters")
    return [networks] if single or is_object else list(networks)


def has_label(network: object) -> bool:
    """True of labels, published names and specs, of which a sweep prices ten thousand a second."""
    if isinstance(network, str):
        return not is_folder(network)
    return isinstance(network, ArchitectureSpec)


def shown_name(given: object) -> str:
    """What rows call a network: a folder or name as given, else its family once it is priced."""
    return printable(str(given)) if isinstance(given, str | Path) else ""


def price_given(
    given: Any,
    axes: Mapping[str, Sequence[FieldValue]],
    variants: Sequence[tuple[StackDescription, Mapping[str, FieldValue]]],
    links: Sequence[NetworkProfile],
    compute: ComputeProfile,
) -> Iterator[GivenPrice]:
    """Prices a network that has no label with every value of the axes, on every stack.

    Raises:
        ValueError: For an axis that such a network has not.
    """
    for name in axes:
        if name not in _AXES:
            raise ValueError(
                f"sweep: {name} must be left to labels; other networks vary in "
                f"{' and '.join(_AXES)}, got {shown_name(given) or type(given).__name__}"
            )
    for chosen in itertools.product(*axes.values()):
        sizes: dict[str, Any] = dict(zip(axes, chosen, strict=True))
        for stack, fields in variants:
            own: dict[str, Any] = {**sizes, **fields}
            try:
                report = simulate(given, stack=stack, **own)
            except ValueError as error:
                yield GivenPrice(str(error))
                continue
            times = tuple(report.latency(link, compute).total.total_ns for link in links)
            yield GivenPrice("", report.total, times, replace(report, operations=()))
