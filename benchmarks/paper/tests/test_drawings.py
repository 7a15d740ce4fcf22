"""Figures of the study show the numbers that they are given."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from benchmarks.paper.drawings import (
    plot_learned_scales,
    plot_learned_slopes,
    plot_nan_counts,
    plot_sweep,
    plot_thresholds_by_layer,
)


@pytest.fixture
def axes():
    return Figure().subplots()


def test_a_sweep_shows_the_mean_the_range_and_every_seed(axes):
    plot_sweep([0.0, 0.2], [[30.0, 34.0], [29.0]], xlabel="margin", ylabel="y", axes=axes)
    line, *seeds = axes.lines
    np.testing.assert_array_equal(line.get_xydata(), [[0.0, 32.0], [0.2, 29.0]])
    assert [list(map(float, dots.get_ydata())) for dots in seeds] == [[30.0, 34.0], [29.0]]
    band = axes.collections[0].get_paths()[0].vertices
    assert {(0.0, 30.0), (0.0, 34.0), (0.2, 29.0)} <= {(x, y) for x, y in band.tolist()}


def test_slopes_have_a_line_per_layer_and_shared_ones_a_single_line(axes):
    plot_learned_slopes([0, 5], [[0.1, 0.2, 0.3], [0.0, -0.1, 0.0]], title="", axes=axes)
    assert axes.get_legend_handles_labels()[1] == ["layer 0", "layer 1", "layer 2"]
    np.testing.assert_array_equal(axes.lines[1].get_ydata(), [0.2, -0.1])
    shared = Figure().subplots()
    plot_learned_slopes([0, 5], [[0.1], [0.0]], title="", axes=shared)
    assert shared.get_legend_handles_labels()[1] == ["all layers"]


def test_nan_counts_stay_zero_where_a_layer_is_whole(axes):
    plot_nan_counts([0, 5, 9], [[0, 0], [0, 3], [0, 4]], title="", axes=axes)
    assert [list(line.get_ydata()) for line in axes.lines] == [[0, 0, 0], [0, 3, 4]]
    assert axes.get_ylim()[0] == 0 and axes.get_ylim()[1] > 4


def test_thresholds_by_layer_show_mean_and_standard_deviation_over_heads(axes):
    plot_thresholds_by_layer([[0.2, 0.4], [0.5, 0.5]], title="", axes=axes)
    assert [bar.get_height() for bar in axes.patches] == pytest.approx([0.3, 0.5])
    segments = axes.containers[-1][2][0].get_segments()
    assert segments[0][:, 1] == pytest.approx([0.2, 0.4])
    assert axes.get_ylim() == (0, 1)


def test_scales_are_drawn_over_layers(axes):
    plot_learned_scales([1.0, 3.0], [1.0, 0.8], title="", axes=axes)
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), [1.0, 3.0])
    np.testing.assert_array_equal(axes.lines[1].get_ydata(), [1.0, 0.8])
    assert axes.lines[0].get_xdata().tolist() == [0, 1]


@pytest.mark.parametrize("beta", [[1.0], [[1.0, 0.8]], 1.0])
def test_scales_of_unequal_lengths_are_refused(axes, beta):
    with pytest.raises(ValueError, match="alpha and beta") as error:
        plot_learned_scales([1.0, 3.0], beta, title="", axes=axes)
    assert str(list(np.shape(beta))) in str(error.value) and not axes.lines
