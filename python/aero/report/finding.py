"""A finding: a sentence, the verdict on it and the numbers behind it.

Reports of runs, tables of costs and retrained targets all speak in findings. Those of a report
compare networks that differ in one thing, over seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from aero.report.seeds import Difference, Pool, Series, Verdict, family_of

#: Verdict -> its words in a table, and the words after "the paper's ordering" in a sentence.
VERDICTS: Mapping[str, tuple[str, str]] = {
    "holds": ("holds", "holds at this scale"),
    "holds in part": ("holds in part", "holds in part at this scale"),
    "does not hold": ("does not hold", "does not hold at this scale"),
    "level": ("level", "does not show at this scale: the two are level"),
    "undecided": ("not decided", "is not decided by these runs"),
    "not tested": ("not tested at this scale", "is not tested by these runs"),
}


@dataclass(frozen=True)
class Finding:
    """One finding.

    Attributes:
        name: a word to refer to it by.
        text: a sentence in plain words, computed from the numbers or claimed by the paper.
        verdict: of `aero.report.seeds`, "holds in part" where it holds on some stacks only, or
            "noted" for a fact that claims nothing.
        values: the numbers behind it.
        where: its place in the paper, if the paper claims it.
        differences: the evidence of seeds, one per comparison; perplexities' are logarithms.
        reasons: the same in words, with the means.
    """

    name: str
    text: str
    verdict: Verdict | Literal["holds in part", "noted"] = "noted"
    values: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""
    differences: tuple[Difference, ...] = ()
    reasons: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Name, verdict, text and values, and the further values of a paper's claim."""
        found: dict[str, Any] = {
            "name": self.name,
            "verdict": self.verdict,
            "text": self.text,
            "values": dict(self.values),
        }
        if self.where:
            found["where"] = self.where
            found["reasons"] = list(self.reasons)
            found["differences"] = [asdict(difference) for difference in self.differences]
        return found


def finding_lines(findings: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns findings, as `Finding.to_dict` gives them, as a Markdown list."""
    return [
        "- "
        + ("" if finding["verdict"] == "noted" else f"**{finding['verdict'].capitalize()}.** ")
        + finding["text"]
        for finding in findings
    ]


Entry = Mapping[str, Any]


def twins_of(networks: Sequence[Entry]) -> dict[str, list[tuple[Entry, Entry]]]:
    """Returns what is said to be better next to what it is compared with, by kind of finding."""
    found: dict[str, list[tuple[Entry, Entry]]] = {"ereg": [], "folded": [], "way": []}
    for entry in networks:
        spec = entry["spec"]
        others = {
            "ereg": _twin(networks, entry, entropy_regularized=False, temperature="none")
            if spec["entropy_regularized"]
            else None,
            "folded": _twin(networks, entry, norm="none", final_norm="none")
            if spec["norm"].startswith("foldable")
            else None,
            "way": _twin(networks, {**entry, "way": ""}) if _way(entry) else None,
        }
        for kind, other in others.items():
            if other is not None:
                found[kind].append((entry, other))
    return found


class Judged:
    """All comparisons of a report, which share the 5 % of its test."""

    def __init__(self, twins: Mapping[str, Sequence[tuple[Entry, Entry]]]) -> None:
        pairs = [pair for several in twins.values() for pair in several]
        count = len(pairs) + len(twins["ereg"])
        entries = [entry for pair in pairs for entry in pair]
        self._perplexity = Pool(map(_logarithms, entries), comparisons=count)
        self._overload = Pool(map(_overload, entries), comparisons=count)

    def perplexity(self, better: Entry, worse: Entry) -> Difference:
        """Whether one has the lower perplexity, in logarithms; within 2 % they are level."""
        pair = _logarithms(better), _logarithms(worse)
        return self._perplexity.judge(*pair, margin=math.log(1.02))

    def overload(self, less: Entry, more: Entry) -> Difference:
        """Whether fewer heads lie in the last quarter of log T; within 5 points it is level."""
        return self._overload.judge(_overload(less), _overload(more), margin=0.05)


def _logarithms(entry: Entry) -> Series:
    """Of the perplexity of every run that ended; infinite where it diverged."""
    values = {}
    for run in entry["runs"]:
        if run["status"] == "diverged":
            values[run["seed"]] = math.inf
        elif run["status"] == "finished" and run["perplexity"] is not None:
            values[run["seed"]] = math.log(run["perplexity"])
    return _series(entry, values)


def _overload(entry: Entry) -> Series:
    # Against the largest entropy each network reaches, as the paper has it, a network whose heads
    # all sit low would count as overloaded too; log T is the same for both.
    shares = (entry["entropy"] or {}).get("overloaded_share") or {}
    return _series(entry, {int(seed): share for seed, share in shares.items()})


def _series(entry: Entry, values: dict[int, float]) -> Series:
    spec = entry["spec"]
    return Series(entry["name"], values, family_of(spec["norm"], spec["shaped_attention"]))


def _twin(networks: Sequence[Entry], entry: Entry, **changes: Any) -> Entry | None:
    """The network that differs from `entry` in nothing but these fields of its spec."""
    wanted = {**entry["spec"], **changes}
    same_way = (other for other in networks if _way(other) == _way(entry))
    return next((other for other in same_way if other["spec"] == wanted), None)


def _way(entry: Entry) -> str:
    way: str = entry.get("way", "")
    return way
