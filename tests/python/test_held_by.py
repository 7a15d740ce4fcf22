"""The manual shows the tests of the threat model behind its sentences, and loses none."""

from __future__ import annotations

import re

import pytest

from .ledger_sources import ROOT

PAGE = (ROOT / "docs" / "explanation" / "threat_model.md").read_text("utf-8")
NAME = re.compile(r"[\w/]+\.py: \w+")


def test_every_test_and_place_of_the_threat_model_is_behind_a_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "tools")
    import held_by

    page = held_by.folded(PAGE)
    assert sorted(NAME.findall(page)) == sorted(NAME.findall(PAGE))
    assert len(NAME.findall(page)) > 30
    sentences = re.sub(r"<abbr[^>]*>", "", page)
    assert not re.search(r"test_\w+\.py", sentences)
