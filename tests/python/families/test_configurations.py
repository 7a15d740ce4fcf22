"""Configurations as operations, against the models that transformers makes of them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    Gemma3ForConditionalGeneration,
    LlavaForConditionalGeneration,
    Mistral3ForConditionalGeneration,
    MT5EncoderModel,
    MT5ForSequenceClassification,
    MT5ForTokenClassification,
    Qwen2VLForConditionalGeneration,
    T5EncoderModel,
    T5ForSequenceClassification,
    T5ForTokenClassification,
    WhisperForAudioClassification,
    WhisperForCausalLM,
)
from transformers.activations import ACT2FN
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from aero.families.configurations import FAMILIES, described
from aero.families.pictures import _DEFAULTS
from aero.families.values import FUNCTIONS
from aero.network import numpy_reader
from aero.network.description import Operation

from .configurations import CONFIGURATIONS, GROUPED, configuration, model_of


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


def test_an_activation_of_transformers_is_the_function_of_its_word() -> None:
    values = torch.linspace(-4, 4, 99, dtype=torch.float64)
    for word, function in FUNCTIONS.items():
        one = Operation(
            "activation", {"function": function, "width": 99, "slope": 0.0}, ("x",), "y"
        )
        found = numpy_reader.OPERATIONS["activation"](one, {}, values.numpy())
        # gelu_fast rounds the factor of its tanh.
        torch.testing.assert_close(torch.tensor(found), ACT2FN[word](values), rtol=0, atol=1e-6)


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
    if family == "gpt_oss":
        expected -= 3 * 6  # and a logit of each head beside its scores
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


OF_PICTURES: dict[str, tuple[Any, dict[str, Any]]] = {
    "gemma3": (Gemma3ForConditionalGeneration, CONFIGURATIONS["gemma3_text"]),
    "llava": (LlavaForConditionalGeneration, {**GROUPED, "model_type": "llama"}),
    "qwen2_vl": (Qwen2VLForConditionalGeneration, GROUPED),
    "mistral3": (Mistral3ForConditionalGeneration, {**GROUPED, "model_type": "mistral"}),
}


@pytest.mark.parametrize("family", OF_PICTURES)
def test_a_model_of_pictures_is_described_as_its_text_half(family: str) -> None:
    kind, text = OF_PICTURES[family]
    config = AutoConfig.for_model(family, text_config=text)
    with torch.device("meta"):
        model = kind(config)
    read = config.to_dict()
    half = model.model.language_model
    expected = sum(one.numel() for one in half.parameters()) + 61 * 24  # the head
    found = described({**read, "architectures": [kind.__name__]})
    assert parameters(found.operations) == expected
    if family != "qwen2_vl":
        assert found.operations == described(read["text_config"]).operations
    [note] = [one for one in found.unpriced if "text half" in one]
    assert note.startswith(f"embed: {family} is priced as its text half")
    assert found.family == family


def test_a_text_half_takes_the_defaults_of_transformers() -> None:
    for family, defaults in _DEFAULTS.items():
        config = AutoConfig.for_model(family).to_dict()
        own = {name: one for name, one in defaults.items() if name != "sliding_window_pattern"}
        assert {name: config[name] for name in own} == own
        outer = {"model_type": "whole", "text_config": {"model_type": family}}
        found, expected = (
            [
                {name: one for name, one in operation.items() if name not in ("base", "epsilon")}
                for entry in described(given).operations
                for operation in entry.get("operations", [entry]) * entry.get("repeat", 1)
            ]
            for given in (outer, config)
        )
        assert found == expected, family


def test_gemma_3_of_pictures_as_it_is_stored_has_the_layers_of_its_model() -> None:
    # google/gemma-3-27b-it's config.json, without what decides no price.
    text = {
        "model_type": "gemma3_text", "head_dim": 128, "hidden_size": 5376,
        "intermediate_size": 21504, "num_attention_heads": 32, "num_hidden_layers": 62,
        "num_key_value_heads": 16, "query_pre_attn_scalar": 168, "sliding_window": 1024,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    }  # fmt: skip
    stored = {
        "model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": text, "vision_config": {"model_type": "siglip_vision_model"},
    }  # fmt: skip
    found = described(stored)
    with torch.device("meta"):
        model = Gemma3ForConditionalGeneration(AutoConfig.for_model("gemma3", text_config=text))
    half = sum(one.numel() for one in model.model.language_model.parameters())
    assert parameters(found.operations) == half + 262208 * 5376
    windows = [
        one["window"]
        for entry in found.operations
        for one in entry.get("operations", []) * entry.get("repeat", 0)
        if one["op"] == "softmax"
    ]
    assert windows == [0 if place % 6 == 5 else 1024 for place in range(62)]


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"text_config": {"model_type": "mish"}}, "model_type must be one of .*, got 'mish'"),
        ({"text_config": {}}, "model_type must be one of .*, got 'None'"),
        ({"text_config": [3]}, "model_type must be one of .*, got 'gemma3'"),
        ({"text_config": {"model_type": "opt"}}, "of opt must be"),
    ],
)
def test_a_text_half_that_cannot_be_described_names_why(
    entries: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        described({"model_type": "gemma3", **entries})


def test_more_than_one_class_of_an_encoder_and_a_decoder_is_refused() -> None:
    names = ["T5EncoderModel", "T5ForSequenceClassification"]
    with pytest.raises(ValueError, match="architectures of t5"):
        described({**configuration("t5").to_dict(), "architectures": names})
