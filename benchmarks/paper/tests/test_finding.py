"""The parts of every finding, whoever found it."""

from __future__ import annotations

import json
from typing import get_args

from aero.report.seeds import Difference, Verdict
from benchmarks.paper.finding import VERDICTS, Finding, finding_lines


def test_every_verdict_has_its_words() -> None:
    assert VERDICTS.keys() == {*get_args(Verdict), "holds in part"}


def test_claims_carry_their_place_and_differences_and_other_findings_do_not() -> None:
    claim = Finding("t 1", "A < B", "holds", where="Table 1", differences=(Difference("holds"),))
    assert json.loads(json.dumps(claim.to_dict()))["differences"][0]["verdict"] == "holds"
    assert claim.to_dict()["where"] == "Table 1"
    assert Finding("f", "Text.").to_dict().keys() == {"name", "verdict", "text", "values"}


def test_a_list_names_the_verdict_unless_nothing_is_claimed() -> None:
    found = [Finding("a", "One.", "does not hold"), Finding("b", "Two.")]
    lines = finding_lines(one.to_dict() for one in found)
    assert lines == ["- **Does not hold.** One.", "- Two."]
