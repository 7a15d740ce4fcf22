"""Tables of questions and charts of the manual say what the results say."""

from __future__ import annotations

import re
import statistics
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from .ledger_sources import ROOT, claimed, front, judged_alone, target_of

#: Table -> what leads from its page to the repository.
PAGES = {
    "answers_front": "docs/results.md",
    "answers_front_steps": "docs/results.md",
    "answers_start": "docs/explanation/start.md",
    "answers_retraining": "docs/how_to/train.md",
}


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "tools")


def test_an_answer_has_the_means_effect_interval_and_verdict_of_its_claim() -> None:
    import answers

    line = next(
        line
        for line in answers.answers("answers_front", "../").splitlines()
        if line.startswith("| The same, 3.3 million tokens? |")
    )
    claim = "Without any activation, at equal tokens"
    effect, low, high = claimed("front_mini", "front_long", claim)
    ours = front("SM+ScFuFFN, 4 layers of 320", "front_long")[0]
    theirs = front("SM+LN+G", "front_long")[0]
    (judged,) = (
        each
        for each in target_of("front_mini", "front_long")["claims"]
        if each["claim"].startswith(claim)
    )
    word = judged["differences"][0]["verdict"]
    says = {"holds": "yes", "does not hold": "no", "undecided": "not known", "level": "as good"}
    assert f"| {says[word]}: {ours:.1f} against {theirs:.1f} |" in line
    assert f"| {effect:+.1f} % ({low:+.1f} to {high:+.1f}) | {word} |" in line


@pytest.mark.parametrize(("name", "page"), PAGES.items())
def test_every_question_has_a_row_with_a_link_that_exists(name: str, page: str) -> None:
    import answers

    text = (ROOT / page).read_text("utf-8")
    assert f"<!-- generated: {name} -->" in text
    table = answers.answers(name, "../" * page.count("/"))
    rows = table.strip().splitlines()[2:]
    assert len(rows) == len(answers.TABLES[name])
    for link in re.findall(r"\]\(([^)]+)\)", table):
        assert ((ROOT / page).parent / link).exists(), link


def test_an_effect_agrees_with_the_perplexities_beside_it() -> None:
    import answers
    import committed

    for questions in answers.TABLES.values():
        for each in questions:
            found = committed.compared(each.stem, each.target, each.claim, each.part)
            ours, theirs = found.means
            assert found.effect == pytest.approx(100 * (theirs / ours - 1), abs=1e-6), each.text
            assert found.low < found.effect < found.high
            assert (found.verdict == "holds") == (found.low > 0)


def test_a_network_beside_the_reference_has_its_mean_and_no_effect() -> None:
    import counted
    from committed import content

    table = counted.side_by_side("norms", "FN")
    (row,) = (row for row in content("norms")["rows"] if row["norm"] == "FN")
    mean = statistics.mean(map(_perplexity, row["losses"]))
    assert re.search(rf"^\| FN \| {mean:.2f} ± [\d.]+ \|  \|  \|$", table, re.MULTILINE)


def _perplexity(loss: float) -> float:
    return 2.718281828459045**loss


def test_every_chart_is_on_a_page_and_is_a_picture_with_words() -> None:
    import charts

    for place, (about, _) in charts.CHARTS.items():
        page, name = place.rsplit("/", 1)
        text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
        assert text.count(f"<!-- generated: chart_{name} -->") == 1
        assert charts.shown(place) == f"![{about}]({Path(page).name}/{name}.svg)"
    for picture in charts.pictures().values():
        root: Any = ElementTree.fromstring(picture)
        assert root.tag.endswith("svg") and len([*root.iter()]) > 50


def test_the_chart_of_the_readme_is_drawn_from_the_results() -> None:
    import charts

    shown = ElementTree.fromstring(charts.README_PICTURE.read_text("utf-8"))
    (words,) = (each.text for each in shown.iter() if each.tag.endswith("description"))
    assert words == charts.gaps_in_words(), "run: python docs/tools/charts.py"
    crossover = target_of("crossover_mini", "crossover")
    rows = {row["name"]: row["statistics"]["perplexity"] for row in crossover["rows"]}
    gap = 100 * (rows["SM+ScFuFFN, 1 head, 13 M"]["mean"] / rows["SM+LN+G, 13 M"]["mean"] - 1)
    assert f"{gap:+.1f} % at 13.1; ReLU" in words


def test_with_the_spread_of_each_target_alone_few_verdicts_differ_and_none_turns_round() -> None:
    changed, count = judged_alone()  # fails where one would hold in place of failing
    assert 0 < changed < count / 10
