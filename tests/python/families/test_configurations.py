"""Configurations as operations, against the models that transformers makes of them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from aero.families.configurations import FAMILIES, described

from .configurations import CONFIGURATIONS, configuration, model_of


def parameters(operations: list[dict[str, Any]]) -> int:
    """Of the weights that a description names."""
    total = 0
    for one in operations:
        if "repeat" in one:
            total += one["repeat"] * parameters(one["operations"])
        elif one["op"] == "embed":
            total += one["rows"] * one["width"]
        elif one["op"] == "norm":
            total += one["width"] * len(one["weights"])
        elif one["op"] == "linear":
            total += one["in"] * one["out"] + one["out"] * ("bias" in one["weights"])
    return total


def test_every_family_is_tested() -> None:
    assert CONFIGURATIONS.keys() == FAMILIES.keys()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_configuration_has_as_many_parameters_as_its_model(family: str) -> None:
    config = configuration(family)
    model = model_of(config)
    expected = sum(one.numel() for one in model.parameters())
    if getattr(config, "tie_word_embeddings", False):
        expected += 61 * 24  # the head is the embedding again
    if family in ("mt5", "t5"):
        expected -= 2 * 32 * 6  # biases of scores cost nothing
        expected += 61 * 24  # the encoder's table is the decoder's
    if family == "vit":
        expected -= 24  # so does the row in front
    if family == "whisper":
        expected += (2 + 2 * 3) * 24  # keys have no bias, and lie beside queries or values
    if family in ("bert", "roberta"):
        expected -= config.type_vocab_size * 24  # the first type is part of the positions
    assert parameters(described(config.to_dict()).operations) == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_a_strangers_configuration_is_described_or_refused(family: str) -> None:
    config = configuration(family).to_dict()
    for name in config:
        for value in (
            "x",
            -1,
            0,
            2**30,
            2**70,
            1.5,
            [],
            [[3]],
            {},
            {"a": [1]},
            None,
            True,
            math.nan,
        ):
            try:
                found = described({**config, name: value})
            except ValueError as error:
                assert "\n" not in str(error) and "configuration" in str(error)
            else:
                assert found.operations


def test_a_classifier_has_as_many_parameters_as_its_model() -> None:
    for family, kind in itertools.product(
        ("bert", "roberta", "distilbert", "llama", "gpt2"),
        (AutoModelForSequenceClassification, AutoModelForTokenClassification),
    ):
        if kind is AutoModelForTokenClassification and family in ("llama", "gpt2"):
            continue
        config = configuration(family)
        config.num_labels = 5
        with torch.device("meta"):
            model: Any = kind.from_config(config)
        expected = sum(one.numel() for one in model.parameters())
        if family in ("bert", "roberta"):
            expected -= config.type_vocab_size * 24
        read = {**config.to_dict(), "architectures": [type(model).__name__]}
        assert parameters(described(read).operations) == expected, family
