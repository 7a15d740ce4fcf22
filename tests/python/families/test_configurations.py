"""Configurations as operations, against the models that transformers makes of them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    MT5EncoderModel,
    MT5ForSequenceClassification,
    MT5ForTokenClassification,
    T5EncoderModel,
    T5ForSequenceClassification,
    T5ForTokenClassification,
    WhisperForAudioClassification,
    WhisperForCausalLM,
)
from transformers.models.whisper.modeling_whisper import WhisperEncoder

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


@pytest.mark.parametrize(
    ("family", "kind", "tables"),
    [
        # The biases of scores cost nothing; two stacks read one table of tokens.
        ("t5", T5EncoderModel, -32 * 6),
        ("t5", T5ForTokenClassification, -32 * 6),
        ("t5", T5ForSequenceClassification, 61 * 24 - 2 * 32 * 6),
        ("mt5", MT5EncoderModel, -32 * 6),
        ("mt5", MT5ForTokenClassification, -32 * 6),
        ("mt5", MT5ForSequenceClassification, 61 * 24 - 2 * 32 * 6),
        # Keys have no bias, and lie beside queries or values; the head's table is the tokens'.
        ("whisper", WhisperEncoder, 2 * 24),
        ("whisper", WhisperForAudioClassification, 2 * 24),
        ("whisper", WhisperForCausalLM, 2 * 3 * 24 + 61 * 24),
    ],
)
def test_a_half_of_an_encoder_and_a_decoder_has_as_many_parameters_as_its_model(
    family: str, kind: Any, tables: int
) -> None:
    config = configuration(family)
    config.num_labels = 5
    with torch.device("meta"):
        model = kind(config)
    expected = sum(one.numel() for one in model.parameters()) + tables
    read = {**configuration(family).to_dict(), "id2label": config.id2label,
            "architectures": [kind.__name__]}  # fmt: skip
    assert parameters(described(read).operations) == expected


def test_more_than_one_class_of_an_encoder_and_a_decoder_is_refused() -> None:
    names = ["T5EncoderModel", "T5ForSequenceClassification"]
    with pytest.raises(ValueError, match="architectures of t5"):
        described({**configuration("t5").to_dict(), "architectures": names})
