"""Rows of named cells as CSV and as lines for the terminal."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Mapping, Sequence
from typing import Any


def table_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Mappings as CSV; the columns are all names in the order of their first appearance."""
    columns = list(dict.fromkeys(itertools.chain.from_iterable(rows)))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def table_lines(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Mappings as aligned lines under one header; the first column to the left."""
    columns = list(dict.fromkeys(itertools.chain.from_iterable(rows)))
    cells = [columns, *([row.get(name, "") for name in columns] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]
