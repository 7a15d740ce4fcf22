"""Bytes that others measured next to the simulator's: the page of `strangers.yaml`.

    python benchmarks/strangers.py [--check]

Writes benchmarks/results/strangers_202611.md; with --check it compares instead.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from aero import mpc
from aero.internals.atomic_files import write_bytes_atomically
from aero.reading import read_yaml
from aero.tables import markdown_table

HERE = Path(__file__).parent
DATA = HERE / "strangers.yaml"
PAGE = HERE / "results" / "strangers_202611.md"
_UNITS = {"bit": 1 / 8, "B": 1.0, "MiB": 2.0**20, "GiB": 2.0**30}


def rows() -> list[dict[str, Any]]:
    """The rows of the data file."""
    found: list[dict[str, Any]] = read_yaml(DATA)["rows"]
    return found


def predicted(row: dict[str, Any]) -> float:
    """What the simulator says, in the row's unit."""
    fields = row.get("fields", {})
    costs = [
        (times, mpc.operation_cost(name, *sizes, stack=row["stack"], **fields))
        for times, name, *sizes in row.get("besides", ())
    ]
    if "network" in row:
        report = mpc.simulate(
            row["network"], context_length=row["context_length"], stack=row["stack"], **fields
        )
        wanted = row.get("operations", ())
        costs += [(1, one.cost) for one in report.operations if one.name in wanted]
        if row.get("layers"):
            costs += [(1, cost) for cost in report.by_layer]
        costs += [
            (1, one.cost)
            for one in report.operations
            if one.kind == row.get("part") and one.layer is not None
        ]
    side = "comm_bytes" if row["side"] == "both" else "client_bytes"
    sent = sum(times * getattr(cost, side) for times, cost in costs)
    return float(sent / row.get("per", 1) / _UNITS[row["unit"]])


def page() -> str:
    """The page as Markdown."""
    data = read_yaml(DATA)
    cells = []
    for row in data["rows"]:
        found = predicted(row)
        cells.append(
            {
                "what": row["name"],
                "measured": f"{row['measured']:,} {row['unit']}",
                "predicted": f"{found:,.2f} {row['unit']}",
                "off": f"{100 * (found / row['measured'] - 1):+.2f} %",
                "held out": "yes" if row.get("held_out", True) else "no",
                "stack": row["stack"],
                "source": row["source"],
                "what explains the rest": row["explained"].strip(),
            }
        )
    return "\n".join(
        [
            "# Bytes that others measured",
            "",
            "Numbers of strangers, as their sources have them, next to what the simulator says. "
            "A row that is not held out was at hand when what predicts it was made, so it proves "
            "less. No formula of SPU's stacks is fitted to a row: they were measured on runs of "
            "our own before. The prices of `sigma` are counts of its code for GPT-2 and BERT-base "
            "at 128 tokens; those at 256 and 512 checked them. Where a source does not say its "
            "settings, they are those of `jax.nn` and SPU's defaults. "
            "`python benchmarks/strangers.py` writes this page from `benchmarks/strangers.yaml`.",
            "",
            _table(cells),
            "",
            "## Quoted, not predicted",
            "",
            _table(data["quoted"]),
            "",
            "## Not to be had",
            "",
            "Papers whose tables of bytes were looked for. What is read nowhere is not here.",
            "",
            _table(data["unread"]),
            "",
        ]
    )


def _table(cells: list[dict[str, str]]) -> str:
    return markdown_table([*cells[0]], [[*row.values()] for row in cells])


def main() -> None:
    """Writes or checks the page."""
    if "--check" in sys.argv[1:]:
        if PAGE.read_text() != page():
            raise SystemExit(f"{PAGE.name} is not what the simulator says today")
        return
    write_bytes_atomically(PAGE, page().encode())


if __name__ == "__main__":
    main()
