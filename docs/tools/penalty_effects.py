"""The forest plot of docs/explanation/entropy_penalty.md: every test of the penalty's effect."""

from __future__ import annotations

import io
import math
import re
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from committed import content
from matplotlib.figure import Figure

#: Results -> what their networks have in common.
STUDIES = {
    "reproduction_mini": "as printed",
    "reproduction_unit_mini": "from variance 1",
    "reproduction_final_norm_mini": "the authors' network",
    "penalty_unit_mini": "from variance 1",
    "start_factorial": "variance 1, best rates",
    "start_again": "variance 1, best rates, again",
    "retraining": "from a baseline",
}
#: Claims that set the penalty at the paper's balance beside the network without it.
CLAIMS = re.compile(
    r"The entropy penalty improves|It (?:also )?improves the pruned|"
    r"The penalty (?:adds|improves the ann|at the)"
)
#: Where the picture ends, %; one interval goes on.
WIDEST = 25
#: How a claim of ours begins -> where its networks have the penalty.
OWN = {
    "The penalty at the paper's balance": "plain network",
    "The penalty adds to it": "plain network",
    "The penalty adds to scale and foldable": "beside a foldable norm",
    "The penalty adds to scale and final": "beside a final LayerNorm",
    "The penalty improves the annealed": "annealed",
}
COLOURS = {"undecided": "#7a8699", "better": "#1b7f5c", "worse": "#c4502d"}


@dataclass(frozen=True)
class Effect:
    """How far the perplexity without the penalty lies above that with it, with its interval, %."""

    name: str
    effect: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """What the penalty does by this interval."""
        return "better" if self.low > 0 else "worse" if self.high < 0 else "undecided"


def effects() -> list[Effect]:
    """Every test of the penalty's effect on the perplexity, by study and effect."""
    found = [_of_the_demo(), _of_the_five_networks()]
    for stem, study in STUDIES.items():
        of_study = [
            _effect(f"{_where(target, claim)}, {study}", difference)
            for target in content(stem)["targets"]
            for claim in target["claims"]
            for difference in _tested(claim)
            if difference["low"] is not None
        ]
        found += sorted(of_study, key=lambda each: each.effect)
    return found


def forest_plot() -> str:
    """The effects as an SVG."""
    rows = effects()[::-1]
    with mpl.rc_context({"svg.hashsalt": "aero", "font.size": 7.5, "svg.fonttype": "none"}):
        figure = Figure(figsize=(7.6, 0.165 * len(rows) + 0.8), layout="constrained")
        axes = figure.add_subplot()
        for verdict, colour in COLOURS.items():
            places = [i for i, row in enumerate(rows) if row.verdict == verdict]
            shown = [rows[i] for i in places]
            ends = [[r.effect - r.low for r in shown], [r.high - r.effect for r in shown]]
            label = {"undecided": verdict}.get(verdict, f"{verdict} with the penalty")
            centres = [r.effect for r in shown]
            axes.errorbar(centres, places, xerr=ends, fmt="o", ms=3, color=colour, label=label)
        axes.axvline(0, color="0.3", linewidth=0.8)
        axes.set_yticks(range(len(rows)), [row.name for row in rows])
        axes.set_ylim(-1, len(rows))
        axes.set_xlim(-WIDEST, WIDEST)
        axes.set_xlabel("perplexity without the penalty above that with it, %, simultaneous 95 %")
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside upper right", ncols=3, frameon=False)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None}, facecolor="white")
    return text.getvalue()


def penalty_effects() -> str:
    """The picture as the page has it."""
    return "![Every test of the penalty's effect on the perplexity](entropy_penalty/forest.svg)"


def _tested(claim: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = claim["differences"]
    if claim["claim"] == "It also has the lowest perplexity.":
        return found[:1]  # the others are with normalized networks
    return found if CLAIMS.match(claim["claim"]) else []


def _where(target: dict[str, Any], claim: dict[str, Any]) -> str:
    if not target["paper"].startswith("Beyond"):
        pruned = ", pruned" if "pruned" in claim["claim"] else ""
        return f"{target['paper']}{pruned}"
    return next(name for start, name in OWN.items() if claim["claim"].startswith(start))


def _effect(name: str, difference: dict[str, float]) -> Effect:
    ends = (100 * math.expm1(difference[key]) for key in ("effect", "low", "high"))
    return Effect(name, *ends)


def _of_the_demo() -> Effect:
    (found,) = (
        each
        for each in content("demo")["comparisons"]
        if each["quantity"] == "perplexity" and each["network"].startswith("EReg")
    )
    # There the side with the penalty is measured against the other one.
    ends = (100 * (1 / (1 + found[key]) - 1) for key in ("difference", "high", "low"))
    return Effect("the demo", *ends)


def _of_the_five_networks() -> Effect:
    """The demo as it was without convolutions, whose report has sentences."""
    results = content("five_networks")["findings"]
    (found,) = (each for each in results if each["name"] == "ereg_beats_plain")
    low, high = map(float, re.findall(r"\((\S+) to (\S+) %, simultaneous", found["text"])[0])
    ends = (-100 * (1 - 1 / (1 + end / 100)) for end in (high, low))
    effect = -100 * (1 - 1 / (1 - found["values"]["relative_gain"]))
    return Effect("the demo without a convolution", effect, *ends)
