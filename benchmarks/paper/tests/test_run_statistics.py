"""Statistics of a run, next to numbers worked out by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from tests.python.run_records import run_info

from aero.internals.run_files import EntropyLine, Metrics
from benchmarks.paper.run_statistics import STATISTICS

LOG_T = math.log(128)


def of_a_run(name: str, *, shares: Any = None, **learned: Any) -> float | None:
    """A statistic of a run of three layers whose heads end at these shares of log T."""
    before = [[LOG_T * 0.9] * 2] * 3
    after = before if shares is None else [[LOG_T * share for share in layer] for layer in shares]
    lines = [
        EntropyLine(step=0, head_entropy=before, learned={k: v[0] for k, v in learned.items()}),
        EntropyLine(step=9, head_entropy=after, learned={k: v[-1] for k, v in learned.items()}),
    ]
    record = SimpleNamespace(
        spec=SimpleNamespace(context_length=128, num_layers=3),
        metrics=Metrics([], [], lines),
        info=run_info(),
        evaluation=None,
        analysis=None,
    )
    return STATISTICS[name].read(record)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mean_entropy", 0.5),
        ("early_entropy", 0.7),
        ("deep_entropy", 0.2),
        ("second_layer_fall", 0.1),
        ("entropy_fall", 0.4),
        ("share_collapsed", 1 / 6),
        ("share_overloaded", 2 / 6),
        # Of the largest observed entropy, 0.8: the limits are 0.2, 0.4 and 0.6.
        ("share_lowest", 1 / 6),
        ("share_middle", 2 / 6),
        ("share_highest", 3 / 6),
    ],
)
def test_entropies(name: str, expected: float) -> None:
    shares = [[0.61, 0.79], [0.4, 0.8], [0.1, 0.3]]
    assert of_a_run(name, shares=shares) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("alpha_rise", 2.0), ("alpha_peak", 0.5), ("beta_fall", 0.5)],
)
def test_scales_of_the_ffn(name: str, expected: float) -> None:
    learned = {"alpha": [[9.0, 1.0, 1.0], [1.0, 4.0, 3.0]], "beta": [[1.0] * 3, [1.5, 2.0, 1.0]]}
    assert of_a_run(name, **learned) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("largest_slope", 0.3), ("early_slope_peak", 0.2), ("deep_slope_low", -0.3)],
)
def test_slopes(name: str, expected: float) -> None:
    slopes = [[0.2, 0.0, -0.1], [0.1, 0.2, -0.3]]
    assert of_a_run(name, negative_slope=slopes) == pytest.approx(expected)


def test_what_a_run_lacks_is_none() -> None:
    assert of_a_run("alpha_peak") is None
    assert of_a_run("perplexity") is None
