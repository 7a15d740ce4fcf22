"""Figures show the numbers they are given, on the scales they promise."""

import math

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure
from tests.python.refusals import assert_refused

from aero import analysis
from aero.analysis.figures.drawing import entropy_colors, layer_colors, network_colors
from aero.analysis.figures.entropy import plot_attention
from aero.analysis.figures.learned import (
    plot_learned_temperatures,
    plot_learned_thresholds,
)
from aero.internals.palette import PART_COLORS


@pytest.fixture
def axes():
    figure = Figure()
    FigureCanvasAgg(figure)
    return figure.subplots()


def panel_colors(axes):
    """The colours of the cells, [L, H, 4]."""
    mesh = axes.collections[0]
    return mesh.to_rgba(mesh.get_array())


def test_equal_entropies_have_equal_colours_whatever_else_a_panel_holds(axes):
    other = Figure().subplots()
    analysis.plot_entropy_heat_map([[0.2, 0.9]], axes=axes)
    analysis.plot_entropy_heat_map([[0.2, 0.3]], axes=other)
    np.testing.assert_array_equal(panel_colors(axes)[0, 0], panel_colors(other)[0, 0])
    assert not np.allclose(panel_colors(axes)[0, 1], panel_colors(other)[0, 1])


def test_a_head_that_looks_everywhere_alike_has_the_last_colour_of_a_heat_map(axes):
    rows = np.log(np.arange(1, 129)) * np.ones((1, 1, 1, 1))
    shares = analysis.summarize_entropies(rows).head_entropy_normalized_visible
    analysis.plot_entropy_heat_map(shares, axes=axes)
    assert (entropy_colors().norm.vmin, entropy_colors().norm.vmax) == (0.0, 1.0)
    np.testing.assert_allclose(panel_colors(axes)[0, 0], entropy_colors().to_rgba(1.0), atol=1e-6)


def drawn(plot, *values, **options):
    return lambda: plot(*values, axes=Figure().subplots(), **options)


def savings(names, values, published=None):
    return drawn(analysis.plot_stepwise_savings, names, values, published=published, unit="GB")


@pytest.mark.parametrize(
    ("draw", "named"),
    [
        (drawn(analysis.plot_entropy_heat_map, [[3.88, 0.5]]), ("shares in [0, 1]", "got 3.88")),
        (drawn(analysis.plot_entropy_heat_map, [1.0]), ("2-D",)),
        (drawn(analysis.plot_layerwise_entropy, [1], [[1], [2]], 8), ("steps", "[N] = [2]", "[1]")),
        (drawn(analysis.plot_quarter_shares, {"a": [1.0]}), ("4 fractions per network",)),
        (drawn(plot_learned_temperatures, np.ones((1, 2, 3))), ("temperature", "[H, T]")),
        (savings(["a"], [1.0, 2.0]), ("values", "[N] = [1] with N > 0", "got [2]")),
        (savings([], []), ("values", "[N] = [0] with N > 0")),
        (savings(["a"], [1.0], []), ("published", "[N] = [1]")),
        (lambda: analysis.plot_pareto([], [], []), ("one entry per network",)),
        (lambda: analysis.plot_pareto([1.0], [[1.0]], ["a", "b"]), ("one entry per network",)),
        (lambda: analysis.plot_pareto([0.0], [[1.0]], ["a"]), ("costs", "positive")),
    ],
)  # fmt: skip
def test_bad_input_names_the_argument(draw, named):
    assert_refused(draw, *named)


def test_heat_map_rows_are_layers_and_nan_heads_are_written_out(axes):
    analysis.plot_entropy_heat_map([[0.1, 0.2, 0.3], [0.5, float("nan"), 0.4]], axes=axes)
    texts = {text.get_position(): text.get_text() for text in axes.texts}
    assert texts[(1, 1)] == "NaN"
    assert texts[(2, 0)] == "0.30"
    assert axes.get_ylim() == (1.5, -0.5)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("head", "layer")


def test_a_network_of_many_heads_has_no_numbers_in_its_cells(axes):
    analysis.plot_entropy_heat_map(np.ones((12, 12)), axes=axes)
    assert len(axes.texts) == 0


def test_quarter_bars_lie_end_to_end_and_add_up_to_all_heads(axes):
    analysis.plot_quarter_shares({"a": [0.1, 0.2, 0.3, 0.4], "b": [0, 0, 1, 0]}, axes=axes)
    first = [container.patches[0] for container in axes.containers]
    assert [patch.get_x() for patch in first] == pytest.approx([0, 10, 30, 60])
    assert first[-1].get_x() + first[-1].get_width() == pytest.approx(100)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]


def test_layerwise_entropy_draws_one_line_per_layer_below_what_they_can_reach(axes):
    history = np.array([[3.0, 2.0, 1.0], [2.5, 1.5, np.nan]])
    analysis.plot_layerwise_entropy([0, 50], history, 128, axes=axes)
    *lines, limit = axes.get_lines()
    for layer, line in enumerate(lines):
        np.testing.assert_array_equal(line.get_xdata(), [0, 50])
        np.testing.assert_array_equal(line.get_ydata(), history[:, layer])
    assert limit.get_ydata()[0] == pytest.approx(np.log(np.arange(1, 129)).mean())
    assert axes.get_ylim()[0] == 0


def test_seeds_share_colour_and_legend_entry_and_a_diverged_run_ends_in_a_cross(axes):
    good = [([1, 2], [5.0, 4.0]), ([1, 2], [5.1, 4.1])]
    broken = [([1, 2, 3], [6.0, 7.0, math.nan])]
    analysis.plot_loss_curves({"a": good, "b": broken}, endings={"b": "NaN at step 3"}, axes=axes)
    lines = axes.get_lines()
    assert lines[0].get_color() == lines[1].get_color() != lines[2].get_color()
    assert axes.get_legend_handles_labels()[1] == ["a", "b (NaN at step 3)"]
    cross = lines[3]
    assert (cross.get_marker(), cross.get_xdata()[0], cross.get_ydata()[0]) == ("x", 2, 7.0)


def test_a_single_loss_is_visible_as_a_point(axes):
    analysis.plot_loss_curves({"a": [([5], [3.0])]}, axes=axes)
    assert axes.get_lines()[0].get_marker() == "."
    analysis.plot_loss_curves({"a": [(range(100), range(100))]}, axes=axes)
    assert axes.get_lines()[-1].get_marker() == ""


def test_byte_bars_end_at_the_total_in_gigabytes_and_leave_out_free_parts(axes):
    parts = {"softmax": 4.5e9, "ffn": 0.25e9, "QK": 0.25e9, "argmax": 0.0, "unheard of": 1e9}
    analysis.plot_bytes_by_kind({"SM": parts}, axes=axes)
    last = axes.containers[-1].patches[0]
    assert last.get_x() + last.get_width() == pytest.approx(6.0)
    widths = {c.get_label(): c.patches[0].get_width() for c in axes.containers}
    assert widths == pytest.approx(
        {"softmax": 4.5, "linear layers": 0.5, "embedding, output, rest": 1.0}
    )
    assert [text.get_text().strip() for text in axes.texts] == ["6"]


def test_a_bar_of_every_part_has_five_colours(axes):
    analysis.plot_bytes_by_kind({"SM": dict.fromkeys(PART_COLORS, 1e9)}, axes=axes)
    assert len(axes.containers) == 5
    assert [text.get_text().strip() for text in axes.texts] == [f"{len(PART_COLORS)}"]


@pytest.mark.parametrize(("shape", "lines"), [((4, 16), 4), ((4,), 1), ((1,), 1)])
def test_temperatures_of_every_shape_are_drawn(axes, shape, lines):
    values = np.linspace(0.5, 1.5, math.prod(shape)).reshape(shape)
    plot_learned_temperatures(values, axes=axes)
    assert len(axes.get_lines()) == lines
    np.testing.assert_array_equal(axes.get_lines()[0].get_ydata(), values.reshape(lines, -1)[0])


def test_thresholds_use_the_whole_range_of_fractions(axes):
    other = Figure().subplots()
    plot_learned_thresholds([[0.25, 0.5]], axes=axes)
    plot_learned_thresholds([[0.25, 0.9]], axes=other)
    np.testing.assert_array_equal(panel_colors(axes)[0, 0], panel_colors(other)[0, 0])


def test_network_colours_are_distinct_and_repeat():
    assert len(set(network_colors(8))) == 8
    assert network_colors(9)[8] == network_colors(1)[0]


def test_text_on_dark_cells_is_white_and_on_light_cells_black(axes):
    analysis.plot_entropy_heat_map([[0.0, 1.0]], axes=axes)
    assert [to_hex(text.get_color()) for text in axes.texts] == ["#ffffff", "#000000"]


def test_layer_colours_stay_readable_on_white():
    colors = layer_colors(12).to_rgba(np.arange(12))
    luminance = colors[:, :3] @ [0.2126, 0.7152, 0.0722]
    assert luminance.max() < 0.8
    assert len({to_hex(color) for color in colors}) == 12
    assert to_rgba(colors[0])[3] == 1.0


def test_without_axes_a_new_figure_is_made(monkeypatch):
    import matplotlib.pyplot as plt

    monkeypatch.setattr(plt, "subplots", lambda: (None, Figure().subplots()))
    assert plot_learned_thresholds([[0.5]], title="x").get_title() == "x"


def test_a_head_that_looks_everywhere_alike_reaches_all_of_its_entropy():
    even = np.tril(np.ones((1, 1, 4, 4))) / np.arange(1, 5)[:, None]
    itself = np.eye(4)[None, None]
    panel = plot_attention(np.concatenate([even, itself], axis=1))
    assert [text.get_text() for text in panel.texts] == ["1.00", "0.00"]
    with pytest.raises(ValueError, match=r"attention must be \[L, H, T, T\], got \[1, 4, 4\]"):
        plot_attention(even[0])


def test_networks_of_one_series_share_a_colour_and_differ_in_dashes():
    axes = Figure().subplots()
    curve = [([1, 2], [3.0, 2.0])]
    analysis.plot_loss_curves(
        {"a": curve, "b": curve, "c": curve}, series=["x", "y", "x"],
        series_order=["z", "x", "y"], axes=axes,
    )  # fmt: skip
    a, b, c = axes.get_lines()
    assert a.get_color() == c.get_color() == "#d55e00" and b.get_color() == "#009e73"
    assert [line.get_linestyle() for line in (a, b, c)] == ["-", "-", "--"]
    with pytest.raises(ValueError, match="one entry per network, 1, got 2"):
        analysis.plot_loss_curves({"a": curve}, series=["x", "y"], axes=axes)
