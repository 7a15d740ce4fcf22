"""Measurements next to the simulator's counts: a row per operation and per network piece."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from measured_grid import Cell, NetworkCell, predicted_cost
from measurement import SET_UP

from aero.mpc.cost import Cost
from aero.mpc.simulation import described_spec
from aero.private.prediction import (
    predicted_costs,
    remainder,
    resolution,
    set_up_cost,
    total_cost,
)
from aero.private.settings import PrivateSettings
from aero.reading import read_json

__all__ = ["MeasuredRow", "network_rows", "operation_rows", "set_up_row"]

# The sum of a network's layers, and of all but its set-up.
LAYERS, TOTAL = "all layers", "total"


@dataclass(frozen=True)
class MeasuredRow:
    """Bytes of one thing, on average over its runs.

    Attributes:
        name: of the cell, or of a network's piece.
        network: the network's name; empty for operations.
        count: how often it was measured.
        client_bytes: measured, sent by the client.
        server_bytes: measured, sent by the server.
        predicted_client_bytes: of the simulator.
        predicted_server_bytes: of the simulator.
        resolution: standard deviation of the average, see `aero.private.prediction`.
        largest_difference: of the result from plain arithmetic, of a network's logits; None of the
            set-up.
        remainder: bytes of measured - predicted that whole refills and extensions leave.
    """

    name: str
    network: str
    count: int
    client_bytes: float
    server_bytes: float
    predicted_client_bytes: float
    predicted_server_bytes: float
    resolution: float
    largest_difference: float | None = None
    remainder: float = 0.0

    @property
    def comm_bytes(self) -> float:
        """Measured, sent by both."""
        return self.client_bytes + self.server_bytes

    @property
    def predicted_bytes(self) -> float:
        """Bytes of the simulator, sent by both."""
        return self.predicted_client_bytes + self.predicted_server_bytes

    @property
    def ratio(self) -> float:
        """Measured / predicted."""
        return self.comm_bytes / self.predicted_bytes


def operation_rows(cells: Iterable[Cell], folder: Path) -> list[MeasuredRow]:
    """A row for each operation that has a result."""
    rows = []
    for cell in cells:
        found = _found(cell.key, folder)
        if found is not None:
            cost = predicted_cost(cell)
            counts = found["parts"][cell.operation]
            settings = PrivateSettings.from_dict(cell.settings)
            rows.append(_row(cell.name, "", counts, cost, found, settings))
    return rows


def network_rows(networks: Iterable[NetworkCell], folder: Path) -> list[MeasuredRow]:
    """Rows of each network that has a result: its pieces, all layers, and the sum."""
    rows = []
    for cell in networks:
        found = _found(cell.key, folder)
        if found is not None:
            rows += _pieces(cell, found)
    return rows


def set_up_row(folder: Path) -> MeasuredRow | None:
    """The session's set-up."""
    found = _found(SET_UP, folder)
    if found is None:
        return None
    settings = PrivateSettings()
    return _row(SET_UP, "", found["parts"][SET_UP], set_up_cost(settings), found, settings)


def _found(key: str, folder: Path) -> dict[str, Any] | None:
    path = folder / f"{key}.json"
    return dict(read_json(path)) if path.exists() else None


def _row(
    name: str,
    network: str,
    counts: dict[str, list[float]],
    cost: Cost,
    found: dict[str, Any],
    settings: PrivateSettings,
) -> MeasuredRow:
    repeats = found.get("repeats", 1)
    count = repeats * len(counts["client_bytes"])
    client_bytes, server_bytes = (
        fmean(counts[side]) / repeats for side in ("client_bytes", "server_bytes")
    )
    left = remainder(
        cost,
        count,
        client_bytes + server_bytes,
        one_bit_product_error=settings.one_bit_product_error,
    )
    return MeasuredRow(
        name=name,
        network=network,
        count=count,
        client_bytes=client_bytes,
        server_bytes=server_bytes,
        predicted_client_bytes=cost.client_bytes,
        predicted_server_bytes=cost.server_bytes,
        resolution=resolution(cost, count),
        largest_difference=found.get("largest_difference"),
        remainder=left,
    )


def _pieces(cell: NetworkCell, found: dict[str, Any]) -> list[MeasuredRow]:
    settings = PrivateSettings.from_dict(cell.settings)
    costs = predicted_costs(described_spec(cell.spec), cell.tokens, settings)
    parts = found["parts"]
    layers = [name for name in parts if name.startswith("layer")]
    shown = {name: [name] for name in parts if name not in layers}
    shown = {**shown, LAYERS: layers, TOTAL: list(parts)}
    return [
        _row(
            name,
            cell.name,
            {
                side: [sum(column) for column in zip(*(parts[n][side] for n in names), strict=True)]
                for side in ("client_bytes", "server_bytes")
            },
            total_cost(costs[n] for n in names),
            found,
            settings,
        )
        for name, names in shown.items()
    ]
