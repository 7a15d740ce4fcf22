"""The cost of one private forward pass per operation, part, layer and party; two side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aero.architecture import ArchitectureSpec
from aero.mpc.cost import Cost, FieldValue, Operation, Stack
from aero.mpc.described_stacks import StackDescription, default_compute
from aero.mpc.latency import Latency
from aero.mpc.other_words import unknown_keyword
from aero.mpc.priced_network import (
    SIZES,
    PricedNetwork,
    different_trust,
    lowerings_of,
    of_each,
    relu_alone,
    trusted,
    words_dict,
)  # fmt: skip
from aero.mpc.profiles import ComputeProfile, NetworkProfile, compute_profile, network_profile
from aero.tables import in_units

if TYPE_CHECKING:
    from aero.mpc.compared_parts import ComparisonRow

Network = str | NetworkProfile | None
Compute = str | ComputeProfile | None
_NAMES = ("first", "second")  # of a comparison


@dataclass(frozen=True)
class CostReport:
    """One private forward pass, priced.

    Attributes:
        label: The network.
        sizes: Its num_layers, num_heads, width, context_length and vocab_size.
        spec: Of a label; None of other networks.
        stack: Name of the stack or optimized stack.
        stack_fields: All its fields, overrides included.
        operations: The operation graph, in an order in which it can run.
        total: The sum over the operations.
        base_bytes: Of its bytes those that a stack with quoted prices quotes none for.
        by_kind: The sum per part: qkv/proj, QK, softmax, PV, ffn, act, layernorm, embed, lm head,
            argmax, setup, as far as they occur. `qkv/proj` has the truncation by 1/sqrt(d_k).
        by_layer: The sum per layer; with `outside_layers` they make the total.
        outside_layers: The operations that belong to no layer.
        unchecked: Parts whose formula no publication or measurement confirms op by op.
        notes: What the price leaves out or takes for granted.
        description: The stack as data, with the source of quoted prices.
        lowerings: Part -> the lines of a program that its price is of; others cost otherwise.
    """

    label: str
    sizes: Mapping[str, int]
    spec: ArchitectureSpec | None
    stack: str
    stack_fields: dict[str, FieldValue]
    operations: tuple[Operation, ...]
    total: Cost
    base_bytes: float
    by_kind: dict[str, Cost]
    by_layer: tuple[Cost, ...]
    outside_layers: Cost
    unchecked: tuple[str, ...]
    notes: tuple[str, ...]
    description: StackDescription
    lowerings: Mapping[str, tuple[str, ...]]

    @staticmethod
    def of(
        network: PricedNetwork,
        stack: StackDescription,
        priced: Stack,
        found: dict[str, Any],
        keys: int | None = None,
    ) -> CostReport:
        """Builds the report of a network on a stack, `priced` so, from what the C++ side found.

        `keys` are those that the last token of a generation sees; None: T.
        """
        fields = priced.fields
        return CostReport(
            label=network.label, sizes=network.sizes, spec=network.spec, stack=stack.name,
            stack_fields=fields, description=stack, **found,
            notes=network.said_of(stack, fields, keys or network.sizes["context_length"]),
        )  # fmt: skip

    @property
    def comm_bytes(self) -> float:
        """Bytes sent by both parties."""
        return self.total.comm_bytes

    @property
    def client_bytes(self) -> float:
        """Bytes sent by the client."""
        return self.total.client_bytes

    @property
    def server_bytes(self) -> float:
        """Bytes sent by the server."""
        return self.total.server_bytes

    @property
    def rounds(self) -> int:
        """One-way messages in sequence."""
        return self.total.rounds

    @property
    def stack_text(self) -> str:
        """Name of the stack, and the fields that were changed."""
        changed = ", ".join(f"{name}={value}" for name, value in self.changed_fields().items())
        return self.stack + (f" with {changed}" if changed else "")

    @property
    def trust(self) -> str:
        """Says whom the stack's users trust: parties, how they behave, a dealer."""
        return self.description.trust

    def changed_fields(self) -> dict[str, FieldValue]:
        """Returns the stack's fields that differ from the named stack."""
        named = self.description.all_fields()
        return {name: value for name, value in self.stack_fields.items() if value != named[name]}

    def latency(
        self,
        network: str | NetworkProfile = "paper-testbed",
        compute: Compute = None,
        **unknown: object,
    ) -> Latency:
        """Returns how long the forward pass takes on a network and two machines.

        Args:
            network: A profile, a name of `network_names()`, or a name with changes:
                "wan-100mbps,uplink_mbps=20,software_seconds=0.006".
            compute: A profile, a name of `compute_names()`, or a name with changes:
                "paper-testbed,threads=8"; "none" leaves the network alone. Default:
                `paper-testbed`, and on stacks of shares, such as `spu-semi2k`, `spu-epyc`, which
                alone has their rates.
            **unknown: None; words of other tools are answered with the name here.

        Raises:
            ValueError: Names the field and its range.

        Example:
            >>> from aero import mpc
            >>> report = mpc.simulate("SM+LN+G", final_norm="none", setup=False)
            >>> round(report.latency().minutes, 1)
            8.2
        """
        for name in unknown:
            raise unknown_keyword("latency", name, ("network", "compute"))
        machines = compute_profile(compute or default_compute(self.description))
        return Latency.of(self.label, self.operations, network_profile(network), machines)

    def to_dict(
        self,
        network: str | NetworkProfile | None = None,
        compute: Compute = None,
    ) -> dict[str, Any]:
        """Returns everything ready for JSON; with a network also its `latency`."""
        require_network(network, compute)
        timed = {} if network is None else self.latency(network, compute).to_dict()
        found = {
            "label": self.label,
            "spec": None if self.spec is None else self.spec.to_dict(),
            "sizes": dict(self.sizes),
            "stack": self.stack,
            "stack_fields": dict(self.stack_fields),
            **self.total.to_dict(),
            "base_bytes": self.base_bytes,
            "by_kind": {kind: cost.to_dict() for kind, cost in self.by_kind.items()},
            "by_layer": [cost.to_dict() for cost in self.by_layer],
            "outside_layers": self.outside_layers.to_dict(),
            "operations": [
                {
                    "name": operation.name,
                    "layer": operation.layer,
                    "kind": operation.kind,
                    "shape": operation.shape,
                    "inputs": list(operation.inputs),
                    "cost": operation.cost.to_dict(),
                    "evaluator": operation.evaluator,
                    "token_by_token": operation.token_by_token,
                }
                for operation in self.operations
            ],
            **words_of(self),
        }
        return found | ({"latency": timed} if timed else {})

    def __repr__(self) -> str:
        return (
            f"<CostReport {self.label} on {self.stack}: "
            f"{in_units(self.comm_bytes)} GB, {self.rounds} rounds>"
        )

    def compare(self, other: CostReport) -> CostComparison:
        """Sets this report (first) next to another one (second), part by part.

        Example:
            >>> from aero import mpc
            >>> baseline = mpc.simulate("SM+LN+G", final_norm="none")
            >>> round(baseline.compare(mpc.simulate("SM+ScFuFFN")).ratio, 1)
            4.0
        """
        if not isinstance(other, CostReport):
            raise ValueError(f"compare: expected a CostReport, got {type(other).__name__}")
        return CostComparison(self, other)


@dataclass(frozen=True)
class CostComparison:
    """A second report compared with a first one, part by part.

    Attributes:
        first: The report that is compared with.
        second: The other one.

    Example:
        >>> from aero import mpc
        >>> compared = mpc.simulate("SM+LN+G").compare(mpc.simulate("SM+ScFuFFN"))
        >>> round(compared.ratio, 2)
        3.99
    """

    first: CostReport
    second: CostReport

    @property
    def ratio(self) -> float:
        """Bytes of the first over bytes of the second: how many times less the second sends."""
        return self.first.comm_bytes / self.second.comm_bytes

    def rows(self, network: Network = None, compute: Compute = None) -> list[ComparisonRow]:
        """One mapping per part that occurs in either, and the total; absent parts count 0.

        Args:
            network: Adds seconds on this network; as of `CostReport.latency`.
            compute: The machines behind them; default: `spu-epyc` for both if one is a stack of
                shares, as of `CostReport.latency`.
        """
        from aero.mpc.compared_parts import compared_part

        both, times = (self.first, self.second), self.times(network, compute)
        first, second = ({**one.by_kind, "total": one.total} for one in both)
        timed = times and [{**one.by_kind, "total": one.total} for one in times]
        parts = dict.fromkeys([*self.first.by_kind, *self.second.by_kind, "total"])
        return [compared_part(part, first.get(part), second.get(part), timed) for part in parts]

    def names(self) -> tuple[str, str]:
        """Network, stack and T of both, and the other sizes that differ."""
        sizes = self.first.sizes, self.second.sizes
        shown = [
            (letter, size)
            for letter, size in SIZES.items()
            if letter == "T" or sizes[0][size] != sizes[1][size]
        ]
        first, second = (
            f"{report.label}, "
            + ", ".join(f"{letter} {own[size]}" for letter, size in shown if own[size])
            + f", on {report.stack_text}"
            for report, own in zip((self.first, self.second), sizes, strict=True)
        )
        return first, second

    def to_dict(self, network: Network = None, compute: Compute = None) -> dict[str, Any]:
        """Everything as JSON-ready values."""
        first, second = self.names()
        rows = self.rows(network, compute)
        found = {"first": first, "second": second, "ratio": self.ratio, "rows": rows}
        doubts = self.unchecked(network, compute)
        return found | words_dict(self.notes(), doubts, self.trust, self.lowerings)

    @property
    def trust(self) -> str:
        """Whom the users of both stacks trust; empty where they differ, which `notes` say."""
        return self.first.trust if self.first.trust == self.second.trust else ""

    @property
    def lowerings(self) -> dict[str, tuple[str, ...]]:
        """Part -> the lines of a program that both prices are of, with the one that differs."""
        return lowerings_of(zip(_NAMES, (self.first.lowerings, self.second.lowerings), strict=True))

    def notes(self) -> tuple[str, ...]:
        """What the prices leave out or take for granted."""
        both = self.first, self.second
        trust = {report.stack: trusted(report.trust, report.total) for report in both}
        words = of_each(zip(_NAMES, (report.notes for report in both), strict=True), "both")
        said = () if self.trust else different_trust(trust)
        return (*said, *words, *_of_relu_alone(*both), *_of_relu_alone(*reversed(both)))

    def unchecked(self, network: Network = None, compute: Compute = None) -> tuple[str, ...]:
        """What no publication or measurement confirms, with the network that it is said of."""
        times = self.times(network, compute) or (None, None)
        pairs = zip((self.first, self.second), times, strict=True)
        doubts = [words_of(*pair)["unchecked"] for pair in pairs]
        return of_each(zip(_NAMES, doubts, strict=True), "both")

    def __repr__(self) -> str:
        first, second = self.names()
        return f"<CostComparison of {first} with {second}: {self.ratio:.2f} times the bytes>"

    def times(self, network: Network, compute: Compute) -> tuple[Latency, Latency] | None:
        """Both timed on a network; None without one."""
        require_network(network, compute)
        if network is None:
            return None
        both = self.first, self.second
        compute = compute or default_compute(*(report.description for report in both))
        return both[0].latency(network, compute), both[1].latency(network, compute)


def require_network(network: Network, compute: Compute) -> None:
    """Refuses a machine where no network is given, for it would have no effect."""
    if network is None and compute is not None:
        raise ValueError(f"cost: compute has an effect with network alone, got compute={compute!r}")


def words_of(report: CostReport, timed: Latency | None = None) -> dict[str, Any]:
    """What is to be said of a report's prices, and of their time, ready for JSON."""
    doubts = (*report.unchecked, *(timed.unchecked if timed else ()))
    return words_dict(report.notes, doubts, report.trust, report.lowerings)


def _of_relu_alone(first: CostReport, second: CostReport) -> list[str]:
    """What ReLU saves of the bytes between a network with GELU and one without activation."""
    if first.spec is None or first.spec.ffn != "gelu" or second.spec is None:
        return []
    places = [(report.stack_text, dict(report.sizes)) for report in (first, second)]
    if "act" in second.by_kind or places[0] != places[1]:
        return []
    sent = first.comm_bytes, second.comm_bytes
    return relu_alone(first.spec, first.description, first.stack_fields, *sent)
