"""Tokenizers: what their tokens stand for, and the words where there is none."""

from pathlib import Path

import numpy as np
import pytest
from tests.python.refusals import assert_told
from tokenizers import Tokenizer, models

from aero.internals.errors import TrainingError
from aero.saved.tokenizer import bytes_per_token, load_tokenizer


class Vocabulary(dict):
    """A tokenizer with these numbers."""

    all_special_tokens = ("<|x|>",)

    def get_vocab(self):
        return self


def test_each_token_stands_for_its_bytes_and_special_ones_for_none():
    tokens = Vocabulary({"ab": 0, "<|x|>": 2, "Ġthe": 1, "ä": 3})
    sizes = bytes_per_token(tokens)
    assert sizes.tolist() == [2, 4, 0, 1] and sizes.dtype == np.int64
    for vocabulary, parts in (
        ({"日": 0}, ["byte-level", "'日'"]),
        ({"a": 0, "b": 2}, ["numbered from 0", "2 for 'b'"]),
    ):
        with pytest.raises(TrainingError) as error:
            bytes_per_token(Vocabulary(vocabulary))
        assert_told(error, *parts)


def test_a_tokenizer_that_cannot_be_had_is_told_in_a_whole_sentence(tmp_path, monkeypatch):
    with pytest.raises(TrainingError) as error:
        load_tokenizer(Path("no/such"))
    assert_told(error, "'no/such'", "data.tokenizer=train")
    Tokenizer(models.BPE()).save(str(tmp_path / "tokenizer.json"))
    from transformers import AutoTokenizer

    asked = []

    def slow(name, **options):
        asked.append((name, options))
        return object()

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", slow)
    with pytest.raises(TrainingError) as error:
        load_tokenizer(tmp_path)
    assert_told(error, f"'{tmp_path}'", "fast")
    assert asked == [(str(tmp_path), {"trust_remote_code": False})]
