"""Pareto fronts, colours, figures as files."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from aero import analysis
from aero.internals.palette import NETWORK_COLORS, PART_COLORS
from aero.internals.pareto import pareto_front


@pytest.fixture
def axes():
    return Figure().subplots()


numbers = st.floats(0.1, 100.0) | st.sampled_from([1.0, 2.0, math.nan, math.inf])
points = st.lists(st.tuples(st.floats(0.1, 100.0), numbers), max_size=12)


@given(points)
def test_the_front_is_exactly_the_points_that_nothing_beats(found):
    front = pareto_front(found)
    for index, (x, y) in enumerate(found):
        if not math.isfinite(y):
            assert index not in front
            continue
        beaten = any(a <= x and b <= y and (a, b) != (x, y) for a, b in found if math.isfinite(b))
        assert (index in front) != beaten
    assert [found[index] for index in front] == sorted(found[index] for index in front)


def test_pareto_draws_means_ranges_and_the_front_as_steps(axes):
    analysis.plot_pareto(
        [25.0, 6.0, 8.0], [[30.0, 32.0], [40.0, 40.0], [45.0]], ["a", "b", "c"], axes=axes
    )
    bars = axes.containers[0]
    np.testing.assert_array_equal(bars[0].get_xydata(), [[25, 31], [6, 40], [8, 45]])
    np.testing.assert_array_equal(bars[2][0].get_segments()[0], [[25, 30], [25, 32]])
    (steps,) = [line for line in axes.lines if line.get_linestyle() == "--"]
    np.testing.assert_array_equal(steps.get_xydata(), [[6, 40], [25, 31]])
    assert [text.get_text() for text in axes.texts] == ["better", "b", "a"]
    assert axes.get_xscale() == "linear"


def test_the_arrow_to_better_points_to_the_corner_of_little_cost_and_loss(axes):
    analysis.plot_pareto([25.0, 6.0], [[30.0], [40.0]], ["a", "b"], axes=axes)
    arrow = axes.texts[0]
    assert arrow.get_text() == "better"
    assert arrow.xy < (0.02, 0.02) < arrow.get_position()


def test_every_series_can_have_its_own_front(axes):
    analysis.plot_pareto(
        [1.0, 2.0, 3.0, 1.0, 2.0], [[9.0], [8.0], [8.5], [5.0], [6.0]], [*"abcde"],
        series=["x", "x", "x", "y", "y"], front_per_series=True, axes=axes,
    )  # fmt: skip
    lines = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert [line.get_xydata().tolist() for line in lines] == [[[1, 9], [2, 8]], [[1, 5]]]
    assert len({line.get_color() for line in lines}) == 2
    assert [text.get_text() for text in axes.texts] == ["better", "a", "b", "d"]


def test_a_series_has_its_colour_in_every_panel(axes):
    def colours(names):
        drawn = analysis.plot_pareto(
            range(1, len(names) + 1),
            [[30.0]] * len(names),
            names,
            series=names,
            series_order=["a", "b", "c"],
            axes=axes,
        )
        handles, labels = drawn.get_legend_handles_labels()
        found = {
            name: handle.lines[0].get_color() for name, handle in zip(labels, handles, strict=True)
        }
        axes.clear()
        return found

    both, last = colours(["a", "c"]), colours(["c"])
    assert both == last and len({*both.values()}) == 3


def test_pareto_goes_logarithmic_where_costs_differ_more_than_tenfold(axes):
    analysis.plot_pareto([1.0, 11.0], [[2.0], [1.0]], ["a", "b"], series=["x", "y"], axes=axes)
    assert axes.get_xscale() == "log"
    assert axes.get_legend_handles_labels()[1] == ["x", "y"]


@pytest.mark.parametrize("largest", [2.6, 40.0, 3e4])
def test_numbers_of_a_logarithmic_axis_stand_apart(axes, largest):
    analysis.plot_pareto([0.25, largest], [[3.0], [2.0]], ["a", "b"], axes=axes)
    FigureCanvasAgg(axes.figure).draw()
    low, high = axes.get_xlim()
    ticks = [*axes.xaxis.get_major_ticks(), *axes.xaxis.get_minor_ticks()]
    shown = [t.label1 for t in ticks if t.label1.get_text() and low <= t.get_loc() <= high]
    assert len(shown) >= 2 and all(float(text.get_text()) for text in shown)
    boxes = sorted((text.get_window_extent() for text in shown), key=lambda box: box.x0)
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_a_network_with_a_diverged_seed_is_not_on_the_front(axes):
    analysis.plot_pareto([1.0, 2.0], [[9.0, math.nan], [8.0]], ["a", "b"], axes=axes)
    assert [text.get_text() for text in axes.texts] == ["better", "b"]


def lightness(color):
    """L* of CIELAB, 0 to 100."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    luminance = np.dot([0.2126, 0.7152, 0.0722], linear)
    return 116 * np.cbrt(luminance) - 16


def seen_without_green_cones(color):
    """Deuteranopia after Vienot, Brettel and Mollon (1999), linear RGB."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    red_green = 0.29275 * linear[0] + 0.70725 * linear[1]
    blue = -0.02234 * linear[0] + 0.02234 * linear[1] + linear[2]
    return np.array([red_green, red_green, blue])


def test_network_colours_differ_without_green_cones_too():
    seen = [seen_without_green_cones(color) for color in NETWORK_COLORS]
    nearest = min(
        float(np.abs(first - second).max())
        for index, first in enumerate(seen)
        for second in seen[:index]
    )
    # Red and green of one lightness, a pair that cannot be told apart, differ less.
    confused = seen_without_green_cones("#d62728") - seen_without_green_cones("#2ca02c")
    assert nearest > 1.5 * float(np.abs(confused).max())


def test_every_colour_can_be_seen_on_white():
    assert max(map(lightness, NETWORK_COLORS)) < 75
    assert max(map(lightness, PART_COLORS.values())) < 92
