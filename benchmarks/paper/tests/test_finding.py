"""The parts of every finding, whoever found it."""

from __future__ import annotations

import json
from typing import get_args

from aero.report.seeds import Difference, Verdict
from benchmarks.paper.finding import VERDICTS, Finding


def test_every_verdict_has_its_words() -> None:
    assert VERDICTS.keys() == {*get_args(Verdict), "holds in part"}


def test_claims_carry_their_place_and_differences_and_other_findings_do_not() -> None:
    claim = Finding("t 1", "A < B", "holds", where="Table 1", differences=(Difference("holds"),))
    assert json.loads(json.dumps(claim.to_dict()))["differences"][0]["verdict"] == "holds"
    assert claim.to_dict()["where"] == "Table 1"
    assert Finding("f", "Text.", "holds").to_dict().keys() == {"name", "verdict", "text", "values"}
