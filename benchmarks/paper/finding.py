"""A finding: a claim, the verdict on it and the numbers behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from aero.report.seeds import Difference, Verdict

#: Verdict -> its words in a table.
VERDICTS: Mapping[str, str] = {
    "holds": "holds",
    "holds in part": "holds in part",
    "does not hold": "does not hold",
    "level": "level",
    "undecided": "not decided",
    "not tested": "not tested at this scale",
}


@dataclass(frozen=True)
class Finding:
    """One finding.

    Attributes:
        name: a word to refer to it by.
        text: the claim in plain words.
        verdict: of `aero.report.seeds`.
        values: the numbers behind it.
        where: its place in the paper, if the paper claims it.
        differences: the evidence of seeds, one per comparison; perplexities' are logarithms.
        reasons: the same in words, with the means.
    """

    name: str
    text: str
    verdict: Verdict
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
