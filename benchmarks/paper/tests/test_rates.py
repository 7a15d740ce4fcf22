"""Targets whose networks are each trained at the best of several learning rates."""

from __future__ import annotations

import dataclasses
import json
import math
from functools import partial
from typing import Any

import pytest
from tests.python.refusals import assert_refused
from typer.testing import CliRunner

from aero.internals.errors import TrainingError
from benchmarks.paper import document
from benchmarks.paper.cells import TargetPlan, plan_target, unique_cells
from benchmarks.paper.command import app
from benchmarks.paper.document import results_document, target_section
from benchmarks.paper.outcome import collect_target
from benchmarks.paper.running import run_cells, run_plans
from benchmarks.paper.targets import read_target

from . import probe

RATES = (1e-6, 1e-2)


def described(**changes: Any) -> dict[str, Any]:
    return {
        "title": "At their best rates",
        "paper": "Beyond the paper",
        "rows": [
            {"label": "SM+R", "context_length": 32},
            {"label": "SM+LR(layer)", "context_length": 32},
        ],
        "show": ["perplexity"],
        "rates": list(RATES),
        **changes,
    }


def plan(corpus: object, output: object = None, **options: Any) -> TargetPlan:
    scale = probe.plan(corpus).scale
    target = read_target("rated", described())
    return plan_target(target, scale, seeds=2, output=output, **options)


@pytest.fixture(scope="module")
def settled(corpus, cache_dir, tmp_path_factory) -> tuple[TargetPlan, Any, list[int]]:
    """The plan after all its runs, their output, and how many cells each round had."""
    output, rounds = tmp_path_factory.mktemp("rates"), []

    def train(cells):
        rounds.append(len(cells))
        run_cells(cells, output=output, cache_dir=cache_dir, say=lambda text: None)

    (found,) = run_plans(lambda: [plan(corpus, output)], train)
    return found, output, rounds


def test_nothing_is_planned_at_a_rate_before_all_rates_were_tried(corpus, tmp_path):
    first = plan(corpus, tmp_path)
    assert first.cells_by_row == {"SM+R": (), "SM+LR(layer)": ()}
    assert [(c.label, c.seed) for c in first.cells] == [
        *[("SM+R", 1)] * 2, *[("SM+LR(layer)", 1)] * 2,
    ]  # fmt: skip
    tried = first.trials["SM+R"]
    assert [cell.recipe.optimizer.learning_rate for (cell,) in tried.values()] == list(RATES)
    assert first.to_come == 4


def test_claims_on_rows_whose_rates_are_being_tried_are_not_tested(corpus, tmp_path):
    claim = {"claim": "c", "where": "w", "holds_if": "perplexity: SM+R < SM+LR(layer)"}
    target = read_target("rated", described(claims=[claim]))
    outcome = collect_target(plan_target(target, probe.plan(corpus).scale), tmp_path)
    assert [entry["verdict"] for entry in outcome["claims"]] == ["not tested"]
    assert "Not run: SM+R (0 of 2 rates tried); SM+LR(layer) (0 of 2 rates tried)." in (
        target_section(outcome)
    )


def test_each_network_is_trained_at_its_best_rate_with_other_seeds(settled):
    found, output, rounds = settled
    assert rounds == [4, 8]
    for row, cells in found.cells_by_row.items():
        tried = {rate: cell.perplexity(output) for rate, (cell,) in found.trials[row].items()}
        best = min(tried, key=tried.get)
        assert best == 1e-2
        assert [c.recipe.optimizer.learning_rate for c in cells] == [best] * 2
        # The seed that chose the rate is not among those that judge it.
        assert [cell.seed for cell in cells] == [2, 3]
    assert found.to_come == 0


def test_the_outcome_holds_what_was_tried(settled):
    found, output, _ = settled
    outcome = collect_target(found, output)
    row = outcome["rows"][0]
    assert row["rates"]["best"] == 1e-2
    assert list(row["rates"]["tried"]) == ["1e-06", "0.01"]
    assert row["rates"]["tried"]["1e-06"] > row["rates"]["tried"]["0.01"]
    assert row["statistics"]["perplexity"]["seeds"] == [2, 3]
    text = target_section(outcome)
    assert "| network | rate | perplexity | seeds |" in text
    assert "| 0.01, the largest tried |" in text
    assert "Perplexity of seed 1 at each rate" in text
    # 4 of trials and 4 of the networks.
    runs = [*output.glob("cells/*/*/run.json")]
    assert len(runs) == 8
    seconds = sum(json.loads(file.read_text())["seconds"] for file in runs)
    assert outcome["training"]["seconds"] == pytest.approx(seconds)
    page = results_document([outcome], command="here")
    assert "| Beyond the paper | 0 | 0 | 0 | 0 | 0 | 0 | 8 of 8 |" in page
    assert "peak learning rate the best of those tried." in page
    row["rates"]["cells"][0]["status"], row["rates"]["tried"]["1e-06"] = "diverged", None
    row["rates"]["cells"][1]["status"], row["rates"]["tried"]["0.01"] = "killed", None
    assert "| SM+R | NaN | - |" in target_section(outcome)


def test_several_seeds_choose_a_rate_by_their_mean(corpus, settled, monkeypatch):
    found, output, _ = settled
    target = read_target("rated", described(trial_seeds=2))
    first = plan_target(target, found.scale, seeds=2, output=output)
    trials = first.trials["SM+R"]
    assert [[c.seed for c in cells] for cells in trials.values()] == [[1, 2], [1, 2]]
    cell = type(trials[1e-6][0])
    values = {(1e-6, 1): 8.0, (1e-6, 2): 9.0, (1e-2, 1): 4.0, (1e-2, 2): 14.0}
    monkeypatch.setattr(cell, "is_done", lambda self, folder: True)
    monkeypatch.setattr(cell, "status", lambda self, folder: "finished")
    monkeypatch.setattr(
        cell,
        "perplexity",
        lambda self, folder: values.get((self.recipe.optimizer.learning_rate, self.seed), 5.0),
    )
    again = plan_target(target, found.scale, seeds=2, output=output)
    judging = again.cells_by_row["SM+R"]
    assert [(c.recipe.optimizer.learning_rate, c.seed) for c in judging] == [(1e-6, 3), (1e-6, 4)]


@pytest.mark.parametrize(
    ("best", "expected"),
    [
        (8e-3, [4e-3, 8e-3, 1.6e-2]),  # the end above, and the rate beyond it is worse
        (1e-3, [5e-4, 1e-3, 2e-3, 4e-3, 8e-3]),
        (1e9, [4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2, 0.128]),  # the end never comes, but trials end
    ],
)
def test_rates_are_tried_beyond_an_end_that_is_the_best(corpus, monkeypatch, best, expected):
    target = read_target("rated", described(rates=[4e-3, 8e-3], widen_rates=True))
    cell = type(plan(corpus).trials["SM+R"][1e-2][0])
    monkeypatch.setattr(cell, "is_done", lambda self, folder: True)
    monkeypatch.setattr(
        cell,
        "perplexity",
        lambda self, folder: 5.0 + abs(math.log(self.recipe.optimizer.learning_rate / best)),
    )
    found = plan_target(target, probe.plan(corpus).scale, seeds=2, output="anywhere")
    assert list(found.trials["SM+R"]) == pytest.approx(expected)
    (chosen,) = {c.recipe.optimizer.learning_rate for c in found.cells_by_row["SM+R"]}
    assert chosen == min(found.trials["SM+R"], key=lambda rate: abs(math.log(rate / best)))
    # Before the declared rates are tried nothing is known about those beyond them.
    monkeypatch.setattr(cell, "is_done", lambda self, folder: False)
    waiting = plan_target(target, probe.plan(corpus).scale, seeds=2, output="anywhere")
    assert list(waiting.trials["SM+R"]) == [4e-3, 8e-3]


def test_a_diverged_trial_is_the_worst(settled, tmp_path, monkeypatch):
    found, output, _ = settled
    (worst,) = found.trials["SM+R"][1e-2]
    monkeypatch.setattr(
        type(worst),
        "perplexity",
        lambda self, folder: float("inf") if self.recipe.optimizer.learning_rate == 1e-2 else 9.0,
    )
    again = plan_target(found.target, found.scale, seeds=2, output=output)
    assert {c.recipe.optimizer.learning_rate for c in again.cells_by_row["SM+R"]} == {1e-6}


def test_a_student_waits_until_its_teacher_has_a_rate(corpus, settled):
    found, output, _ = settled
    rows = [
        {"label": "SM+R", "context_length": 32},
        {"label": "SM+LR(layer)", "context_length": 32, "distill_from": "SM+R"},
    ]
    target = read_target("rated", described(rows=rows))
    before = plan_target(target, found.scale, seeds=2, output=None)
    assert before.trials["SM+LR(layer)"] == {} and before.to_come == 2 + 2 + 2
    after = plan_target(target, found.scale, seeds=2, output=output)
    teacher = after.cells_by_row["SM+R"][0]
    assert all(
        cell.origins == {"distill_from": teacher}
        for (cell,) in after.trials["SM+LR(layer)"].values()
    )


OF_ITS_OWN = {"rows": [{"label": "SM+R", "settings": {"optimizer.learning_rate": 1e-3}}]}
LONGER = {"name": "longer", "label": "SM+R", "tokens_factor": 2}


def rated(corpus, **change):
    return read_target("rated", described(**change))


def rate_of(name):
    rows = [*described()["rows"], {**LONGER, "rate_of": name}]
    return partial(rated, rows=rows)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (partial(rated, rates=[1e-3]), ("rates", "two or more, rising and above 0", "got [0.001]")),
        (partial(rated, rates=[2e-3, 1e-3]), ("rates", "two or more, rising and above 0", "got")),
        (partial(rated, trial_seeds=0), ("trial_seeds", "an integer from 1")),
        (partial(rated, widen_rates=2), ("widen_rates", "true or false")),
        (partial(rated, **OF_ITS_OWN), ("rated", "SM+R", "no optimizer.learning_rate of its own")),
        (rate_of("no row"), ("rate_of", "no row")),
        (rate_of("longer"), ("rate_of", "no row")),
        (
            lambda corpus: plan(corpus, settings=["optimizer.learning_rate=1e-3"]),
            ("rated", "the rates 1e-06, 0.01 itself"),
        ),
    ],
)
def test_rates_that_cannot_be_tried_are_refused(make, named, corpus):
    assert_refused(lambda: make(corpus), *named, error=TrainingError)


def test_the_command_says_what_follows_the_trials(tmp_path):
    found = CliRunner().invoke(
        app, ["start", "--status", "--output", str(tmp_path), "--seeds", "3"]
    )
    assert found.exit_code == 0, found.output
    rows = plan_target("start", "mini").trials
    tried = sum(map(len, rows.values()))
    assert f"0 of {tried} cells done" in found.output
    assert f"then {3 * len(rows)} cells at the rates that these find best" in found.output


def test_trials_of_several_targets_are_trained_once(corpus, tmp_path):
    first = plan(corpus, tmp_path)
    other = dataclasses.replace(first, target=dataclasses.replace(first.target, name="other"))
    assert len(unique_cells([first, other])) == 4


def test_a_rate_that_one_network_alone_tried_has_a_column_in_its_place() -> None:
    def row(name: str, tried: dict[str, float]) -> dict[str, Any]:
        cells = [{"seed": 1, "status": "finished"} for _ in tried]
        return {"name": name, "rates": {"tried": tried, "cells": cells}}

    rows = [row("a", {"0.002": 9.0, "0.008": 8.0}), row("b", {"0.016": 7.0, "0.002": 6.0})]
    assert document._rates({"rows": rows}).splitlines()[2:] == [
        "| network | 0.002 | 0.008 | 0.016 |",
        "| --- | --- | --- | --- |",
        "| a | 9.00 | 8.00 | - |",
        "| b | 6.00 | - | 7.00 |",
    ]


def test_a_row_may_take_the_rate_of_another_one(settled, corpus):
    _, output, _ = settled
    scale = probe.plan(corpus).scale
    longer = {"name": "longer", "label": "SM+R", "context_length": 32, "tokens_factor": 2}
    rows = [*described()["rows"], longer | {"rate_of": "SM+R"}]
    target = read_target("rated", described(rows=rows))

    before = plan_target(target, scale, seeds=2)
    assert before.cells_by_row["longer"] == () and before.to_come == 6
    after = plan_target(target, scale, seeds=2, output=output)
    shorter, cells = after.cells_by_row["SM+R"], after.cells_by_row["longer"]
    assert [cell.seed for cell in cells] == [cell.seed for cell in shorter] == [2, 3]
    rates = {cell.recipe.optimizer.learning_rate for cell in (*shorter, *cells)}
    assert rates == {after.best_rate("SM+R", output)}
    assert cells[0].recipe.training.tokens == 2 * shorter[0].recipe.training.tokens
    # No trial is counted twice, and none is made for the longer row.
    assert len(after.tried()) == len(before.tried()) == 4
    assert not {cell.group for cell in after.tried()} & {cells[0].group}
