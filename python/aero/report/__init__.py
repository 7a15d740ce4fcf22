"""Reports that compare trained networks: quality, entropies and the price of private inference.

`write_report` reads run folders and writes `report.html` (one file that asks nothing of the
network), `report.md`, `report.json` and `figures/*.png`; everything is computed from the runs.

`report.json`, format 1. Entropies are in nats, bytes are sent plus received at one party; a number
over seeds is {"mean", "standard_deviation" (None for one seed), "minimum", "maximum", "values"}:

- `format`, `title`, `seeds`, `stacks` (the first is the one the paper's bytes show)
- `made`: `at` (UTC), `by`, `command`
- `training`: `seconds` (sum over runs), and the distinct `corpora`, `versions`, `hardware`,
  `commands`, `git_commits`
- `networks`, one entry per architecture:
    - `name`, `label`, `way` (what it was annealed or continued from and taught by, in words; empty
      for random weights and text alone)
    - `spec`, `parameters`, `parameters_in_training` (with thresholds)
    - `flops`: `paper` {ffn, attention, total}, `executed` {ffn, attention, lm_head, total}
    - `nonlinear_operations`, as the paper's tables print them
    - `runs`: `folder`, `seed`, `status`, `ending` (None if finished), `diverged`, `divergence`,
      `skipped_steps`, `steps_done`, `steps_total`, `tokens`, `seconds`, `evaluated`, `windows`,
      `loss`, `perplexity`, `bits_per_byte` (None where not finite), `documents` and
      `perplexity_interval` over them (None where their ends are unknown), `evaluated_tokens`,
      `analyzed`
    - `loss`, `perplexity`, `bits_per_byte`: over the finished, evaluated runs with finite numbers;
      None without one
    - `entropy`: `mean`, `mean_normalized_context` (by log T), `mean_normalized_visible` (by
      log(i+1)), `quarters` {observed_max, log_context}, `overloaded_share` (of log T, by
      seed), the heads `collapsed`, `overloaded`, `collapsed_log_context`,
      `overloaded_log_context`, `nan_heads`, `observed_max`,
      `max_entropy`, `seeds`, `seed_of_named_heads`; None without an analysis
    - `thresholds`, `temperature`: their ranges, and how many temperatures are `not_positive`; None
      for networks without
    - `private_inference`: `trained` and `gpt2` by stack {comm_bytes, flights, by_kind},
      `gpt2_one_more_layernorm`, `paper` {table, perplexity, diverged, comm_gigabytes,
      latency_minutes}
- `findings`: `name`, `verdict`, `text`, `values`
- `notes`: sentences on what is missing, what does not compare and what was assumed
- `seed_spread`: quoted from a report over several seeds, or None

Example:
    >>> find_runs(["runs/of/nobody"])
    Traceback (most recent call last):
    ...
    ValueError: report: runs/of/nobody is not a folder
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aero.atomic_files import write_bytes_atomically, write_json_atomically
from aero.report.contents import assemble, read_seed_spread
from aero.report.document import render_html, render_markdown, summary_table
from aero.report.networks import group_runs
from aero.report.panels import draw_all
from aero.report.runs import RunRecord, find_runs, read_run

__all__ = [
    "ReportPaths",
    "RunRecord",
    "find_runs",
    "read_run",
    "read_seed_spread",
    "summary_table",
    "write_report",
    "write_results",
]


@dataclass(frozen=True)
class ReportPaths:
    """Where a report lies, and its summary.

    Attributes:
        html: the self-contained page.
        markdown: the same as text, with links to the figures.
        json: all numbers; the schema is in the documentation of `aero.report`.
        figures: PNG files.
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
        seed_spread: a `report.json` over several seeds, quoted beside runs of a single seed.

    Returns:
        The paths of what was written, each file whole or not at all, and the summary table.

    Raises:
        ValueError: there is no run, two runs have the same network and seed, or a file is damaged.
        OSError: the output cannot be written; an earlier report stays as it was.

    Example:
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
    paths = {picture.name: figures / f"{picture.name}.png" for picture in pictures}
    for picture in pictures:
        write_bytes_atomically(paths[picture.name], picture.png)
    # A figure of an earlier report that this one does not have would be taken for a part of it.
    for stale in set(figures.glob("*.png")) - set(paths.values()):
        stale.unlink()
    write_bytes_atomically(output / "report.html", render_html(report, pictures).encode())
    write_bytes_atomically(output / "report.md", render_markdown(report, pictures).encode())
    write_json_atomically(output / "report.json", report)
    return ReportPaths(
        html=output / "report.html",
        markdown=output / "report.md",
        json=output / "report.json",
        figures=tuple(paths.values()),
        summary=summary_table(report),
    )


def write_results(report: Mapping[str, Any], stem: str | Path) -> tuple[Path, Path]:
    """Writes a report's numbers and text, without figures, to STEM.json and STEM.md.

    A results file over several seeds, kept under version control, is what `seed_spread` quotes.

    Args:
        report: content of a report.json.
        stem: path without ending; its folder must exist.

    Returns:
        The paths of the JSON and of the Markdown file.

    Raises:
        OSError: the files cannot be written; earlier ones stay as they were.
    """
    json_path, markdown_path = Path(f"{stem}.json"), Path(f"{stem}.md")
    write_bytes_atomically(markdown_path, render_markdown(report).encode())
    write_json_atomically(json_path, report)
    return json_path, markdown_path
