"""The figure of savings shows the numbers that it is given."""

import math

import pytest
from matplotlib.figure import Figure

from aero import analysis


@pytest.fixture
def axes():
    return Figure().subplots()


def test_bars_are_the_values_and_texts_the_factors(axes):
    analysis.plot_stepwise_savings(["a", "b"], [8.0, 2.0], unit="GB", title="t", axes=axes)
    assert [patch.get_width() for patch in axes.patches] == [8.0, 2.0]
    assert [text.get_text() for text in axes.texts] == ["8.00", "2.00 (4.00x less)"]
    assert not axes.lines
    assert (axes.get_title(), axes.get_xlabel()) == ("t", "GB")


def test_published_values_are_points_where_there_are_any(axes):
    analysis.plot_stepwise_savings(
        ["a", "b"], [8, 2], published=[9.0, math.nan], unit="s", axes=axes
    )
    assert axes.lines[0].get_xdata()[0] == 9.0
    assert math.isnan(axes.lines[0].get_xdata()[1])
    # Bars, points and texts are inside the panel.
    assert axes.get_xlim()[1] > 9.0
