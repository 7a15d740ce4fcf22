"""Rows whose tokens follow from the operations of another row, and what a taught run counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.python.refusals import assert_refused
from tests.python.run_records import run_info

from aero.architecture import ArchitectureSpec
from aero.internals.errors import TrainingError
from aero.internals.records import as_dict, as_record
from aero.internals.run_files import Metrics, RunInfo
from aero.report.runs import RunRecord
from benchmarks.paper.cells import Cell, TargetPlan, plan_target
from benchmarks.paper.run_statistics import STATISTICS, measure
from benchmarks.paper.targets import read_target

# By hand: 6 layers of 128 channels, T = 128, 1,024 words; per token and layer 8 d d in attention,
# 4 d F in the FFN and 2 T (d + d) in scores and values, and 2 d V in the head.
BASELINE = 6 * (8 * 128 * 128 + 4 * 128 * 512 + 2 * 128 * 256) + 2 * 128 * 1024
# Without the FFN's hidden layer 2 d d are left of it.
LINEAR = 6 * (8 * 128 * 128 + 2 * 128 * 128 + 2 * 128 * 256) + 2 * 128 * 1024
STEP = 2048
BASELINE_ROW = {"label": "SM+LN+G", "dataset": "front", "seeds": 1}


def plan(*rows: dict[str, Any], settings: list[str] | None = None) -> TargetPlan:
    description = {"title": "t", "paper": "p", "show": ["perplexity"], "baseline": "SM+LN+G"}
    target = read_target("probe", {**description, "rows": [BASELINE_ROW, *rows]})
    return plan_target(target, "mini", settings=settings or [])


def first(found: TargetPlan, name: str) -> Cell:
    return found.cells_by_row[name][0]


LINEAR_ROW = {
    "name": "equal", "label": "SM+ScFuFFN", "dataset": "front", "flops_of": "SM+LN+G", "seeds": 1,
}  # fmt: skip


def test_a_row_of_equal_flops_gets_the_whole_steps_that_the_other_row_pays_for():
    cell = first(plan(LINEAR_ROW), "equal")
    steps = 400 * BASELINE // LINEAR  # the baseline's 400 steps
    assert steps > 600
    assert cell.tokens == cell.recipe.training.tokens == steps * STEP


def test_it_follows_a_change_of_the_other_rows_tokens():
    cell = first(plan(LINEAR_ROW, settings=[f"training.tokens={40 * STEP}"]), "equal")
    assert cell.tokens == 40 * BASELINE // LINEAR * STEP


def test_a_network_of_the_same_size_gets_the_same_tokens():
    row = {**LINEAR_ROW, "label": "SM+LN+R"}
    found = plan(row)
    assert first(found, "equal").tokens == first(found, "SM+LN+G").tokens == 400 * STEP


def test_a_student_pays_for_its_teachers_training_and_passes():
    teacher = {**BASELINE_ROW, "name": "teacher"}
    long = {**BASELINE_ROW, "name": "long", "tokens_factor": 4}
    student = {**LINEAR_ROW, "flops_of": "long", "distill_from": "teacher"}
    cell = first(plan(teacher, long, student), "equal")
    # Of 1,600 steps of the baseline 400 train the teacher, and the student's take a pass of it.
    assert cell.tokens == (1600 - 400) * 3 * BASELINE // (3 * LINEAR + BASELINE) * STEP
    assert cell.origins["distill_from"].tokens == 400 * STEP


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"distill_from": "SM+LN+G"}, ("SM+ScFuFFN", "one step of 2048", "leave 0")),
        ({"flops_of": "SM"}, ("probe: flops_of", "it has SM+LN+G", "no row 'SM'")),
        ({"flops_of": "equal"}, ("probe: flops_of", "no row 'equal'")),
        ({"tokens_factor": 2}, ("equal has flops_of", "no tokens_factor")),
        ({"start_from": "SM+LN+G"}, ("equal has flops_of", "no start_from")),
    ],
)
def test_budgets_that_cannot_be_read_are_refused(
    change: dict[str, Any], named: tuple[str, ...]
) -> None:
    assert_refused(lambda: plan({**LINEAR_ROW, **change}), *named, error=TrainingError)


def test_a_row_of_equal_flops_changes_against_the_row_that_it_is_equal_to():
    target = plan({**BASELINE_ROW, "name": "long", "tokens_factor": 4}, LINEAR_ROW).target
    baseline = target.baseline_of(target.rows[-1])
    assert baseline is not None and baseline.name == "SM+LN+G"
    # Their seeds see other texts after the shorter one's end: they are not paired.
    assert target.rows[-1].setting != baseline.setting


def record(
    steps: int, teacher: dict[str, Any] | None, source: dict[str, Any] | None = None
) -> RunRecord:
    spec = ArchitectureSpec.from_label("SM+ScFuFFN", model="mini", vocab_size=1024)
    entries: dict[str, Any] = {"steps_done": steps, "tokens_per_step": STEP}
    if teacher is not None:
        entries["distilled_from"] = {"path": "teacher", **teacher}
    if source is not None:
        entries["from"] = {"annealing": {"schedule": "linear"}, **source}
    info = as_record({**as_dict(run_info()), **entries}, RunInfo, "run.json")
    return RunRecord(Path("none"), info, spec, Metrics([], [], []), None, None, None)


@pytest.mark.parametrize(
    ("teacher", "tokens", "flops"),
    [
        (None, 100 * STEP, 300 * STEP * LINEAR),
        (
            {"tokens": 7 * STEP, "flops_per_token": BASELINE},
            107 * STEP,
            300 * STEP * LINEAR + 100 * STEP * BASELINE + 21 * STEP * BASELINE,
        ),
        # Of a teacher from elsewhere nobody knows what it took.
        ({"tokens": None, "flops_per_token": None}, None, None),
        ({"tokens": 7 * STEP}, 107 * STEP, None),
    ],
)
def test_tokens_and_flops_of_a_run_are_its_teachers_too(teacher, tokens, flops):
    found = record(100, teacher)
    assert measure("tokens", found) == tokens
    assert measure("training_flops", found) == flops


@pytest.mark.parametrize(
    ("source", "teacher", "tokens"),
    [
        ({"path": "source", "tokens": 7 * STEP}, None, 107 * STEP),
        ({"path": "source", "tokens": 7 * STEP}, {"tokens": 5 * STEP}, 112 * STEP),
        # One network is both: its training counts once.
        ({"path": "teacher", "tokens": 7 * STEP}, {"tokens": 7 * STEP}, 107 * STEP),
        ({"path": "source", "tokens": None}, None, None),
        ({"path": "source"}, {"tokens": 5 * STEP}, None),
    ],
)
def test_tokens_of_a_run_are_its_sources_too_and_its_flops_are_not_known(source, teacher, tokens):
    found = record(100, teacher, source)
    assert measure("tokens", found) == tokens
    assert measure("training_flops", found) is None


def test_the_link_of_the_paper_takes_its_bytes_and_its_rounds():
    found = record(1, None)
    minutes = measure("minutes_link", found)
    # 0.947 GB, about half of them each way at 100 Mbit/s, and 4,634 messages of 40 ms.
    assert minutes == pytest.approx((0.947e9 / 2 * 8 / 100e6 + 4634 * 0.04) / 60, rel=0.02)
    assert STATISTICS["minutes"].heading == "minutes, spu-2024, fitted"
