"""Networks that take about equally long, compared."""

import math

import pytest

from benchmarks.paper.equal_time import TimedNetwork, compare_at_equal_time


def test_the_best_other_label_within_the_bounds_is_chosen() -> None:
    slow, near, worse, own = (
        TimedNetwork("A", 100.0, 5.0),
        TimedNetwork("B", 110.0, 4.0),
        TimedNetwork("C", 95.0, 4.5),
        TimedNetwork("A", 100.0, 1.0),
    )
    far = TimedNetwork("D", 110.1, 2.0)
    found = compare_at_equal_time([slow, near, worse, own, far])
    assert found[0].best is near
    assert found[0].perplexity_change == pytest.approx(-0.2)
    assert found[0].time_ratio == pytest.approx(1.1)
    alone = compare_at_equal_time([slow, far])[0]
    assert alone.best is None
    assert alone.perplexity_change is alone.time_ratio is None
    assert alone.cells()["best that takes as long"] == "none"
    assert compare_at_equal_time([slow, far], within=0.101)[0].best is far
    for within in (-0.001, 1.001, math.nan):
        with pytest.raises(ValueError, match=f"from 0 to 1, got {within}"):
            compare_at_equal_time([slow], within=within)
