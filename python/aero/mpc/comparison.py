"""Two bills side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aero.mpc import drawing
from aero.mpc.profiles import ComputeProfile, NetworkProfile
from aero.mpc.report_pages import comparison_body
from aero.mpc.report_tables import stack_text
from aero.mpc.tables import table_csv, table_lines

if TYPE_CHECKING:
    from aero.mpc.cost_report import Cost, CostReport
    from aero.mpc.latency import Duration, Latency

Network = str | NetworkProfile | None
Compute = str | ComputeProfile
_SIZES = {
    "L": "num_layers",
    "H": "num_heads",
    "d": "width",
    "T": "context_length",
    "V": "vocab_size",
}


@dataclass(frozen=True)
class CostComparison:
    """What another report spends against a first one, part by part.

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

    def rows(
        self, network: Network = None, compute: Compute = "paper-testbed"
    ) -> list[dict[str, Any]]:
        """One mapping per part that occurs in either, and the total; absent parts count 0.

        Args:
            network: Adds seconds on this network; as of `CostReport.latency`.
            compute: The machines behind them.
        """
        times = self._times(network, compute)
        kinds = dict.fromkeys([*self.first.by_kind, *self.second.by_kind])
        rows = []
        for kind in (*kinds, "total"):
            row = _row(kind, _part(self.first, kind), _part(self.second, kind))
            if times is not None:
                row["first_seconds"], row["second_seconds"] = (_seconds(t, kind) for t in times)
            rows.append(row)
        return rows

    def names(self) -> tuple[str, str]:
        """Network, stack and T of both, and what other sizes they differ in."""
        specs = self.first.spec.to_dict(), self.second.spec.to_dict()
        shown = [
            (letter, size)
            for letter, size in _SIZES.items()
            if letter == "T" or specs[0][size] != specs[1][size]
        ]
        first, second = (
            f"{report.spec.label}, "
            + ", ".join(f"{letter} {spec[size]}" for letter, size in shown)
            + f", on {stack_text(report)}"
            for report, spec in zip((self.first, self.second), specs, strict=True)
        )
        return first, second

    def to_dict(
        self, network: Network = None, compute: Compute = "paper-testbed"
    ) -> dict[str, Any]:
        """Everything as JSON-ready values."""
        first, second = self.names()
        found = {"first": first, "second": second, "ratio": self.ratio}
        return found | {"rows": self.rows(network, compute)}

    def to_csv(self, network: Network = None, compute: Compute = "paper-testbed") -> str:
        """A line per part under one header."""
        return table_csv(self.rows(network, compute))

    def to_text(self, network: Network = None, compute: Compute = "paper-testbed") -> str:
        """A table for the terminal; with a network also seconds."""
        first, second = self.names()
        lines = [f"first:  {first}", f"second: {second}", ""]
        lines += table_lines(self._cells(network, compute))
        for name, time in zip(
            ("first", "second"), self._times(network, compute) or (), strict=False
        ):
            lines.append(f"{name}: {time.to_text()}")
        return "\n".join(lines)

    def to_html(self, network: Network = None, compute: Compute = "paper-testbed") -> str:
        """A page of its own: both bills as bars on one scale, and the table."""
        labels = self.first.spec.label, self.second.spec.label
        return drawing.page(" and ".join(dict.fromkeys(labels)), self._body(network, compute))

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        first, second = self.names()
        return f"<CostComparison of {first} with {second}: {self.ratio:.2f} times the bytes>"

    def _repr_html_(self) -> str:
        return drawing.fragment(self._body(None, "paper-testbed"))

    def _body(self, network: Network, compute: Compute) -> str:
        return comparison_body(self, self._times(network, compute), self._cells(network, compute))

    def _cells(self, network: Network, compute: Compute) -> list[dict[str, str]]:
        return [_cells(row) for row in self.rows(network, compute)]

    def _times(self, network: Network, compute: Compute) -> tuple[Latency, Latency] | None:
        if network is None:
            return None
        return self.first.latency(network, compute), self.second.latency(network, compute)


def _part(report: CostReport, kind: str) -> Cost | None:
    return report.total if kind == "total" else report.by_kind.get(kind)


def _seconds(timed: Latency, kind: str) -> float:
    duration: Duration | None = timed.total if kind == "total" else timed.by_kind.get(kind)
    return duration.seconds if duration else 0.0


def _row(kind: str, first: Cost | None, second: Cost | None) -> dict[str, Any]:
    bytes_first = first.comm_bytes if first else 0.0
    bytes_second = second.comm_bytes if second else 0.0
    return {
        "part": kind,
        "first_bytes": bytes_first,
        "second_bytes": bytes_second,
        "ratio": bytes_first / bytes_second if bytes_second else None,
        "first_flights": first.flights if first else 0,
        "second_flights": second.flights if second else 0,
    }


def _cells(row: dict[str, Any]) -> dict[str, str]:
    difference = (row["second_bytes"] - row["first_bytes"]) / 1e9
    cells = {
        "part": row["part"],
        "first, GB": f"{row['first_bytes'] / 1e9:,.3f}",
        "second, GB": f"{row['second_bytes'] / 1e9:,.3f}",
        "difference": f"{difference:+,.3f}" if difference else "0",
        "first / second": "" if row["ratio"] is None else f"{row['ratio']:.2f}",
        "first, flights": f"{row['first_flights']:,}",
        "second, flights": f"{row['second_flights']:,}",
    }
    if "first_seconds" in row:
        cells["first, s"] = f"{row['first_seconds']:,.1f}"
        cells["second, s"] = f"{row['second_seconds']:,.1f}"
    return cells
