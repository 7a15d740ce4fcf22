"""Outcomes as Markdown: numbers next to the paper's, verdicts, and missing runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aero.internals.atomic_files import write_bytes_atomically, write_json_atomically
from aero.internals.records import as_record
from aero.report.report_file import Spread
from aero.report.text import duration, with_spread
from aero.tables import markdown_table
from benchmarks.paper.run_statistics import STATISTICS
from benchmarks.paper.verdicts import VERDICTS

_HOW_JUDGED = (
    "How a claim is judged: networks are compared seed by seed, as logarithms of perplexity or as "
    "they are. After the means stands how far the higher side lies above the lower one, with its "
    "interval: a moderated t, the variance of the pair's own differences shrunk towards that of "
    "other pairs of the same two families (layer norm, foldable norm, shaped attention, none) that "
    "claims here use. The intervals of a target are simultaneous: all of them hold with 95 % "
    "(Bonferroni). Above 0 a comparison holds, below 0 it does not; "
    "within the smallest difference of interest (2 % of perplexity, else 0.05) two networks are "
    "level, and all else is not decided, nor is anything with a single seed. Costs need no seeds; "
    "a claim about NaN falls with one run to the contrary and holds only with six seeds or more. ± "
    "is the standard deviation over seeds."
)
_OVER_DOCUMENTS = (
    " After 'over documents' stands the interval of the same mean over the files of the validation "
    "text, at the same level; it judges nothing."
)


def write_results(
    outcomes: Sequence[Mapping[str, Any]], stem: str | Path, *, command: str
) -> tuple[Path, Path]:
    """Writes the outcomes of several targets to STEM.md and STEM.json.

    Args:
        outcomes: results of `collect_target`.
        stem: path without ending; its folder must exist.
        command: that makes them.

    Raises:
        OSError: the files cannot be written; earlier ones stay as they were.
    """
    markdown, numbers = Path(f"{stem}.md"), Path(f"{stem}.json")
    write_bytes_atomically(markdown, results_document(outcomes, command=command).encode())
    write_json_atomically(numbers, {"command": command, "targets": list(outcomes)})
    return markdown, numbers


def results_document(outcomes: Sequence[Mapping[str, Any]], *, command: str) -> str:
    """Returns the outcomes of several targets as one text."""
    scale = outcomes[0]["scale"]
    parts = [
        f"# Experiments of the paper (version 2) and our own, at scale `{scale}`",
        _how_made(outcomes, command),
        _HOW_JUDGED + (_OVER_DOCUMENTS if _has_documents(outcomes) else ""),
        _overview(outcomes),
        *(target_section(outcome) for outcome in outcomes),
    ]
    return "\n\n".join(parts) + "\n"


def target_section(outcome: Mapping[str, Any], *, figures: str | None = None) -> str:
    """Returns one target as text.

    Args:
        outcome: the result of `collect_target`.
        figures: folder of its figures as links see it; None leaves them out.
    """
    parts = [f"## {outcome['paper']}: {outcome['title']}", _numbers(outcome)]
    if any(row.get("rates") for row in outcome["rows"]):
        parts.append(_rates(outcome))
    if outcome.get("steps"):
        parts.append(_steps(outcome))
    if outcome["claims"]:
        parts.append(_claims(outcome))
    if outcome.get("private"):
        parts += _private(outcome["private"])
    missing = list(_missing(outcome))
    if missing:
        parts.append(f"Not run: {'; '.join(missing)}.")
    if figures is not None:
        parts += [
            f"![{entry['caption']}]({figures}/{entry['name']}.svg)" for entry in outcome["figures"]
        ]
    return "\n\n".join(parts)


def _missing(outcome: Mapping[str, Any]) -> Iterator[str]:
    for row in outcome["rows"]:
        if (rates := row.get("rates")) and rates["best"] is None:
            yield f"{row['name']} ({_done(rates['cells'])} of {len(rates['cells'])} rates tried)"
        left = [c for c in row["cells"] if c["status"] not in ("finished", "diverged")]
        by_status: dict[str, list[str]] = {}
        for cell in left:
            by_status.setdefault(cell["status"], []).append(str(cell["seed"]))
        for status, seeds in by_status.items():
            word = "seed" if len(seeds) == 1 else "seeds"
            yield f"{row['name']} {word} {', '.join(seeds)} ({status})"


def _numbers(outcome: Mapping[str, Any]) -> str:
    tried = any(row.get("rates") for row in outcome["rows"])
    header, lines = ["network", *["rate"] * tried], []
    for name in outcome["show"]:
        if _has_paper(outcome, name):
            header.append(f"{_heading(name)}, paper")
        header.append(_heading(name))
    for row in outcome["rows"]:
        if not row["paper"] and _seeds(row) == "none":
            continue  # nothing to show; it stands among those not run
        label = row["name"] if row["label"] in row["name"] else f"{row['name']} (`{row['label']}`)"
        line = [label, *([_best_rate(row["rates"])] if tried else [])]
        for name in outcome["show"]:
            if _has_paper(outcome, name):
                line.append(_paper_cell(row, name))
            line.append(_cell(row, name))
        lines.append([*line, _seeds(row)])
    return markdown_table([*header, "seeds"], lines)


def _best_rate(rates: Mapping[str, Any]) -> str:
    """The rate that a network was trained at; said where a rate beyond it was not tried."""
    best, tried = rates["best"], [float(rate) for rate in rates["tried"]]
    if best is None:
        return "-"
    edge = {min(tried): ", the smallest tried", max(tried): ", the largest tried"}.get(best, "")
    return f"{best:g}{edge}"


def _rates(outcome: Mapping[str, Any]) -> str:
    rows = [(row["name"], row["rates"]) for row in outcome["rows"] if row["rates"]["tried"]]
    rates = sorted({rate for _, found in rows for rate in found["tried"]}, key=float)
    seeds = sorted({cell["seed"] for _, found in rows for cell in found["cells"]})
    if len(seeds) == 1:
        who = f"of seed {seeds[0]} at each rate. The lowest sets the rate; seed {seeds[0]} judges"
    else:
        named = " and ".join(map(str, seeds))
        who = f"at each rate, mean of seeds {named}. The lowest sets the rate; these seeds judge"
    about = f"Perplexity {who} nothing."
    lines = [[name, *(_tried(found, rate) for rate in rates)] for name, found in rows]
    return "\n\n".join([about, markdown_table(["network", *rates], lines)])


def _tried(rates: Mapping[str, Any], rate: str) -> str:
    """A perplexity; NaN of a run that diverged; a dash where the rate was not tried."""
    if rate not in rates["tried"]:
        return "-"
    seeds = len(rates["cells"]) // len(rates["tried"])
    first = seeds * list(rates["tried"]).index(rate)
    diverged = any(c["status"] == "diverged" for c in rates["cells"][first : first + seeds])
    return "NaN" if diverged else _or_dash(rates["tried"][rate], ".2f")


def _steps(outcome: Mapping[str, Any]) -> str:
    """What each change saves in bytes and costs in perplexity, against the row before."""
    rows = {row["name"]: row["statistics"] for row in outcome["rows"]}
    lines: list[list[str]] = []
    before: tuple[float | None, float | None] = (None, None)
    for name in outcome["steps"]:
        found = [rows[name].get(key) for key in ("gigabytes", "perplexity")]
        size, perplexity = (None if entry is None else entry["mean"] for entry in found)
        cells = [name, _or_dash(size, ".3f"), "-", _or_dash(perplexity, ".2f"), "-"]
        if before[0] and size:
            cells[2] = f"{before[0] / size:.2f}"
        if before[1] and perplexity:
            cells[4] = _signed(perplexity / before[1] - 1.0)
        lines.append(cells)
        before = size, perplexity
    header = ["one change per row", _heading("gigabytes"), "times fewer", "perplexity", "change"]
    return markdown_table(header, lines)


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _heading(name: str) -> str:
    return "change" if name == "change" else STATISTICS[name].heading


def _has_paper(outcome: Mapping[str, Any], name: str) -> bool:
    if name == "change":
        return any(row["paper_change"] is not None for row in outcome["rows"])
    return any(name in row["paper"] for row in outcome["rows"])


def _paper_cell(row: Mapping[str, Any], name: str) -> str:
    if name == "change":
        return _signed(row["paper_change"])
    if name in ("perplexity", "bits_per_byte") and row["paper"].get("diverged"):
        return "NaN"
    value = row["paper"].get(name)
    return "-" if value is None else _formatted(name, value)


def _cell(row: Mapping[str, Any], name: str) -> str:
    if name == "change":
        return _signed(row["change"])
    spread = row["statistics"].get(name)
    if spread is None:
        diverged = row["statistics"].get("diverged")
        return "NaN" if diverged and diverged["maximum"] and STATISTICS[name].is_ratio else "-"
    form = STATISTICS[name].form
    if form == "number":
        return with_spread(as_record(spread, Spread, name), _decimals(name))
    text = _formatted(name, spread["mean"])
    deviation = spread["standard_deviation"]
    if form == "percent" and deviation is not None:
        text += f" ± {100 * deviation:.1f}"
    return text


def _formatted(name: str, value: float) -> str:
    form = STATISTICS[name].form
    if form == "percent":
        return f"{100 * value:.1f} %"
    if form == "yes":
        return {0.0: "no", 1.0: "yes"}.get(value, f"{100 * value:.0f} % of the seeds")
    if form == "count":
        return f"{value:,.0f}"
    if form == "power":
        return f"{value:.3g}"
    if form == "exact":
        return f"{value:.3f}"
    return f"{value:.{_decimals(name)}f}"


def _decimals(name: str) -> int:
    return 2 if name == "perplexity" else 3


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+.1f} %"


def _seeds(row: Mapping[str, Any]) -> str:
    done = [str(c["seed"]) for c in row["cells"] if c["status"] in ("finished", "diverged")]
    return ", ".join(done) or "none"


def _claims(outcome: Mapping[str, Any]) -> str:
    lines = []
    for entry in outcome["claims"]:
        verdict = VERDICTS[entry["verdict"]]
        if entry["seeds"] == 1:
            verdict += " (one seed)"
        reasons = "; ".join(entry["reasons"])
        lines.append([entry["claim"], entry["where"], f"**{verdict}**", reasons])
    speaker = "the paper says" if outcome["paper"].startswith(("Table", "Figure")) else "claim"
    header = [speaker, "where", "here", "means compared, difference and interval"]
    return markdown_table(header, lines)


def _private(private: Mapping[str, Any]) -> list[str]:
    """Costs of every network in every way, and the fronts."""
    points, fronts = private["points"], private["fronts"]
    if not points:
        return []
    ways = list(points[0]["costs"])
    header = [
        "GB of both parties, temperatures public; fitted minutes in parentheses", *ways,
        "of it set-up (spu-2024)",
    ]  # fmt: skip
    lines: dict[tuple[str, ...], list[str]] = {}
    for point in points:
        costs = point["costs"]
        cells = [f"{c['gigabytes']:.3f} ({c['minutes']:.2f})" for c in costs.values()]
        setup = f"{costs[ways[0]]['setup_gigabytes']:.3f}"
        # A network of several budgets costs the same in all of them.
        lines.setdefault((*cells, setup), []).append(point["name"])
    table = markdown_table(header, [["; ".join(names), *cells] for cells, names in lines.items()])
    alike: dict[tuple[str, str], list[str]] = {}
    for front in fronts:
        near = f"; not decidedly worse: {', '.join(map(_quoted, front['near']))}"
        members = ", ".join(map(_quoted, front["names"])) + (near if front["near"] else "")
        flops = front.get("flops")
        budget = (
            f"{flops:.2g} training FLOPs"
            if flops
            else f"{front['tokens'] / 1e6:.2f} million tokens"
        )
        priced = {"gigabytes": "GB", "minutes": "minutes"}[front["quantity"]]
        alike.setdefault((budget, members), []).append(f"{priced} of {front['way']}")
    found = [
        f"- {budget}, {_ways(named, 2 * len(ways))}: {members}."
        for (budget, members), named in alike.items()
    ]
    opening = "Fronts (nothing is both cheaper and lower in mean perplexity), cheapest first:"
    return [table, "\n".join([opening, "", *found])] if found else [table]


def _ways(named: Sequence[str], count: int) -> str:
    return "GB and minutes of every way" if len(named) == count else ", ".join(named)


def _quoted(name: str) -> str:
    return f"`{name}`"


def _has_documents(outcomes: Sequence[Mapping[str, Any]]) -> bool:
    differences = [d for o in outcomes for claim in o["claims"] for d in claim["differences"]]
    return any(difference.get("low_over_documents") is not None for difference in differences)


def _overview(outcomes: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for outcome in outcomes:
        verdicts = [entry["verdict"] for entry in outcome["claims"]]
        kinds = [kind for row in outcome["rows"] for kind in (row, row.get("rates") or {})]
        cells = [cell for kind in kinds for cell in kind.get("cells", ())]
        counts = [str(verdicts.count(verdict)) for verdict in VERDICTS]
        lines.append([outcome["paper"], *counts, f"{_done(cells)} of {len(cells)}"])
    return markdown_table(["", *(f"claims: {v}" for v in VERDICTS.values()), "runs"], lines)


def _done(cells: Sequence[Mapping[str, Any]]) -> int:
    return sum(cell["status"] in ("finished", "diverged") for cell in cells)


def _how_made(outcomes: Sequence[Mapping[str, Any]], command: str) -> str:
    trainings = [outcome["training"] for outcome in outcomes]
    recipe = trainings[0]["recipe"]
    hardware = _distinct(text for t in trainings for text in t["hardware"])
    versions = _distinct(
        ", ".join(f"{name} {number}" for name, number in v.items())
        for t in trainings
        for v in t["versions"]
    )
    corpora = _distinct(
        f"{c['name']} ({c['version']}), {c['train_tokens']:,} training and "
        f"{c['validation_tokens']:,} validation tokens, SHA-256 {c['sha256'][:16]}, {_copied(c)}"
        for t in trainings
        for c in t["corpora"]
    )
    seconds = sum(t["seconds"] for t in trainings)
    tried = any(row.get("rates") for row in outcomes[0]["rows"])
    rate = f"{recipe['optimizer']['learning_rate']:g}" if not tried else "the best of those tried"
    return "\n".join(
        [
            f"Made with `{command}`.",
            f"First row: preset `{recipe['model']['preset']}`, T = "
            f"{recipe['model']['context_length']}, vocabulary {recipe['data']['vocabulary']:,}, "
            f"{trainings[0]['steps']:,} steps of {recipe['training']['tokens_per_step']:,} tokens, "
            f"{recipe['training']['precision']}, peak learning rate {rate}.",
            f"Hardware: {hardware or 'none yet'}. Versions: {versions or '-'}. Corpus: "
            f"{corpora or '-'}. Training of these runs, shared ones counted per target: "
            f"{duration(seconds)}.",
        ]
    )


def _copied(corpus: Mapping[str, Any]) -> str:
    """How much of the validation text was seen in training."""
    if "copied_share" not in corpus:
        return (
            "validation text with near copies of training text, which the split now keeps out, so "
            "perplexities do not compare with later ones"
        )
    return f"{corpus['copied_share']:.1%} of the long validation lines in other documents too"


def _distinct(texts: Any) -> str:
    return "; ".join(dict.fromkeys(texts))
