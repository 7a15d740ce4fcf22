"""The forest plot of the penalty shows every test of its effect, as the results have it."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import pytest

from .ledger_sources import claimed, penalty_tests, said

TOOLS = Path(__file__).parents[2] / "docs" / "tools"


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(TOOLS)


def test_every_test_of_the_penalty_is_there_with_its_verdict() -> None:
    import penalty_effects

    found = penalty_effects.effects()
    counted = Counter(each.verdict for each in found)
    assert [len(found), counted["worse"], counted["better"]] == penalty_tests()


def test_an_effect_and_its_interval_are_those_of_the_claim() -> None:
    import penalty_effects

    (found,) = (e for e in penalty_effects.effects() if e.name.startswith("beside a final"))
    source = claimed("start_again", "start_again", "The penalty adds to scale and final")
    assert [found.effect, found.low, found.high] == pytest.approx(source)


def test_the_demos_effect_is_turned_to_the_same_side() -> None:
    import penalty_effects

    (found,) = (e for e in penalty_effects.effects() if e.name == "the demo without a convolution")
    # 0.5 % higher with the penalty, -3.5 to +4.7: without it 1 / 1.005 of that.
    ends = [100 * (1 / (1 + end / 100) - 1) for end in (0.54, 4.7, -3.5)]
    assert [found.effect, found.low, found.high] == pytest.approx(ends, abs=0.01)
    assert found.low < found.effect < found.high
    (newer,) = (e for e in penalty_effects.effects() if e.name == "the demo")
    ends = [said("demo", f"| SM+ScFuFFN+S4 | perplexity | {end}") for end in ("{} %", "… to {} %")]
    turned = [100 * (1 / (1 + end / 100) - 1) for end in ends]
    assert [newer.effect, newer.low] == pytest.approx(turned, abs=0.06)


def test_the_picture_is_an_svg_that_names_every_row() -> None:
    import penalty_effects

    drawn = ElementTree.fromstring(penalty_effects.forest_plot())
    words = {"".join(text.itertext()).strip() for text in drawn.iter() if text.tag.endswith("text")}
    assert {each.name for each in penalty_effects.effects()} <= words
