"""The paper's tables and figures next to ours, as files."""

import math
from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from aero.analysis import plot_stepwise_savings
from aero.atomic_files import write_bytes_atomically, write_json_atomically
from aero.report import page
from aero.report.svg import svg_of
from aero.reproduction.cost_rows import TABLES
from aero.reproduction.cost_tables import ABOUT_TABLES, CostTables, bytes_and_minutes, flops_cells
from aero.reproduction.savings import SavingStep, equal_time_rows, step_rows

__all__ = ["cost_tables_page", "savings_picture", "write_cost_tables"]


def write_cost_tables(found: CostTables, output_dir: str | Path) -> list[Path]:
    """Writes `costs.html`, `.txt` and `.json`, and one SVG per figure.

    Args:
        found: What `reproduce_costs` returned.
        output_dir: A folder; made if it is missing.

    Returns:
        The files.

    Raises:
        OSError: The folder cannot be written.

    Example:
        >>> from aero.reproduction.cost_files import write_cost_tables
        >>> import tempfile
        >>> from aero.reproduction import reproduce_costs
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     sorted(path.name for path in write_cost_tables(reproduce_costs(), folder))
        ['costs.html', 'costs.json', 'costs.txt', 'figure-1.svg', 'figure-15.svg']
    """
    folder = Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {title: savings_picture(title, steps) for title, steps in found.figures.items()}
    written = [folder / f"costs.{ending}" for ending in ("html", "txt", "json")]
    write_bytes_atomically(written[0], cost_tables_page(found, pictures).encode())
    write_bytes_atomically(written[1], f"{found.to_text()}\n".encode())
    write_json_atomically(written[2], found.to_dict())
    for title, picture in pictures.items():
        name = title.partition(":")[0].lower().replace(" ", "-")
        written.append(folder / f"{name}.svg")
        write_bytes_atomically(written[-1], picture.encode())
    return written


def cost_tables_page(found: CostTables, pictures: Mapping[str, str]) -> str:
    """Returns everything as one page that loads nothing: findings, figures, tables.

    Args:
        found: What `reproduce_costs` returned.
        pictures: Title of a figure -> SVG.
    """
    parts = [page.heading("Findings"), page.bullets(f.text for f in found.findings)]
    for title, steps in found.figures.items():
        parts += [
            page.heading(title),
            pictures[title],
            page.table(step_rows(steps)),
        ]
        compared = equal_time_rows(steps)
        if compared:
            about = "He and Hofmann's networks next to the best that takes as long, within 10 %:"
            parts += [page.paragraphs([about]), page.table(compared)]
    for table in TABLES:
        rows = [row for row in found.rows if row.gigabytes.table == table]
        cell = rows[0].gigabytes
        sizes = f"{cell.model}, T = {cell.context_length}, V = {cell.vocab_size}"
        parts += [
            page.heading(f"Table {table}: {sizes}"),
            page.table([bytes_and_minutes(row) for row in rows]),
            page.table([flops_cells(row) for row in rows]),
        ]
    title = f"The paper (arXiv 2410.13060v2) and ours on {found.stack}"
    return page.page(title, page.paragraphs([ABOUT_TABLES]), *parts)


def savings_picture(title: str, steps: tuple[SavingStep, ...]) -> str:
    """Returns an SVG with two panels: GB and minutes of every step, ours and the paper's."""
    figure = Figure(figsize=(11.5, 0.42 * len(steps) + 1.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = [
        step.label if step.perplexity is None else f"{step.label} (ppl {step.perplexity:.2f})"
        for step in steps
    ]
    plot_stepwise_savings(
        names,
        [step.gigabytes for step in steps],
        published=[_or_nan(step.paper_gigabytes) for step in steps],
        unit="GB, both parties",
        title=title,
        axes=left,
    )
    plot_stepwise_savings(
        names,
        [step.minutes for step in steps],
        published=[_or_nan(step.paper_minutes) for step in steps],
        unit="minutes on the paper's test bed",
        axes=right,
    )
    right.set_yticklabels([])
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return svg_of(figure, title)


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
