"""The table of a path of networks, each one change away from the one before."""

from typing import Any

import pytest

from aero.internals.errors import TrainingError
from benchmarks.paper.cells import plan_target
from benchmarks.paper.document import target_section
from benchmarks.paper.outcome import collect_target
from benchmarks.paper.targets import read_target

STEPS = ["SM+LN+G", "SM+LN+R", "SM+R"]
DESCRIPTION = {"title": "t", "paper": "p", "show": ["gigabytes"], "rows": STEPS, "steps": STEPS}


def table(*numbers: tuple[float, float] | None) -> list[str]:
    """The lines for networks of these gigabytes and perplexities; None is without a run."""
    outcome: dict[str, Any] = collect_target(
        plan_target(read_target("probe", DESCRIPTION), "mini"), "no/runs"
    )
    for row, found in zip(outcome["rows"], numbers, strict=True):
        for name, value in zip(("gigabytes", "perplexity"), found or (), strict=False):
            row["statistics"][name] = {"mean": value, "standard_deviation": None}
    lines = target_section(outcome).splitlines()
    start = lines.index("| one change per row | GB, spu-2024 | times fewer | perplexity | change |")
    return lines[start + 2 : start + 5]


def test_each_row_stands_against_the_one_before():
    assert table((2.4, 60.0), (1.2, 63.0), (0.8, 56.7)) == [
        "| SM+LN+G | 2.400 | - | 60.00 | - |",
        "| SM+LN+R | 1.200 | 2.00 | 63.00 | +5.0 % |",
        "| SM+R | 0.800 | 1.50 | 56.70 | -10.0 % |",
    ]


def test_a_row_without_runs_leaves_its_place_and_the_next_one_open():
    assert table((2.4, 60.0), None, (0.8, 56.7)) == [
        "| SM+LN+G | 2.400 | - | 60.00 | - |",
        "| SM+LN+R | - | - | - | - |",
        "| SM+R | 0.800 | - | 56.70 | - |",
    ]


def test_a_step_that_is_no_row_is_refused():
    with pytest.raises(TrainingError, match="probe: steps has no row 'SM'"):
        read_target("probe", {**DESCRIPTION, "steps": ["SM"]})
