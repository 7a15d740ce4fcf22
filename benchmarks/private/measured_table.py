"""Tables of measured and predicted bytes, as Markdown and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from measured_grid import Cell, NetworkCell
from measured_rows import MeasuredRow, network_rows, operation_rows, set_up_row

from aero.internals.atomic_files import write_bytes_atomically, write_json_atomically
from aero.private.settings import STACK
from aero.reading import read_json
from aero.tables import in_units, markdown_table

__all__ = ["table_markdown", "write_tables"]

_HEADER = ("runs", "measured MB", "predicted MB", "ratio", "± %", "left %", "client", "server")


def write_tables(cells: Sequence[Cell], networks: Sequence[NetworkCell], folder: Path) -> str:
    """Writes measured.md and measured.json of the measured cells; returns the Markdown.

    Args:
        cells: operations.
        networks: whole networks.
        folder: of the results.
    """
    first = set_up_row(folder)
    rows = [*([first] if first else []), *operation_rows(cells, folder)]
    pieces = network_rows(networks, folder)
    text = "\n\n".join(
        table_markdown(title, part)
        for title, part in (("operation", rows), ("network", pieces))
        if part
    )
    write_bytes_atomically(folder / "measured.md", f"{text}\n".encode())
    environment = folder / "environment.json"
    write_json_atomically(
        folder / "measured.json",
        {
            "stack": STACK,
            "environment": read_json(environment) if environment.exists() else {},
            "rows": [{**dataclasses.asdict(row), "ratio": row.ratio} for row in [*rows, *pieces]],
        },
    )
    return text


def table_markdown(title: str, rows: Sequence[MeasuredRow]) -> str:
    """A line per row: megabytes per run, measured / predicted, in all and by sender.

    ± is the resolution of the average, left what whole refills and extensions leave.

    Args:
        title: of the first column.
        rows: operations, or networks piece by piece.
    """
    return markdown_table(
        (title, *_HEADER),
        (
            (
                f"{row.network}: {row.name}" if row.network else row.name,
                str(row.count),
                _megabytes(row.comm_bytes),
                _megabytes(row.predicted_bytes),
                f"{row.ratio:.4f}",
                f"{100 * row.resolution:.2f}",
                f"{100 * row.remainder / row.comm_bytes:.3f}",
                _ratio(row.client_bytes, row.predicted_client_bytes),
                _ratio(row.server_bytes, row.predicted_server_bytes),
            )
            for row in rows
        ),
    )


def _megabytes(size: float) -> str:
    """Four digits at least."""
    return in_units(size, "MB", 3 if size < 1e8 else 2)


def _ratio(measured: float, predicted: float) -> str:
    return f"{measured / predicted:.3f}" if predicted else ""
