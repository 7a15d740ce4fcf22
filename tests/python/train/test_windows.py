import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, SequentialSampler

from aero.train.data.windows import TrainingWindows, collate_windows, validation_windows


def all_windows(tokens, context, count, seed=0):
    return TrainingWindows(tokens, context, count=count, seed=seed).__getitems__(range(count))


@pytest.mark.parametrize("length", [32, 33, 63, 64, 65, 97, 1000])
def test_an_epoch_is_disjoint_windows_and_nothing_twice(length):
    per_epoch = max(1, (length - 31) // 32)
    windows = all_windows(np.arange(length), 32, per_epoch)
    assert len(np.unique(windows)) == per_epoch * 32
    assert (np.diff(windows, axis=1) == 1).all()


def test_epochs_differ_in_order_and_offset():
    windows = all_windows(np.arange(1000), 32, 60)
    first, second = windows[:30, 0], windows[30:, 0]
    assert sorted(first % 32) == [first[0] % 32] * 30
    assert first[0] % 32 != second[0] % 32


def test_a_window_depends_on_seed_and_number_alone():
    whole = all_windows(np.arange(1000), 32, 90)
    later = TrainingWindows(np.arange(1000), 32, count=90, seed=0)
    np.testing.assert_array_equal(later.__getitems__([70, 3, 88]), whole[[70, 3, 88]])
    np.testing.assert_array_equal(later[40][0], whole[40])
    assert (all_windows(np.arange(1000), 32, 90, seed=1) != whole).any()


def test_batches_hold_the_windows_in_order():
    windows = TrainingWindows(np.arange(1000, dtype=np.uint16), 32, count=12, seed=0)
    loader = DataLoader(
        windows, batch_size=5, sampler=SequentialSampler(windows), collate_fn=collate_windows
    )
    batches = list(loader)
    assert [len(batch["input_ids"]) for batch in batches] == [5, 5, 2]
    joined = torch.cat([batch["input_ids"] for batch in batches])
    assert joined.dtype == torch.int64
    np.testing.assert_array_equal(joined.numpy(), windows.__getitems__(range(12)))
    assert torch.equal(batches[0]["labels"], batches[0]["input_ids"])


def test_validation_windows_are_disjoint_and_spread_over_the_file():
    tokens = np.zeros(1000)
    np.testing.assert_array_equal(
        validation_windows(tokens, 100, max_tokens=None), np.arange(10) * 100
    )
    some = validation_windows(tokens, 100, max_tokens=350)
    np.testing.assert_array_equal(some, [0, 300, 600])
    # Seven of ten reach over the whole file too: those at floor(10 i / 7).
    most = validation_windows(tokens, 100, max_tokens=700)
    np.testing.assert_array_equal(most, [0, 100, 200, 400, 500, 700, 800])
    assert len(validation_windows(tokens, 100, max_tokens=100)) == 1
    assert len(validation_windows(tokens, 100, max_tokens=10**9)) == 10
    assert validation_windows(np.zeros(199), 100, max_tokens=None).tolist() == [0]


@pytest.mark.parametrize("stride", [1, 7, 40, 99, 100, None])
@pytest.mark.parametrize("tokens", [100, 101, 139, 140, 141, 199, 200, 259])
def test_windows_cover_no_more_tokens_than_asked_and_all_that_fit(stride, tokens):
    starts = validation_windows(np.zeros(260), 100, max_tokens=tokens, stride=stride)
    covered = {int(start) + place for start in starts for place in range(100)}
    step = stride or 100
    assert len(covered) <= tokens < len(covered) + step, starts


@pytest.mark.parametrize(
    ("text", "most", "stride", "message"),
    [
        *((260, None, stride, f"between 1 and 100, got {stride}") for stride in (0, 101, -1)),
        *(
            (text, None, stride, f"100 tokens, got {text} tokens")
            for text in (99, 1, 0)
            for stride in (None, 40)
        ),
        *(
            (260, most, stride, f"at least one window of 100 tokens, got {most}")
            for most in (99, 1, 0, -1)
            for stride in (None, 40)
        ),
    ],
)
def test_less_than_a_window_and_strides_outside_it_are_refused(text, most, stride, message):
    with pytest.raises(ValueError, match=message):
        validation_windows(np.zeros(text), 100, max_tokens=most, stride=stride)
