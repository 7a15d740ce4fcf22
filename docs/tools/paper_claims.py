"""The table of docs/paper.md: every claim of the paper beside our result, from results files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from committed import content

from aero.tables import markdown_table

SIDE = re.compile(r"(?:(?P<factor>[\d.]+) x )?(?P<name>.+?)(?: \((?P<mean>[^()]+)\))?")
HEADER = ("the paper claims", "paper", "ours", "95 % interval", "verdict", "cause")
#: Verdicts as the table says them.
WORDS = {"undecided": "undecided", "not tested": "not tested"}
#: A change of the networks -> the results with it.
CHANGES = {
    "embeddings of variance 1": "reproduction_unit_mini",
    "the authors' LayerNorm and dropout": "reproduction_final_norm_mini",
}
_WHY = "[measured](../benchmarks/results/why_claims_fail_mini_amd_epyc_202611.md)"
_HALF = "[in float16 too](../benchmarks/results/half_precision_intel_xeon_202611.md)"
_NO_NAN = f"no run reached NaN at this rate, {_HALF}"
#: Target and how the claim begins -> what explains it where no change above does.
CAUSES: Mapping[tuple[str, str], str] = {
    ("table2", "Without both"): _NO_NAN,
    ("table5", "He and Hofmann's network with"): _NO_NAN,
    ("table6", "He and Hofmann's network diverges"): _NO_NAN,
    ("table7", "He and Hofmann's network diverges"): _NO_NAN,
    ("figure6", "Training reaches NaN"): _NO_NAN,
    ("figure17", "With more than half"): f"nor do seven of twelve layers, {_WHY}",
    ("table8", "Beside LayerNorm"): f"likely the small weights at the start, {_WHY}",
    ("figure3", "Nine of ten"): f"more training helps and does not suffice, {_WHY}",
}


def paper_claims() -> str:
    """Every claim of the paper with the paper's effect, ours, its interval, verdict and cause."""
    changed = {name: _claims_of(stem) for name, stem in CHANGES.items()}
    rows = []
    for (target, claim), (found, place, networks) in _claims_of("reproduction_mini").items():
        others = {name: claims.get((target, claim)) for name, claims in changed.items()}
        verdicts = {name: other[0]["verdict"] for name, other in others.items() if other}
        shown = [_comparison(reason, networks) for reason in found["reasons"]]
        rows.append(
            [
                f"{claim} ({', '.join(dict.fromkeys((place, found['where'])))})",
                *(_joined(part) for part in zip(*shown, strict=True)),
                _word(found["verdict"]),
                _cause(target, claim, found["verdict"], verdicts),
            ]
        )
    return markdown_table(HEADER, rows)


def _claims_of(stem: str) -> dict[tuple[str, str], tuple[dict[str, Any], str, dict[str, Any]]]:
    """Target and claim -> the claim, its place and the paper's numbers of the networks there."""
    return {
        (target["target"], claim["claim"]): (
            claim,
            target["paper"],
            {row["name"]: row.get("paper") or {} for row in target["rows"]},
        )
        for target in content(stem)["targets"]
        if not target["paper"].startswith("Beyond")
        for claim in target["claims"]
    }


def _comparison(reason: str, networks: Mapping[str, Any]) -> tuple[str, str, str]:
    """The paper's effect, ours and its interval, of a comparison such as 'A (2) < B (3): +50 %'."""
    compared, _, effect = reason.partition(": ")
    effect, _, interval = effect.partition(" (")
    # A side is a network with its mean, perhaps times a factor, or a number.
    sides = [SIDE.fullmatch(side) for side in re.split(" [<>] ", compared)]
    found = [(float(s["factor"] or 1), networks.get(s["name"], {}), s["mean"]) for s in sides if s]
    paper = "–"
    if effect.endswith("%") and all("perplexity" in numbers for _, numbers, _ in found):
        left, right = (factor * numbers["perplexity"] for factor, numbers, _ in found)
        paper = f"{100 * (right / left - 1):+.1f} %"
    elif not effect and "diverged" in found[0][1]:
        paper = _nan(found[0][1]["diverged"])
    ours = effect or ("no run" if found[0][2] == "no run" else _nan(float(found[0][2])))
    return paper, ours, re.split(r"[;)]", interval)[0] or "–"


def _joined(parts: Sequence[str]) -> str:
    """The comparisons of a claim in one cell."""
    return "; ".join(parts if len({*parts}) > 1 else parts[:1])


def _nan(share: float) -> str:
    return "NaN" if share else "no NaN"


def _word(verdict: str) -> str:
    return WORDS.get(verdict, verdict)


def _cause(target: str, claim: str, verdict: str, changed: Mapping[str, str]) -> str:
    """What explains a claim that fails, or what the changes make of another one."""
    if verdict == "does not hold":
        turning = [name for name, other in changed.items() if other == "holds"]
        if turning:
            return f"holds with {' and with '.join(turning)}"
        for (its_target, start), words in CAUSES.items():
            if its_target == target and claim.startswith(start):
                return words
    return "; ".join(_differing(verdict, changed)) or ("open" if verdict == "does not hold" else "")


def _differing(verdict: str, changed: Mapping[str, str]) -> Iterator[str]:
    for name, other in changed.items():
        if other != verdict:
            yield f"{_word(other)} with {name}"
