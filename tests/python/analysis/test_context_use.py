"""Whether a network uses its context, against counts made one token at a time."""

import math

import numpy as np
import pytest

from aero.analysis.context_use import ContextUse, context_text, repeated_bigrams


@pytest.mark.parametrize("vocabulary", [2, 5, 50_000])
@pytest.mark.parametrize("length", [1, 2, 3, 40])
def test_a_bigram_is_repeated_if_it_stood_earlier_in_its_window(vocabulary, length):
    windows = np.random.default_rng(length).integers(vocabulary, size=(6, length))
    expected = np.zeros((6, length - 1), dtype=bool)
    for row, window in enumerate(windows.tolist()):
        seen = set()
        for at in range(1, length):
            pair = (window[at - 1], window[at])
            expected[row, at - 1] = pair in seen
            seen.add(pair)
    np.testing.assert_array_equal(repeated_bigrams(windows), expected)


def test_no_window_has_no_bigrams():
    assert repeated_bigrams(np.zeros((0, 4), dtype=np.int64)).shape == (0, 3)


def test_positions_stand_together_in_ranges_that_double():
    use = ContextUse(tuple(map(float, range(1, 12))), (1,) * 11, 0.0, 0)
    assert [(a, b) for a, b, _ in use.loss_by_position] == [(1, 1), (2, 3), (4, 7), (8, 11)]
    assert [loss for *_, loss in use.loss_by_position] == [1.0, 2.5, 5.5, 9.5]


def test_what_was_never_predicted_has_no_loss():
    use = ContextUse((1.0, 0.0), (2, 0), repeated_nll=0.0, repeated_tokens=0)
    assert math.isnan(use.loss_on_repeated) and use.loss_on_new == 0.5
    assert math.isnan(use.loss_by_position[1][2])
    text = context_text(use.losses())
    assert "1 0.50" in text and "repeated bigrams -" in text and "new tokens 0.50" in text
