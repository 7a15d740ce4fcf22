"""report.html, report.md and the terminal table, made from the content of report.json."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from aero.report import text
from aero.report.panels import Picture

__all__ = ["render_html", "render_markdown", "summary_table"]

Report = Mapping[str, Any]


def render_html(report: Report, pictures: Sequence[Picture]) -> str:
    """Returns the report as one HTML page that asks nothing of the network.

    Args:
        report: content of report.json.
        pictures: embedded as base64 where they belong.

    Returns:
        The page.
    """
    sources = {
        picture.name: "data:image/png;base64," + base64.b64encode(picture.png).decode("ascii")
        for picture in pictures
    }
    return _render("report.html.j2", report, pictures, sources, escape=True)


def render_markdown(report: Report, pictures: Sequence[Picture] = ()) -> str:
    """Returns the report as Markdown, pictures linked as `figures/NAME.png`.

    Args:
        report: content of report.json.
        pictures: those that lie beside the file; none for a text that stands alone.

    Returns:
        The text.
    """
    sources = {picture.name: f"figures/{picture.name}.png" for picture in pictures}
    return _render("report.md.j2", report, pictures, sources, escape=False)


def summary_table(report: Report) -> str:
    """Returns the report's main numbers as a text table for the terminal, at most 100 columns.

    Args:
        report: content of report.json.

    Returns:
        Lines without a final newline: label, perplexity, bits per byte, share of heads per entropy
        quarter (lowest first, of the observed maximum), parameters, and GB of one private forward
        pass on the paper's stack, as trained and at GPT-2 size.

    Example:
        >>> summary_table({"networks": [], "stacks": ["spu-2024"]}).partition("-")[0].split()[:2]
        ['network', 'perplexity']
    """
    header = (
        "network",
        "perplexity",
        "bits/byte",
        "heads by log T/4 %",
        "params",
        "GB",
        "at GPT-2",
    )
    rows = [header]
    for entry in report["networks"]:
        costs, stack = entry["private_inference"], report["stacks"][0]
        rows.append(
            (
                entry["name"],
                perplexity_cell(entry, places=False),
                text.with_spread(entry["bits_per_byte"], 3),
                quarters_cell(entry),
                text.large_count(entry["parameters"]),
                text.gigabytes(costs["trained"][stack]["comm_bytes"]),
                text.gigabytes(costs["gpt2"] and costs["gpt2"][stack]["comm_bytes"]),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells))
    lines.insert(1, "-" * len(lines[0]))
    lines.append(
        f"GB of one private forward pass on {report['stacks'][0]}: as trained, and the same label "
        "at GPT-2 size, T = 128."
    )
    return "\n".join(lines)


def perplexity_cell(entry: Mapping[str, Any], *, places: bool = True) -> str:
    """Returns perplexity with its spread, or how the runs ended, or that nothing was evaluated.

    Without `places`, layer and head of a NaN are left out.
    """
    endings = list(dict.fromkeys(run["ending"] for run in entry["runs"] if run["ending"]))
    if not places:
        endings = [ending.split(" (")[0] for ending in endings]
    if entry["perplexity"] is None:
        evaluated = any(run["evaluated"] for run in entry["runs"])
        return "; ".join(endings) or ("not finite" if evaluated else "not evaluated")
    cell = text.with_spread(entry["perplexity"])
    finished = len(entry["perplexity"]["values"])
    return cell + (
        f" ({finished} of {len(entry['runs'])}; {'; '.join(endings)})" if endings else ""
    )


def quarters_cell(entry: Mapping[str, Any], reference: str = "log_context") -> str:
    """Returns the shares of heads per entropy quarter in per cent, lowest first."""
    if not entry["entropy"]:
        return "-"
    shares = entry["entropy"]["quarters"][reference]
    return " / ".join(f"{100 * share:.0f}" for share in shares)


def _render(
    template: str,
    report: Report,
    pictures: Sequence[Picture],
    sources: Mapping[str, str],
    *,
    escape: bool,
) -> str:
    environment = Environment(
        loader=PackageLoader("aero.report"),
        autoescape=escape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        count=text.large_count,
        duration=text.duration,
        gb=text.gigabytes,
        heads=text.heads,
        number=text.significant,
        operations=text.operations,
        perplexity=perplexity_cell,
        quarters=quarters_cell,
        spread=text.with_spread,
    )
    return environment.get_template(template).render(
        report=report, pictures={p.name: p for p in pictures}, sources=sources
    )
