"""A finding: a sentence, the verdict on it and the numbers behind it.

Tables of costs and retrained targets speak in findings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

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
