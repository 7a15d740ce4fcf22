"""The table of the paper's claims in the manual says what the results files say."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from .ledger_sources import claimed, data, tally

TOOLS = Path(__file__).parents[2] / "docs" / "tools"


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    monkeypatch.syspath_prepend(TOOLS)
    import paper_claims

    lines = paper_claims.paper_claims().splitlines()[2:]
    return [re.split(r" *(?<!\\)\| *", line)[1:-1] for line in lines]


def test_every_claim_of_the_paper_has_its_verdict(rows: list[list[str]]) -> None:
    counted = Counter(verdict for *_, verdict, _ in rows)
    words = ("holds", "does not hold", "level", "undecided", "not tested")
    assert [counted[word] for word in words] == tally()
    assert len(rows) == sum(tally())


def test_a_row_has_both_effects_and_the_interval(rows: list[list[str]]) -> None:
    ((_, paper, ours, interval, verdict, cause),) = (
        row for row in rows if row[0].startswith("Taking the activation away from a network with")
    )
    (table,) = (t for t in data("reproduction_mini")["targets"] if t["target"] == "table2")
    published = {row["name"]: row["paper"].get("perplexity") for row in table["rows"]}
    assert paper == f"{100 * (published['SM+LN'] / published['SM+G'] - 1):+.1f} %"
    effect, low, high = claimed("reproduction_mini", "table2", "Taking the activation away")
    assert (ours, interval) == (f"{effect:+.1f} %", f"{low:+.1f} to {high:+.1f}")
    assert (verdict, cause) == ("does not hold", "holds with embeddings of variance 1")


def test_every_failing_claim_has_a_cause_or_is_called_open(rows: list[list[str]]) -> None:
    assert all(cause for *_, verdict, cause in rows if verdict == "does not hold")


def test_every_cause_explains_a_claim_that_fails(
    rows: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(TOOLS)
    import paper_claims

    used = {cause for *_, verdict, cause in rows if verdict == "does not hold"}
    assert {*paper_claims.CAUSES.values()} <= used
