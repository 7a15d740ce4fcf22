"""Statistics of entropies against closed forms."""

import json
import math

import numpy as np
import pytest
from tests.python.refusals import assert_refused

from aero.analysis import summarize_entropies
from aero.analysis.statistics import heads_in_quarter, layerwise_mean, nan_counts, quarter_shares
from aero.analysis.summary import EntropyAccumulator


def uniform_rows(layers: int, batch: int, heads: int, length: int) -> np.ndarray:
    """Entropies of attention that looks at every visible key alike: E_i = log(i + 1)."""
    return np.log(np.arange(1, length + 1)) * np.ones((layers, batch, heads, 1))


@pytest.mark.parametrize("length", [2, 3, 17, 128])
def test_uniform_causal_attention_fills_its_visible_maximum_and_not_log_context(length):
    summary = summarize_entropies(uniform_rows(2, 3, 4, length))
    # Mean of log(1) .. log(T) is log(T!) / T.
    expected = math.lgamma(length + 1) / length
    np.testing.assert_allclose(summary.head_entropy, expected, rtol=1e-12)
    np.testing.assert_allclose(summary.head_entropy_normalized_visible, 1.0, rtol=1e-12)
    np.testing.assert_allclose(
        summary.head_entropy_normalized_context, expected / math.log(length), rtol=1e-12
    )
    np.testing.assert_allclose(
        summary.entropy_by_position[0, 0], np.log(np.arange(1, length + 1)), rtol=1e-12
    )


def test_quarter_edges_belong_to_the_upper_quarter_and_the_maximum_to_the_last():
    assert quarter_shares([0.0, 1.0, 2.0, 3.0, 4.0], 4.0).tolist() == [0.2, 0.2, 0.2, 0.4]
    below = np.nextafter([1.0, 2.0, 3.0], 0.0)
    assert quarter_shares(below, 4.0).tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.0])


def test_observed_and_context_maximum_give_different_quarters():
    entropy = np.array([[0.1, 0.2], [0.3, 0.4]])
    rows = entropy[:, None, :, None] * np.ones((2, 5, 2, 16))
    quarters = summarize_entropies(rows).to_dict()["quarters"]
    assert quarters["observed_max"] == [0.0, 0.25, 0.25, 0.5]
    assert quarters["log_context"] == [1.0, 0.0, 0.0, 0.0]


def test_collapsed_and_overloaded_heads_are_named_by_layer_and_head():
    entropy = np.array([[0.1, 3.9], [2.0, 0.0]])
    rows = entropy[:, None, :, None] * np.ones((2, 1, 2, 8))
    values = summarize_entropies(rows).to_dict()
    assert values["collapsed"] == [[0, 0], [1, 1]]
    assert values["overloaded"] == [[0, 1]]
    assert heads_in_quarter(entropy, 4.0, 2) == [[1, 0]]


def test_heads_without_any_entropy_are_collapsed():
    values = summarize_entropies(np.zeros((1, 1, 3, 4))).to_dict()
    assert values["quarters"]["observed_max"] == [1.0, 0.0, 0.0, 0.0]
    assert values["collapsed"] == [[0, 0], [0, 1], [0, 2]]
    assert values["overloaded"] == []


def test_masked_rows_do_not_count_even_if_they_hold_nan():
    generator = np.random.default_rng(0)
    rows = generator.random((2, 3, 4, 7))
    mask = generator.random((3, 7)) < 0.6
    mask[:, 5] = False
    broken = np.where(mask[None, :, None, :], rows, np.nan)
    summary = summarize_entropies(broken, row_mask=mask)
    for layer in range(2):
        for head in range(4):
            expected = rows[layer, :, head, :][mask].mean()
            assert summary.head_entropy[layer, head] == pytest.approx(expected, rel=1e-12)
    assert np.isnan(summary.entropy_by_position[:, :, 5]).all()


def test_layers_may_see_different_keys():
    keys = np.array([[[1, 2, 3, 4]], [[1, 2, 2, 2]]])  # causal, and a window of two
    rows = np.log(keys)[:, :, None] * np.ones((2, 1, 3, 1))
    summary = summarize_entropies(rows, visible_keys=keys)
    np.testing.assert_allclose(summary.head_entropy_normalized_visible, 1.0, rtol=1e-12)
    # A layer whose rows see one key each says nothing.
    keys[1] = 1
    shares = summarize_entropies(rows, visible_keys=keys).head_entropy_normalized_visible
    assert shares[0] == pytest.approx([1.0] * 3) and shares[1].tolist() == [0.0] * 3


def test_visible_keys_set_the_normalisation_of_each_row():
    rows = np.array([0.0, math.log(2), math.log(3)]).reshape(1, 1, 1, 3)
    summary = summarize_entropies(rows, visible_keys=[[1, 4, 9]])
    assert summary.head_entropy_normalized_visible[0, 0] == pytest.approx(0.5, rel=1e-12)


def test_batches_added_one_by_one_equal_all_at_once():
    rows = np.random.default_rng(1).random((3, 11, 2, 5))
    mask = np.random.default_rng(2).random((11, 5)) < 0.7
    accumulator = EntropyAccumulator()
    for first in range(0, 11, 4):
        part = slice(first, first + 4)
        accumulator.update(rows[:, part], row_mask=mask[part])
    parts, whole = accumulator.summary(), summarize_entropies(rows, row_mask=mask)
    for name in (
        "head_entropy",
        "head_entropy_normalized_context",
        "head_entropy_normalized_visible",
        "entropy_by_position",
    ):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-12)


def test_nan_heads_are_named_and_left_out_of_the_shares():
    rows = np.ones((2, 2, 3, 4))
    rows[1, 0, 2, 3] = np.nan
    values = summarize_entropies(rows).to_dict()
    assert values["nan_heads"] == [[1, 2]]
    assert values["nan_counts"] == [0, 1]
    assert values["head_entropy"][1][2] is None
    assert values["quarters"]["observed_max"] == [0.0, 0.0, 0.0, 1.0]
    json.dumps(values, allow_nan=False)


def test_layerwise_mean_and_nan_counts_keep_leading_dimensions():
    history = np.array([[[1.0, 3.0], [np.nan, np.nan]], [[2.0, np.inf], [0.0, 4.0]]])
    np.testing.assert_array_equal(layerwise_mean(history), [[2.0, np.nan], [2.0, 2.0]])
    np.testing.assert_array_equal(nan_counts(history), [[0, 2], [1, 0]])


@pytest.mark.parametrize("shape", [(4, 6), (4,), (1,)])
def test_temperature_of_every_shape_is_summarised_by_head(shape):
    values = [np.full(shape, 0.5 + layer) for layer in range(3)]
    summary = summarize_entropies(
        np.ones((3, 1, 4, 6)), temperatures=values, thresholds=np.full((3, 4), 0.25)
    )
    stored = summary.to_dict()
    assert stored["temperature"]["shape"] == list(shape)
    assert stored["temperature"]["minimum"] == 0.5
    assert stored["temperature"]["maximum"] == 2.5
    assert stored["temperature"]["mean_by_head"][1] == [1.5] * shape[0]
    assert stored["thresholds"] == [[0.25] * 4] * 3
    assert summary.arrays()["temperature"].shape == (3, *shape)


def test_float16_entropies_are_added_in_double_precision():
    # 4,096 rows of 0.1 in float16 would stop growing at 256 in a float16 sum.
    rows = np.full((1, 4096, 1, 2), 0.1, dtype=np.float16)
    expected = float(np.float16(0.1))
    assert summarize_entropies(rows).head_entropy[0, 0] == pytest.approx(expected, rel=1e-9)


def summarized(**arguments):
    given = {"row_entropies": np.ones((2, 1, 3, 4)), **arguments}
    return lambda: summarize_entropies(**given)


def of_two_networks():
    accumulator = EntropyAccumulator()
    accumulator.update(np.ones((2, 1, 3, 4)))
    accumulator.update(np.ones((2, 1, 3, 5)))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (summarized(row_entropies=np.ones((2, 3, 4))), ("row_entropies", "[L, B, H, T]")),
        (summarized(row_entropies=np.ones((2, 0, 3, 4))), ("without empty dimensions",)),
        (summarized(row_mask=np.ones((1, 5))), ("row_mask", "[B, T] = [1, 4]", "got [1, 5]")),
        (summarized(row_mask=np.zeros((1, 4))), ("row_mask", "keep at least one row")),
        (summarized(visible_keys=np.ones(3)), ("visible_keys",)),
        (summarized(visible_keys=np.ones((3, 1, 4))), ("[L, B, T] = [2, 1, 4]", "got [3, 1, 4]")),
        (summarized(context_length=0), ("context_length", ">= 1", "got 0")),
        (summarized(thresholds=np.ones((2, 2))), ("thresholds", "[L, H] = [2, 3]")),
        (summarized(temperatures=[np.ones(3)]), ("temperatures", "2 arrays")),
        (summarized(temperatures=[np.ones(3), np.ones(1)]), ("temperatures", "of equal shape")),
        (of_two_networks, ("batches before, [2, 3, 4]", "got [2, 3, 5]")),
        *(
            (lambda maximum=maximum: quarter_shares([1.0], maximum), ("maximum", "finite and >= 0"))
            for maximum in (-1.0, math.nan, math.inf)
        ),
    ],
)
def test_bad_input_names_the_argument(call, named):
    assert_refused(call, *named)
