"""Names beside points: readable in every drawing, whatever the panel's size."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from aero import analysis


def drawn(costs, losses, names, *, width=3.2, named=None):
    """Axes after drawing, and the boxes of its names in pixels."""
    figure = Figure(figsize=(width, 3.0), dpi=110, layout="constrained")
    axes = figure.subplots()
    analysis.plot_pareto(costs, [[loss] for loss in losses], names, named=named, axes=axes)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return axes, [Text.get_window_extent(text) for text in axes.texts]


def overlap(one, other):
    both = Bbox.intersection(one, other)
    return 0.0 if both is None else both.width * both.height


def assert_readable(axes, boxes, costs, losses):
    for index, box in enumerate(boxes):
        inside = Bbox.intersection(box, axes.bbox)
        assert inside is not None and inside.width * inside.height == pytest.approx(
            box.width * box.height
        )
        assert all(overlap(box, other) < 0.01 for other in boxes[:index])
        for pixel in axes.transData.transform(np.column_stack([costs, losses])):
            assert not box.contains(*pixel)


# Long names of nearly one loss, as in a front of one ReLU network with one head and with four.
CLOSE = ([0.5, 1.03, 2.54, 0.95], [33.2, 32.3, 34.1, 78.3], ["SM+FN+R, 1 head, demo"] * 4)
CROWDED = (
    [0.4, 0.45, 0.5, 0.52, 0.55, 0.6, 2.8],
    [50.0, 46.0, 50.0, 53.0, 54.0, 47.0, 69.0],
    ["SM+FN+ScFuFFN, wide, head of 64"] * 7,
)


def test_names_of_about_the_same_loss_do_not_meet():
    axes, boxes = drawn(*CLOSE, named=[0, 1])
    assert len(boxes) == 3  # with that of the corner
    assert_readable(axes, boxes, *CLOSE[:2])


def test_a_name_covers_no_point_that_bears_none():
    axes, boxes = drawn(*CROWDED, named=[0, 1])
    assert_readable(axes, boxes, *CROWDED[:2])


def test_only_a_name_away_from_its_point_has_a_line_to_it():
    alone, _ = drawn([1.0, 9.0], [2.0, 1.0], ["a", "b"])
    assert not any(text.arrow_patch.get_visible() for text in alone.texts[1:])
    # A block of 7 x 7 points, the one in its middle named, and a corner that leaves it room.
    costs = [*np.repeat(np.linspace(4.5, 5.5, 7), 7), 1.0]
    losses = [*np.tile(np.linspace(45.0, 55.0, 7), 7), 10.0]
    crowded, boxes = drawn(costs, losses, ["SM+FN+R"] * 50, named=[24])
    assert crowded.texts[1].arrow_patch.get_visible()
    assert_readable(crowded, boxes, costs, losses)


def test_a_figure_that_grows_places_its_names_anew():
    axes, before = drawn(*CLOSE)
    axes.figure.set_size_inches(8.0, 5.0)
    FigureCanvasAgg(axes.figure).draw()
    after = [Text.get_window_extent(text) for text in axes.texts]
    assert_readable(axes, after, *CLOSE[:2])
    assert all(one.bounds != other.bounds for one, other in zip(before, after, strict=True))


@settings(max_examples=15)
@given(
    st.lists(
        st.tuples(st.floats(0.2, 30.0), st.floats(10.0, 90.0)), min_size=1, max_size=5, unique=True
    )
)
def test_a_handful_of_names_always_finds_room(found):
    costs, losses = [x for x, _ in found], [y for _, y in found]
    _, boxes = drawn(
        costs, losses, ["SM+FN+R, demo"] * len(found), width=4.5, named=range(len(found))
    )
    for index, box in enumerate(boxes):
        assert all(overlap(box, other) < 0.01 for other in boxes[:index])
