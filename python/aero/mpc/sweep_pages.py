"""A sweep as HTML: what each combination costs and reaches, the front, equal time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aero.mpc import drawing
from aero.mpc.equal_time import EqualTime, compare_at_equal_time, timed_rows
from aero.mpc.network_sweep import SweepResult, SweepRow
from aero.mpc.scatter import Point, scatter

# A table beyond this is for the CSV file.
_MOST_ROWS = 500
_TITLES = {"comm_gb": "GB of both parties", "flights": "flights", "perplexity": "perplexity"}


def sweep_page(found: SweepResult, *, title: str = "Sweep", within: float = 0.1) -> str:
    """A whole document: a picture per quantity, the fronts, equal time, all rows.

    Perplexity stands against bytes and every network's seconds where run folders gave it, else
    seconds, or flights, against bytes.

    Args:
        found: The sweep.
        title: Heading.
        within: What counts as equal time, see `compare_at_equal_time`.

    Raises:
        ValueError: For a sweep without rows.

    Example:
        >>> from aero import mpc
        >>> page = mpc.sweep_page(mpc.sweep(["SM+LN+G", "SM+ScFuFFN"], context_length=[64, 128]))
        >>> page.count("<circle")
        4
    """
    return drawing.page(title, _body(found, within))


def sweep_fragment(found: SweepResult) -> str:
    """The same for a notebook."""
    return drawing.fragment(_body(found, 0.1)) if found.rows else "<p>no combination</p>"


def equal_time_table(pairs: Sequence[EqualTime], network: str, within: float) -> str:
    """Heading and table of a comparison at equal time."""
    heading = f"Equal time on {network}: the best of the others within {100 * within:g} %"
    return drawing.heading(heading) + drawing.table([pair.cells() for pair in pairs])


def _body(found: SweepResult, within: float) -> str:
    if not found.rows:
        raise ValueError("sweep: the page needs at least one combination, got none")
    networks = list(found.rows[0].seconds)
    measured = any(row.perplexity is not None for row in found.rows)
    if measured:
        pictures = [(x, "perplexity") for x in ("comm_gb", *networks)]
    else:
        pictures = [("comm_gb", y) for y in networks or ["flights"]]
    parts = [_picture(found, x, y) for x, y in pictures]
    if measured:
        parts += [
            equal_time_table(
                compare_at_equal_time(timed_rows(found, network), within=within), network, within
            )
            for network in networks
        ]
    shown = SweepResult(found.rows[:_MOST_ROWS])
    parts.append(drawing.heading("All combinations"))
    parts.append(drawing.table([_cells(row) for row in shown.rows]))
    if len(found) > _MOST_ROWS:
        parts.append(drawing.paragraphs([f"and {len(found) - _MOST_ROWS:,} more"]))
    return "".join(parts)


def _picture(found: SweepResult, x: str, y: str) -> str:
    front = {id(row) for row in found.pareto(x, y).rows}
    points = []
    for row in found.rows:
        here, there = row.objective(x), row.objective(y)
        if here is not None and there is not None:
            about = ", ".join(f"{name} {text}" for name, text in _cells(row).items() if text)
            points.append(Point(here, there, row.label, about, id(row) in front))
    heading = f"{_title(y)} against {_title(x)}: {len(front)} on the front"
    return drawing.heading(heading) + scatter(points, _title(x), _title(y))


def _title(objective: str) -> str:
    return _TITLES.get(objective, f"seconds on {objective}")


def _cells(row: SweepRow) -> dict[str, str]:
    return {name: _shown(value) for name, value in row.to_dict().items()}


def _shown(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else "" if value is None else str(value)
