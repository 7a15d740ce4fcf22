"""report.html, report.md and the terminal table, all made from the content of report.json."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Mapping, Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from aero.analysis.spectra import SPECTRA
from aero.internals.records import as_dict
from aero.report import text
from aero.report.comparisons import baseline_of
from aero.report.labels import explained
from aero.report.picture import Picture
from aero.report.report_file import NetworkEntry, Report, SeedSpread
from aero.tables import markdown_table, table_lines


def render_html(report: Report, pictures: Sequence[Picture]) -> str:
    """Returns the report as one HTML page that asks nothing of the network."""
    sources = {picture.name: Markup(picture.svg) for picture in pictures}
    return _render("report.html.j2", report, pictures, sources, escape=True)


def render_markdown(report: Report, pictures: Sequence[Picture] = ()) -> str:
    """Returns the report as Markdown, pictures linked as `figures/NAME.svg`.

    Args:
        report: content of report.json.
        pictures: those that lie next to the file; none for a text that stands alone.
    """
    sources = {picture.name: f"figures/{picture.name}.svg" for picture in pictures}
    return _render("report.md.j2", report, pictures, sources, escape=False)


def summary_table(report: Report) -> str:
    """Returns the report's main numbers as a text table for the terminal, at most 100 columns.

    Returns:
        Lines without a final newline: label, perplexity, bits per byte, share of heads per entropy
        quarter (lowest first, of log T), parameters, and GB of one private forward
        pass on the paper's stack, as trained and at GPT-2 size.
    """
    stack = report.stacks[0]
    columns = (
        "network", "perplexity", "bits/byte", "heads by log T/4 %", "params", "GB", "at GPT-2",
    )  # fmt: skip
    rows = []
    for entry in report.networks:
        costs = entry.private_inference
        rows.append(
            {
                "network": entry.name,
                "perplexity": text.perplexity_cell(entry, places=False),
                "bits/byte": text.with_spread(entry.bits_per_byte, 3),
                "heads by log T/4 %": text.quarters_cell(entry),
                "params": text.large_count(entry.parameters),
                "GB": text.gigabytes(costs.trained[stack].comm_bytes),
                "at GPT-2": text.gigabytes(costs.gpt2[stack].comm_bytes if costs.gpt2 else None),
            }
        )
    lines = table_lines(rows, columns)
    lines.insert(1, "-" * len(lines[0]))
    lines.append(
        f"GB of one private forward pass on {stack}: as trained, and the same label "
        "at GPT-2 size, T = 128."
    )
    return "\n".join(lines)


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
        change=text.change,
        gb=text.gigabytes,
        interval=text.interval_cell,
        heads=text.heads,
        number=text.significant,
        operations=text.operations,
        perplexity=text.perplexity_cell,
        quarters=text.quarters_cell,
        spread=text.with_spread,
    )
    return environment.get_template(template).render(
        report=report,
        best=_best(report),
        corpora=[as_dict(corpus) for corpus in report.training.corpora],
        baseline=baseline_of(report.networks),
        samples={e.name: e.sample for e in report.networks if e.sample},
        tables=markdown_tables(report),
        context=context_table(report),
        spectra=spectra_table(report),
        words=explained(entry.label for entry in report.networks),
        steps=next_steps(report),
        pictures={picture.name: picture for picture in pictures},
        sources=sources,
    )


def _best(report: Report) -> NetworkEntry | None:
    judged = [
        (entry.perplexity.mean, place)
        for place, entry in enumerate(report.networks)
        if entry.perplexity
    ]
    return report.networks[min(judged)[1]] if judged else None


def next_steps(report: Report, places: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns commands that go on from a report, and what each is for.

    Args:
        report: content of report.json.
        places: name of a run's folder -> its path; None: as seen from the folder of the runs.
    """
    best = _best(report)
    if best is None:
        return {}
    # Beside the baseline; where that is the best itself, beside the cheapest other.
    stack = report.stacks[0]
    others = [entry for entry in report.networks if entry.perplexity and entry.label != best.label]
    baseline = baseline_of(others) or min(
        others,
        key=lambda entry: entry.private_inference.trained[stack].comm_bytes,
        default=None,
    )
    pair = [best] if baseline is None else [baseline, best]
    runs = [next(run for run in entry.runs if not run.ending).folder for entry in pair]
    shown = [(places or {}).get(run, run) for run in runs]
    price = ["show"] if baseline is None else ["compare"]
    return {
        shlex.join(["aero", "show", *shown]): "where every head looks, token by token",
        shlex.join(["aero", "cost", *price, *(entry.label for entry in pair)]): (
            "the private cost at GPT-2's size, part by part"
        ),
    }


def markdown_tables(report: Report) -> dict[str, str]:
    """Returns the tables by name; `seeds` and `spread` are empty where the report has none."""
    return {
        "comparisons": _comparisons(report),
        "networks": _networks(report),
        "context": _context(report),
        "spectra": _spectra(report),
        "entropies": _entropies(report),
        "costs": _costs(report),
        "seeds": _seeds(report) if len(report.seeds) > 1 else "",
        "spread": _spread(report.seed_spread) if report.seed_spread else "",
    }


def _comparisons(report: Report) -> str:
    header = ["network", "against", "of", "difference", "95 % interval", "seeds", "verdict"]
    rows = [
        [
            row.network,
            row.against,
            row.quantity,
            text.change(row.difference),
            text.interval_cell(row),
            str(row.seeds),
            row.verdict,
        ]
        for row in report.comparisons
    ]
    return markdown_table(header, rows, right=range(3, 6)) if rows else ""


def _networks(report: Report) -> str:
    stack = report.stacks[0]
    header = [
        "network", "perplexity", "bits per byte", "parameters", "FLOPs, paper's count",
        "FLOPs, executed", f"GB, {stack}", "nonlinear operations",
    ]  # fmt: skip
    rows = [
        [
            entry.name,
            text.perplexity_cell(entry),
            text.with_spread(entry.bits_per_byte, 3),
            text.large_count(entry.parameters),
            text.large_count(entry.flops.paper.total),
            text.large_count(entry.flops.executed.total),
            text.gigabytes(entry.private_inference.trained[stack].comm_bytes),
            text.operations(entry.nonlinear_operations),
        ]
        for entry in report.networks
    ]
    return markdown_table(header, rows, right=range(1, 7))


def _context(report: Report) -> str:
    header, rows = context_table(report)
    return markdown_table(header, rows, right=range(1, len(header))) if rows else ""


def context_table(report: Report) -> tuple[list[str], list[list[str]]]:
    """Returns header and rows of the use of context; no row where no run measured it."""
    found = {entry.name: entry.context for entry in report.networks}
    measured = {name: each for name, each in found.items() if each}
    spans = {
        name: {(part.first, part.last): part.loss for part in each.by_position}
        for name, each in measured.items()
    }
    ranges = sorted({span for losses in spans.values() for span in losses})
    header = [f"{first}-{last}" if first < last else str(first) for first, last in ranges]
    rows = []
    for name, each in measured.items():
        losses = [*map(spans[name].get, ranges), each.repeated, each.new]
        rows.append([name, *("-" if loss is None else f"{loss:.2f}" for loss in losses)])
    return ["network", *header, "repeated bigrams", "new tokens"], rows


def _spectra(report: Report) -> str:
    header, rows = spectra_table(report)
    return markdown_table(header, rows, right=range(1, len(header))) if rows else ""


def spectra_table(report: Report) -> tuple[list[str], list[list[str]]]:
    """Returns header and rows of the spectra of FFN activations, means over the layers.

    No row for networks without activations.
    """
    numbers = [f"{name} {place}" for place in ("before", "after") for name in ("SE", "PR", "EEE")]
    rows = []
    for entry in report.networks:
        layers = [layer for layer in entry.ffn_spectra or () if layer is not None]
        if layers:
            found = ([layer[name] for layer in layers] for name in SPECTRA)
            rows.append([entry.name, *map(_mean, found)])
    return ["network", *numbers, "JS"], rows


def _mean(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.fmean(known):.3g}" if known else "-"


def _entropies(report: Report) -> str:
    header = [
        "network", "heads per quarter of log T (%)", "mean (nats)",
        "mean / log T", "mean of E / log(i+1)", "collapsed", "overloaded",
    ]  # fmt: skip
    rows = []
    for entry in report.networks:
        entropy = entry.entropy
        if not entropy:
            rows.append([entry.name, "not analysed", *[""] * 5])
            continue
        broken = f"; NaN: {text.heads(entropy.nan_heads)}" if entropy.nan_heads else ""
        rows.append(
            [
                entry.name,
                text.quarters_cell(entry),
                text.significant(entropy.mean, 3),
                text.significant(entropy.mean_normalized_context, 3),
                text.significant(entropy.mean_normalized_visible, 3),
                text.heads(entropy.collapsed_log_context) + broken,
                text.heads(entropy.overloaded_log_context),
            ]
        )
    return markdown_table(header, rows, right=range(1, 5))


def _costs(report: Report) -> str:
    stacks = report.stacks
    header = ["network", *stacks, *(f"GPT-2, {stack}" for stack in stacks)]
    header += [f"GPT-2, {stacks[0]}, one LayerNorm more", "paper"]
    rows = []
    for entry in report.networks:
        cost = entry.private_inference
        gpt2, paper = cost.gpt2 or {}, cost.paper
        rows.append(
            [
                entry.name,
                *(text.gigabytes(cost.trained[stack].comm_bytes) for stack in stacks),
                *(text.gigabytes(gpt2[stack].comm_bytes if gpt2 else None) for stack in stacks),
                text.gigabytes(cost.gpt2_one_more_layernorm),
                str((paper and paper.comm_gigabytes) or "-"),
            ]
        )
    return markdown_table(header, rows, right=range(1, len(header)))


def _seeds(report: Report) -> str:
    rows = []
    for entry in report.networks:
        rows.append(
            [
                entry.name,
                ", ".join(str(run.seed) for run in entry.runs),
                text.perplexity_cell(entry),
                text.significant(entry.perplexity.minimum if entry.perplexity else None),
                text.significant(entry.perplexity.maximum if entry.perplexity else None),
                text.with_spread(entry.bits_per_byte, 3),
            ]
        )
    header = ["network", "seeds", "perplexity", "lowest", "highest", "bits per byte"]
    return markdown_table(header, rows, right=range(2, 6))


def _spread(spread: SeedSpread) -> str:
    rows = [
        [
            entry.name,
            text.with_spread(entry.perplexity),
            text.with_spread(entry.bits_per_byte, 3),
            "; ".join(entry.endings) or "none",
        ]
        for entry in spread.networks
    ]
    header = ["network", "perplexity", "bits per byte", "unfinished"]
    return markdown_table(header, rows, right=range(1, 3))
