"""The words that explain the labels of a report."""

import pytest

from aero.architecture import label_words
from aero.report.labels import FAMILIES, explained, family


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("SM+LN+G", "SM LN G"),
        ("EReg(SM(t:head)+FN(scalar)+LR(global))", "EReg(...) SM (t:head) FN (scalar) LR (global)"),
        ("EReg(SM+LN+G)", "EReg(...) SM LN G"),
        ("SOTA:SM+ScFFN", "SOTA: SM ScFFN"),
        ("SM+Derf+WNFFN(qkv+ffn)", "SM Derf WNFFN (qkv+ffn)"),
        ("SM+DyT+R+D4", "SM DyT R D4"),
        ("EReg(SM(t)+ScFuFFN+C4_i6)", "EReg(...) SM (t) ScFuFFN C4 _i6"),
    ],
)
def test_every_word_of_a_label_is_explained_once_in_its_order(label, words):
    found = explained([label, label])
    assert " ".join(found) == words
    assert all(found.values())


def test_numbers_in_words_are_in_their_meaning():
    found = explained(["SM+FuFFN+C3_i2", "SM+FuFFN+S5"])
    assert found["C3"].startswith("a causal convolution along 3 tokens, with")
    assert (
        found["S5"] == "a depthwise causal convolution of 5 tokens before queries, keys and values"
    )
    assert found["_i2"] == "the 2 deepest FFNs are absent"
    assert found["SM"] == label_words()["SM"]


def test_a_family_is_the_norm_and_the_penalty():
    assert len(FAMILIES) == 8
    spec = {"norm": "foldable_scalar", "entropy_regularized": True}
    assert family(spec) == "foldable norm, entropy penalty"
