"""The charts of docs/results.md and docs/explanation/start.md, from results and the simulator.

`python docs/tools/charts.py` writes that of the README anew. The manual draws its own.
"""

from __future__ import annotations

import io
import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from answers import TABLES
from committed import compared, content, target
from counted import gigabytes
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from aero.analysis import FIGURE_STYLE, plot_pareto
from aero.architecture import ArchitectureSpec
from aero.internals.palette import NETWORK_COLORS
from aero.report.labels import FAMILIES, family

README_PICTURE = Path(__file__).parents[1] / "images" / "gap_against_tokens.svg"
COLOURS = {"holds": "#1b7f5c", "undecided": "#7a8699", "does not hold": "#c4502d"}
CONTEXTS = (64, 128, 256, 512, 1024, 2048)
#: Networks of the front that its chart names; the others are points.
NAMED = (
    "SM+LN+G", "SM+FN+R", "SM+ScFuFFN, 4 layers of 320", "SM+ScFuFFN, 1 head, equal FLOPs",
    "SM+R, 1 layer of 512, equal FLOPs",
)  # fmt: skip


def saving() -> Figure:
    """Times fewer bytes than GPT-2 by context, for two networks on two stacks."""
    figure, axes = _panel(3.2)
    series = {
        "softmax only, spu-2024": ("SM+ScFuFFN", "spu-2024", "-"),
        "ReLU and foldable norm, spu-2024": ("SM+FN+R", "spu-2024", "-"),
        "softmax only, openbumblebee": ("SM+ScFuFFN", "openbumblebee", "--"),
        "ReLU and foldable norm, openbumblebee": ("SM+FN+R", "openbumblebee", "--"),
    }
    for index, (name, (label, stack, style)) in enumerate(series.items()):
        factors = [gigabytes("SM+LN+G", stack, n) / gigabytes(label, stack, n) for n in CONTEXTS]
        colour = NETWORK_COLORS[index % 2]
        axes.plot(CONTEXTS, factors, style, marker="o", markersize=3, color=colour, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(CONTEXTS, [f"{tokens:,}" for tokens in CONTEXTS])
    axes.set(xlabel="tokens of one private pass", ylabel="times fewer bytes than GPT-2")
    axes.set_ylim(bottom=1)
    axes.legend(frameon=False)
    return figure


def front() -> Figure:
    """Perplexity against bytes after two lengths of training, every change for both sides."""
    figure = Figure(figsize=(7.6, 3.9), layout="constrained")
    for axes, name, title in zip(
        figure.subplots(1, 2),
        ("front", "front_long"),
        ("0.82 million tokens", "3.3 million tokens"),
        strict=True,
    ):
        # Without the teacher and without networks far above all others.
        found = [
            row
            for row in target("front_mini", name)["rows"]
            if not row["name"].endswith("a quarter of the tokens")
            and row["statistics"]["perplexity"]["mean"] < 80
        ]
        _against_bytes(
            axes,
            [row["statistics"]["gigabytes"]["mean"] for row in found],
            [row["statistics"]["perplexity"]["values"] for row in found],
            {row["name"]: row["label"] for row in found},
            [i for i, row in enumerate(found) if row["name"] in NAMED],
        )
        axes.set_title(title)
        axes.margins(x=0.2, y=0.12)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


CROSSING = ("SM+FN+R", "SM+ScFuFFN", "SM+LN+G+S4", "SM+FN+R+S4", "SM+ScFuFFN+S4")


def crossover() -> Figure:
    """How far networks lie above GPT-2's kind, by the tokens that they were trained on."""
    figure, axes = _panel(3.4)
    found = [target("crossover_mini", name) for name in ("crossover", "crossover_convolution")]
    rows = [row for each in found for row in each["rows"]]
    lengths = set()
    for of, style in (
        (rows, "-"),
        (target("hundred_million_mini", "hundred_million")["rows"], "--"),
    ):
        for label, gaps in _gaps(of).items():
            colour = NETWORK_COLORS[CROSSING.index(label)]
            name = f"{label}, 1 head" if label != "SM+FN+R" else label
            _draw_gaps(axes, gaps, style, colour, name)
            lengths |= {*gaps}
    _by_tokens(axes, lengths)
    axes.set_ylabel("perplexity above SM+LN+G, %")
    handles = dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
    figure.legend([*handles.values()], [*handles], loc="outside lower center", ncols=3)
    return figure


#: Label -> what the README's chart writes at its line, and where from the last point, points.
OF_README = {
    "SM+ScFuFFN": ("softmax only", (-12, -4)),
    "SM+FN+R": ("ReLU and foldable norm", (4, -22)),
}


def gap_against_tokens() -> Figure:
    """Two lines of `crossover`, large enough for a narrow screen."""
    figure = Figure(figsize=(6.0, 3.0), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    found = _gaps(target("crossover_mini", "crossover")["rows"])
    for label, (name, away) in OF_README.items():
        colour = NETWORK_COLORS[CROSSING.index(label)]
        _draw_gaps(axes, found[label], "-", colour, name)
        at, values = [*found[label].items()][-1]
        axes.annotate(
            name, (at, statistics.mean(values)), away, textcoords="offset points", ha="right",
            color=colour,
        )  # fmt: skip
    _by_tokens(axes, {*found["SM+FN+R"]})
    axes.set_ylabel("perplexity above\nGPT-2's kind, %")
    return figure


def gaps_in_words() -> str:
    """What the README's chart shows."""
    found = _gaps(target("crossover_mini", "crossover")["rows"])
    lines = (
        f"{name} ({label}): "
        + ", ".join(f"{statistics.mean(gap):+.1f} % at {at}" for at, gap in found[label].items())
        for label, (name, _) in OF_README.items()
    )
    return f"Perplexity against SM+LN+G, by million tokens of training. {'; '.join(lines)}."


def _gaps(rows: list[Mapping[str, Any]]) -> dict[str, dict[float, list[float]]]:
    """How far each seed lies above the baseline's mean, %, by label and million tokens."""
    found: dict[str, dict[float, list[float]]] = {}
    for row in rows:
        tokens, perplexity = (row["statistics"][name] for name in ("tokens", "perplexity"))
        if perplexity:
            of_label = found.setdefault(row["label"], {})
            of_label[round(tokens["mean"] / 1e6, 1)] = perplexity["values"]
    baseline = {at: statistics.mean(values) for at, values in found.pop("SM+LN+G").items()}
    return {
        label: {
            at: [100 * (value / baseline[at] - 1) for value in values]
            for at, values in sorted(by_length.items())
            if at in baseline
        }
        for label, by_length in sorted(found.items())
    }


def _draw_gaps(
    axes: Axes, gaps: Mapping[float, list[float]], style: str, colour: str, name: str
) -> None:
    """A line through means, with seeds as points."""
    means = [statistics.mean(gap) for gap in gaps.values()]
    axes.plot([*gaps], means, style, color=colour, label=name)
    for at, values in gaps.items():
        axes.plot([at] * len(values), values, "o", ms=2.5, color=colour)


def _by_tokens(axes: Axes, lengths: set[float]) -> None:
    axes.axhline(0, color="0.3", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(lengths), [f"{each:.3g}" for each in sorted(lengths)])
    axes.minorticks_off()
    axes.set_xlabel("million tokens of training")


def verdicts() -> Figure:
    """How many of the paper's claims hold in three kinds of networks."""
    figure, axes = _panel(1.7)
    studies = {
        "as the paper prints them": "reproduction_mini",
        "with embeddings of variance 1": "reproduction_unit_mini",
        "the authors' networks": "reproduction_final_norm_mini",
    }
    words = {
        "holds": "#1b7f5c", "level": "#8fc7b1", "undecided": "#c3cad3", "does not hold": "#c4502d",
        "not tested": "#e9ecf0",
    }  # fmt: skip
    left = [0] * len(studies)
    counts = [
        Counter(
            claim["verdict"]
            for each in content(stem)["targets"]
            if not each["paper"].startswith("Beyond")
            for claim in each["claims"]
        )
        for stem in studies.values()
    ]
    for word, colour in words.items():
        sizes = [count[word] for count in counts]
        bars = axes.barh([*studies], sizes, left=left, color=colour, label=word)
        ink = "white" if word in ("holds", "does not hold") else "#16202e"
        shown = [str(size) if size > 2 else "" for size in sizes]
        axes.bar_label(bars, shown, label_type="center", color=ink, fontsize="small")
        left = [start + size for start, size in zip(left, sizes, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("claims of the paper")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure


def retraining() -> Figure:
    """Perplexities of networks from a baseline and from scratch, each seed a point."""
    rows = [
        row
        for row in target("retraining", "retraining")["rows"]
        if row["statistics"]["perplexity"] and row["name"] != "baseline"
    ]
    rows.sort(key=lambda row: -row["statistics"]["perplexity"]["mean"])
    figure, axes = _panel(0.24 * len(rows) + 0.8)
    for place, row in enumerate(rows):
        scratch = "twice the tokens" in row["name"]
        values = row["statistics"]["perplexity"]["values"]
        kind = "from scratch" if scratch else "from the trained baseline"
        colour = NETWORK_COLORS[0 if scratch else 1]
        axes.plot(values, [place] * len(values), "o", ms=4, color=colour, label=kind)
    names = [row["name"].replace("twice the tokens", "from scratch") for row in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.set_xlabel("perplexity after as many tokens in all, each seed")
    handles = dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
    figure.legend([*handles.values()], [*handles], loc="outside lower center", ncols=2)
    return figure


def start() -> Figure:
    """What each change does to the perplexity once embeddings have variance 1, and before."""
    questions = TABLES["answers_start"]
    found = [compared(q.stem, q.target, q.claim, q.part) for q in questions]
    figure, axes = _panel(0.26 * len(found) + 0.8)
    for verdict, colour in COLOURS.items():
        shown = [(i, each) for i, each in enumerate(found) if each.verdict == verdict]
        ends = [[e.effect - e.low for _, e in shown], [e.high - e.effect for _, e in shown]]
        label = {"holds": "it helps", "does not hold": "it harms"}.get(verdict, "not decided")
        centres, places = [e.effect for _, e in shown], [i for i, _ in shown]
        axes.errorbar(centres, places, xerr=ends, fmt="o", ms=4, color=colour, label=label)
    axes.axvline(0, color="0.3", linewidth=0.8)
    axes.set_yticks(range(len(found)), [q.text.rstrip("?").replace("`", "") for q in questions])
    axes.invert_yaxis()
    axes.set_xlabel("perplexity without the change above that with it, %, simultaneous 95 %")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


#: Place in the manual -> what the chart shows, and its maker.
CHARTS: Mapping[str, tuple[str, Callable[[], Figure]]] = {
    "results/saving": ("Times fewer bytes than GPT-2, by context and protocol", saving),
    "results/front": ("Perplexity against gigabytes after two lengths of training", front),
    "results/crossover": ("How far networks lie above GPT-2's kind, by tokens", crossover),
    "results/verdicts": ("How many of the paper's claims hold", verdicts),
    "results/retraining": ("Perplexity from a baseline and from scratch", retraining),
    "explanation/start/changes": ("What each change of the start does", start),
}


def pictures() -> dict[str, str]:
    """Every chart as an SVG, by its place in the manual."""
    return {f"{place}.svg": _svg(draw) for place, (_, draw) in CHARTS.items()}


def shown(place: str) -> str:
    """A chart as its page has it, which lies beside the folder of its pictures."""
    return f"![{CHARTS[place][0]}]({'/'.join(place.split('/')[-2:])}.svg)"


def _panel(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7.6, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _against_bytes(
    axes: Axes,
    costs: list[float],
    perplexities: list[list[float]],
    labels: Mapping[str, str],
    named: list[int],
) -> None:
    """Points of networks, coloured by family; `labels` are theirs, by name."""
    specs = (ArchitectureSpec.from_label(label, model="mini") for label in labels.values())
    groups = [family(spec.to_dict()) for spec in specs]
    order = [each for each in FAMILIES if each in groups]
    plot_pareto(
        costs, perplexities, [*labels], series=groups, series_order=order, named=named,
        xlabel="GB of one private pass, both parties", axes=axes,
    )  # fmt: skip


def _svg(draw: Callable[[], Figure], size: int = 8, description: str | None = None) -> str:
    """A figure as text, `size` that of its letters in points."""
    text = io.StringIO()
    style = {**FIGURE_STYLE, "svg.hashsalt": "aero", "font.size": size, "legend.frameon": False}
    with mpl.rc_context(style):
        figure = draw()
        facts = {"Date": None, "Description": description}
        figure.savefig(text, format="svg", metadata=facts, facecolor="white")
    return text.getvalue()


if __name__ == "__main__":
    README_PICTURE.write_text(
        _svg(gap_against_tokens, size=11, description=gaps_in_words()), encoding="utf-8"
    )
