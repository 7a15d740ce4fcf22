"""The pictures of the label grammar."""

import sys

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from .ledger_sources import ROOT

sys.path.append(str(ROOT / "docs" / "tools"))

import label_pictures


@pytest.mark.parametrize("word", label_pictures.EXAMPLES)
def test_no_arrow_crosses_the_words_of_a_part(word):
    figure = label_pictures.figure_of(word)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    notes = [note for note in figure.axes[0].texts if getattr(note, "arrow_patch", None)]
    words = [text for text in figure.axes[0].texts if text.get_text()]
    assert len(notes) == len(words) + 1 >= 4
    for note in notes:
        arrow = note.arrow_patch.get_window_extent(canvas.get_renderer())
        crossed = [t.get_text() for t in words if t.get_window_extent().overlaps(arrow)]
        assert crossed == []
