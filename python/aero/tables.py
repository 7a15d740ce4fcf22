"""Rows as CSV, as lines for the terminal and as Markdown; bytes in the unit of their column.

The one form of every table of costs. The standard library suffices: pandas or rich would take
longer to import than a command of `aero cost` takes in all.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

_UNITS = {"GB": 1e9, "MB": 1e6}


def table_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Mappings as CSV; the columns are all names in the order of their first appearance."""
    columns = list(dict.fromkeys(itertools.chain.from_iterable(rows)))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def table_lines(
    rows: Sequence[Mapping[str, str]], columns: Sequence[str] | None = None
) -> list[str]:
    """Mappings as aligned lines under one header; the first column to the left.

    Args:
        rows: Name of a column -> cell.
        columns: All of them; None: in the order of their first appearance.
    """
    columns = columns or list(dict.fromkeys(itertools.chain.from_iterable(rows)))
    cells = [columns, *([row.get(name, "") for name in columns] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]


def markdown_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[int] = ()
) -> str:
    r"""Cells as a Markdown table; characters that would end a cell or a line are escaped.

    Args:
        header: One name per column.
        rows: As many cells each.
        right: Columns from 0 that are set to the right, as numbers are.

    Raises:
        ValueError: A row has more or fewer cells than the header.
    """
    rule = ["---:" if index in right else "---" for index in range(len(header))]
    lines = [[_markdown_cell(cell) for cell in header], rule]
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"markdown_table: a row must have {len(header)} cells, got {[*row]}")
        lines.append([_markdown_cell(cell) for cell in row])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _markdown_cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.splitlines()))


def in_units(comm_bytes: float, unit: str = "GB", decimals: int = 3) -> str:
    """Bytes in GB (1e9 bytes) or MB (1e6 bytes), without the unit."""
    return f"{comm_bytes / _UNITS[unit]:,.{decimals}f}"
