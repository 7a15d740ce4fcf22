"""What is to be said of all prices of a sweep at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aero import _core
from aero.architecture import ArchitectureSpec
from aero.mpc.cost_report import CostReport
from aero.mpc.described_stacks import StackDescription
from aero.mpc.latency import unchecked_minutes
from aero.mpc.priced_network import (
    EXACT_GELU,
    OTHER_GELU,
    beyond,
    different_trust,
    is_other_gelu,
    lowerings_of,
    of_each,
    positions_of,
)
from aero.mpc.profiles import ComputeProfile, NetworkProfile

Variants = Sequence[tuple[StackDescription, _core.Stack]]


@dataclass(frozen=True)
class Swept:
    """One network of a sweep, on all of its stacks.

    Attributes:
        specs: It with each of the swept fields that is no size.
        preset: Of its sizes.
        exact_gelu: Its GELU is the exact one.
        variants: The stacks with each of the swept fields.
    """

    specs: Sequence[ArchitectureSpec]
    preset: str | None
    exact_gelu: bool
    variants: Variants


def sweep_words(
    networks: Sequence[Swept],
    reports: Sequence[CostReport],
    axes: Mapping[str, Sequence[Any]],
    links: Sequence[NetworkProfile],
    compute: ComputeProfile,
    *,
    has_dealer: bool,
) -> dict[str, Any]:
    """Notes, doubts, trust and lines of a program, as `SweepResult` has them.

    Args:
        networks: All that have a label.
        reports: Of every combination of the others.
        axes: What is swept of the networks.
        links: Where they are timed.
        compute: The machines of these links.
        has_dealer: A dealer sends bytes.
    """
    trust = {stack.name: stack.trust for one in networks for stack, _ in one.variants}
    trust |= {report.stack: report.trust for report in reports}
    notes = [text for one in networks for text in _notes(one, axes)]
    notes += [text for report in reports for text in report.notes]
    prices = [
        (stack.name, found)
        for one in networks
        for spec in one.specs
        for stack, priced in one.variants
        for found in _layer(spec, priced, exact_gelu=one.exact_gelu)
    ]
    prices += [
        (one.stack, {"unchecked": one.unchecked, "lowerings": one.lowerings}) for one in reports
    ]
    doubts = of_each((name, found["unchecked"]) for name, found in prices)
    minutes = (text for link in links for text in unchecked_minutes(link, compute))
    dealer = "; the dealer sends dealer_gb beforehand, which no other column has in it" * has_dealer
    same = next(iter(trust.values())) if len({*trust.values()}) == 1 else ""
    return {
        "notes": tuple(dict.fromkeys([*notes, *different_trust(trust)])),
        "unchecked": tuple(dict.fromkeys([*doubts, *minutes])),
        "trust": f"{same}{dealer}" if same else "",
        "lowerings": lowerings_of((name, found["lowerings"]) for name, found in prices),
    }


def _layer(
    spec: ArchitectureSpec, priced: _core.Stack, *, exact_gelu: bool
) -> Iterator[dict[str, Any]]:
    """The price of one layer of each kind; nothing where the stack has none for this network."""
    operations = [
        one | {"repeat": 1} if "repeat" in one else one
        for one in _core.describe(spec, exact_gelu=exact_gelu).operations
    ]
    try:
        yield _core.simulate(_core.Network(operations, spec.context_length), priced)
    except ValueError:  # no such combination
        return


def _notes(network: Swept, axes: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    """What is to be said of one network, on all of its stacks."""
    contexts = [int(length) for length in axes.get("context_length", ())]
    positions = positions_of(network.preset)
    if positions is not None and contexts and max(contexts) > positions:
        yield beyond(max(contexts), positions, network.preset or network.specs[0].label)
    for stack, priced in network.variants:
        fields = priced.fields
        if network.exact_gelu and fields["gelu"] == "erf" and "gelu" not in stack.prices:
            yield EXACT_GELU
        if any(is_other_gelu(spec, stack, fields) for spec in network.specs):
            yield OTHER_GELU
        spec = network.specs[0]
        for length in contexts or [spec.context_length]:
            sizes = {**spec.to_dict(), **dict.fromkeys(axes, 0), "context_length": length}
            yield from stack.key_words(spec.label, sizes)
        if stack.prices:
            yield (
                f"{stack.name} quotes prices of {', '.join(stack.prices)}; all else costs what "
                f"{stack.base} derives"
            )
