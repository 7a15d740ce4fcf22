"""The bill of one private forward pass: per operation, part, layer and party."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from typing import Any, Literal

from aero.architecture import ArchitectureSpec
from aero.mpc.comparison import CostComparison
from aero.mpc.described_stacks import StackDescription
from aero.mpc.latency import Latency, time_report
from aero.mpc.profiles import ComputeProfile, NetworkProfile
from aero.mpc.report_pages import report_fragment, report_page
from aero.mpc.report_tables import report_lines
from aero.mpc.tables import table_csv

FieldValue = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Cost:
    """What a piece of work spends; sums over operations, layers and parts are exact.

    Attributes:
        client_bytes: Sent by the client, the owner of the input (SPU's rank 0).
        server_bytes: Sent by the server, the owner of the weights (rank 1).
        flights: One-way messages that must be waited for; a round trip is two.
        elementwise_ciphertexts: Homomorphic evaluations in elementwise products. Cached Beaver
            triples count by their share of a ciphertext.
        ct_pt_products: Ciphertext x plaintext products in matrix products.
        plaintext_encodings: Plaintexts encoded for them.
        automorphisms: Spent on packing their responses.
        ots: Oblivious transfers.
    """

    client_bytes: float
    server_bytes: float
    flights: int
    elementwise_ciphertexts: float
    ct_pt_products: int
    plaintext_encodings: int
    automorphisms: int
    ots: int

    @property
    def comm_bytes(self) -> float:
        """Bytes sent by both parties; each byte counts once."""
        return self.client_bytes + self.server_bytes

    def counts(self) -> tuple[float, float, int, float, int, int, int, int]:
        """All counts in the order of the attributes."""
        return astuple(self)

    def to_dict(self) -> dict[str, float | int]:
        """All counts by name, `comm_bytes` first."""
        return {"comm_bytes": self.comm_bytes} | {name: getattr(self, name) for name in _COUNTS}


_COUNTS = tuple(field.name for field in fields(Cost))


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation on secret values.

    Attributes:
        name: What it computes, such as "queries, keys, values".
        layer: Layer from 0, or None for set-up, embedding, final norm, head and argmax.
        kind: The part of the bill it belongs to, a key of `CostReport.by_kind`.
        shape: Sizes as text: "128x768x2304"; "12 x 128x64x128" for twelve heads.
        inputs: Indices of the operations that must be finished first.
        cost: What it spends; bytes are whole.
        evaluator: Who evaluates its ciphertexts: "client", "server", or "both", half each.
        token_by_token: Whether its matrix products take one row after the other.
    """

    name: str
    layer: int | None
    kind: str
    shape: str
    inputs: tuple[int, ...]
    cost: Cost
    evaluator: Literal["both", "client", "server"] = "both"
    token_by_token: bool = False


@dataclass(frozen=True)
class CostReport:
    """One private forward pass, priced.

    Attributes:
        spec: The network.
        stack: Name of the stack or option set.
        stack_fields: All its fields, overrides included.
        operations: The operation graph, in an order in which it can run.
        total: The sum over the operations.
        by_kind: The sum per part: qkv/proj, QK, softmax, PV, ffn, act, layernorm, embed, lm head,
            argmax, setup, as far as they occur. `qkv/proj` has the truncation by 1/sqrt(d_k).
        by_layer: The sum per layer; with `outside_layers` they make the total.
        outside_layers: The operations that belong to no layer.
        unchecked: Parts whose formula no publication or measurement confirms op by op.
        description: The stack as data, with the source of quoted prices.
    """

    spec: ArchitectureSpec
    stack: str
    stack_fields: dict[str, FieldValue]
    operations: tuple[Operation, ...]
    total: Cost
    by_kind: dict[str, Cost]
    by_layer: tuple[Cost, ...]
    outside_layers: Cost
    unchecked: tuple[str, ...]
    description: StackDescription

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
    def flights(self) -> int:
        """One-way messages in sequence."""
        return self.total.flights

    def changed_fields(self) -> dict[str, FieldValue]:
        """The stack's fields that differ from the named stack."""
        named = self.description.all_fields()
        return {name: value for name, value in self.stack_fields.items() if value != named[name]}

    def latency(
        self,
        network: str | NetworkProfile = "paper-testbed",
        compute: str | ComputeProfile = "paper-testbed",
    ) -> Latency:
        """How long the forward pass takes on a network and two machines.

        A report is priced once and can be timed on any number of networks.

        Args:
            network: A profile, a name of `network_names()`, or a name with changes:
                "wan-100mbps,uplink_mbps=20,software_seconds=0.006".
            compute: A profile, a name of `compute_names()`, or a name with changes:
                "paper-testbed,threads=8"; "none" leaves the network alone.

        Raises:
            ValueError: Naming the field and what it may be.

        Example:
            >>> from aero import mpc
            >>> report = mpc.simulate("SM+LN+G", final_norm="none", setup=False)
            >>> round(report.latency().minutes, 1)
            8.2
        """
        return time_report(self, network, compute)

    def to_dict(
        self,
        network: str | NetworkProfile | None = None,
        compute: str | ComputeProfile = "paper-testbed",
    ) -> dict[str, Any]:
        """Everything as JSON-ready values; with a network also its `latency`."""
        timed = self._timed(network, compute)
        return self._to_dict() | ({} if timed is None else {"latency": timed.to_dict()})

    def _to_dict(self) -> dict[str, Any]:
        return {
            "label": self.spec.label,
            "spec": self.spec.to_dict(),
            "stack": self.stack,
            "stack_fields": dict(self.stack_fields),
            **self.total.to_dict(),
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
            "unchecked": list(self.unchecked),
        }

    def to_text(
        self,
        network: str | NetworkProfile | None = None,
        compute: str | ComputeProfile = "paper-testbed",
    ) -> str:
        """Tables for the terminal: parts and layers, bytes, flights, ciphertexts, OTs.

        With a network also seconds, and the minutes of the whole.
        """
        return "\n".join(report_lines(self, self._timed(network, compute)))

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return (
            f"<CostReport {self.spec.label} on {self.stack}: "
            f"{self.comm_bytes / 1e9:,.3f} GB, {self.flights} flights>"
        )

    def compare(self, other: CostReport) -> CostComparison:
        """This report (first) beside another one (second), part by part.

        Example:
            >>> from aero import mpc
            >>> baseline = mpc.simulate("SM+LN+G", final_norm="none")
            >>> round(baseline.compare(mpc.simulate("SM+ScFuFFN")).ratio, 1)
            4.0
        """
        return CostComparison(self, other)

    def to_csv(
        self,
        network: str | NetworkProfile | None = None,
        compute: str | ComputeProfile = "paper-testbed",
    ) -> str:
        """A line per operation under one header; with a network also its seconds alone."""
        timed = self._timed(network, compute)
        rows: list[dict[str, Any]] = [
            {
                "name": operation.name,
                "layer": operation.layer,
                "kind": operation.kind,
                "shape": operation.shape,
                **operation.cost.to_dict(),
            }
            for operation in self.operations
        ]
        if timed is not None:
            for row, duration in zip(rows, timed.operations, strict=True):
                row |= duration.to_dict()
        return table_csv(rows)

    def to_html(
        self,
        network: str | NetworkProfile | None = None,
        compute: str | ComputeProfile = "paper-testbed",
    ) -> str:
        """A page of its own: bars, layers, tables; nothing is loaded. With a network also time."""
        return report_page(self, self._timed(network, compute))

    def _repr_html_(self) -> str:
        return report_fragment(self, None)

    def _timed(
        self, network: str | NetworkProfile | None, compute: str | ComputeProfile
    ) -> Latency | None:
        return None if network is None else self.latency(network, compute)
