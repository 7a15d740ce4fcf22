"""Writes a report of runs, and its numbers as a results file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aero.internals.atomic_files import write_bytes_atomically
from aero.internals.records import record_bytes
from aero.report.contents import assemble
from aero.report.document import render_html, render_markdown, summary_table
from aero.report.networks import group_runs
from aero.report.panels import draw_all
from aero.report.report_file import Report
from aero.report.runs import find_runs, read_run


@dataclass(frozen=True)
class ReportPaths:
    """The files of a report, and its summary.

    Attributes:
        html: the self-contained page.
        markdown: the same as text, with links to the figures.
        json: all numbers; the schema is `aero.report.report_file`.
        figures: SVG files.
        summary: the terminal table.
    """

    html: Path
    markdown: Path
    json: Path
    figures: tuple[Path, ...]
    summary: str


def write_report(
    run_dirs: Sequence[str | Path],
    output_dir: str | Path,
    *,
    title: str = "AERO networks compared",
    command: str | None = None,
    seed_spread: str | Path | None = None,
) -> ReportPaths:
    """Writes the report of some runs.

    Args:
        run_dirs: run folders, or folders of run folders.
        output_dir: where the report goes; made if missing.
        title: of the report.
        command: that makes the report, shown in its footer.
        seed_spread: a `report.json` over several seeds, quoted next to runs of a single seed.

    Returns:
        The paths of the written files, each whole or not at all, and the summary table.

    Raises:
        ValueError: there is no run, two runs have the same network and seed, or a file is damaged.
        OSError: the output cannot be written; an earlier report stays as it was.

    Example:
        >>> from aero.report import write_report
        >>> write_report(["missing"], "report")
        Traceback (most recent call last):
        ...
        ValueError: report: missing is not a folder
    """
    networks = group_runs([read_run(folder) for folder in find_runs(run_dirs)])
    spread = None if seed_spread is None else Path(seed_spread)
    report = assemble(networks, title=title, command=command, seed_spread=spread)
    pictures = draw_all(networks, report)

    output = Path(output_dir)
    figures = output / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    paths = {picture.name: figures / f"{picture.name}.svg" for picture in pictures}
    for picture in pictures:
        write_bytes_atomically(paths[picture.name], picture.svg.encode())
    # A figure of an earlier report that this one does not have would be taken for a part of it.
    for stale in set(figures.glob("*.*")) - set(paths.values()):
        stale.unlink()
    write_bytes_atomically(output / "report.html", render_html(report, pictures).encode())
    write_bytes_atomically(output / "report.md", render_markdown(report, pictures).encode())
    write_bytes_atomically(output / "report.json", record_bytes(report))
    return ReportPaths(
        html=output / "report.html",
        markdown=output / "report.md",
        json=output / "report.json",
        figures=tuple(paths.values()),
        summary=summary_table(report),
    )


def write_results(report: Report, stem: str | Path) -> tuple[Path, Path]:
    """Writes a report's numbers and text, without figures, to STEM.json and STEM.md.

    `seed_spread` quotes a results file over several seeds that is under version control.

    Args:
        report: its content.
        stem: path without ending; its folder must exist.

    Returns:
        The paths of the JSON and of the Markdown file.

    Raises:
        OSError: the files cannot be written; earlier ones stay as they were.
    """
    json_path, markdown_path = Path(f"{stem}.json"), Path(f"{stem}.md")
    write_bytes_atomically(markdown_path, render_markdown(report).encode())
    write_bytes_atomically(json_path, record_bytes(report))
    return json_path, markdown_path
