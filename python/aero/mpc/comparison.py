"""Two bills side by side."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aero.mpc.tables import table_csv, table_lines

if TYPE_CHECKING:
    from aero.mpc.cost_report import Cost, CostReport


@dataclass(frozen=True)
class CostComparison:
    """What another report spends against a first one, part by part.

    Attributes:
        first: The report that is compared with.
        second: The other one.
    """

    first: CostReport
    second: CostReport

    @property
    def ratio(self) -> float:
        """Bytes of the first over bytes of the second: how many times less the second sends."""
        return self.first.comm_bytes / self.second.comm_bytes

    def rows(self) -> list[dict[str, Any]]:
        """One mapping per part that occurs in either, and the total; absent parts count 0."""
        kinds = dict.fromkeys([*self.first.by_kind, *self.second.by_kind])
        rows = [
            _row(kind, self.first.by_kind.get(kind), self.second.by_kind.get(kind))
            for kind in kinds
        ]
        return [*rows, _row("total", self.first.total, self.second.total)]

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-ready values."""
        return {"first": _name(self.first), "second": _name(self.second), "rows": self.rows()}

    def to_csv(self) -> str:
        """A line per part under one header."""
        return table_csv(self.rows())

    def to_text(self) -> str:
        """A table for the terminal."""
        head = [f"first:  {_name(self.first)}", f"second: {_name(self.second)}", ""]
        return "\n".join([*head, *table_lines(self._cells())])

    def _cells(self) -> list[dict[str, str]]:
        return [
            {
                "part": row["part"],
                "first, GB": f"{row['first_bytes'] / 1e9:,.3f}",
                "second, GB": f"{row['second_bytes'] / 1e9:,.3f}",
                "difference": f"{(row['second_bytes'] - row['first_bytes']) / 1e9:+,.3f}",
                "first / second": "" if row["ratio"] is None else f"{row['ratio']:.2f}",
                "flights": f"{row['first_flights']:,}",
                "then": f"{row['second_flights']:,}",
            }
            for row in self.rows()
        ]

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        cells = self._cells()
        head = "".join(f"<th>{html.escape(name)}</th>" for name in cells[0])
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in row.values()) + "</tr>"
            for row in cells
        )
        names = f"first: {_name(self.first)}", f"second: {_name(self.second)}"
        title = "<br>".join(html.escape(name) for name in names)
        return f"<p>{title}</p><table><tr>{head}</tr>{body}</table>"


def _name(report: CostReport) -> str:
    return f"{report.spec.label}, T {report.spec.context_length}, on {report.stack}"


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
