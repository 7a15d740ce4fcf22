"""Every family has a price on every stack, without code of the user's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import Gemma3Config

from aero import mpc
from aero.families.configurations import described
from aero.mpc.described_stacks import described_stack_names
from aero.mpc.simulation import optimized_stack_names

from .configurations import CONFIGURATIONS, configuration, model_of

STACKS = ("spu-2024", "spu-0.9.5", "openbumblebee", "spu-semi2k", "spu-aby3", "sigma")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for family in CONFIGURATIONS:
        made[family] = tmp_path_factory.mktemp(family)
        (made[family] / "config.json").write_text(json.dumps(configuration(family).to_dict()))
    return made


def test_more_than_twenty_configurations_of_as_many_families_have_a_price(
    folders: dict[str, Path],
) -> None:
    assert len(folders) > 20
    for stack in (*mpc.stack_names(), *optimized_stack_names(), *described_stack_names()):
        bytes_of = {
            family: mpc.simulate(folder, stack=stack).comm_bytes
            for family, folder in folders.items()
        }
        assert all(sent > 0 for sent in bytes_of.values())
        # Another family is another network: few share a price, as GPT-2 and its likes.
        assert len({*bytes_of.values()}) > 20


@pytest.mark.parametrize("family", ["t5", "vit", "whisper"])
def test_a_model_costs_what_its_configuration_costs(family: str, folders: dict[str, Path]) -> None:
    model = model_of(configuration(family))
    assert all(one.is_meta for one in model.parameters())
    report = mpc.simulate(model)
    assert report == mpc.simulate(folders[family])
    assert not any("priced with the head" in note for note in report.notes)


def test_a_model_of_pictures_costs_what_its_text_costs_and_says_so(tmp_path: Path) -> None:
    text = CONFIGURATIONS["gemma3_text"]
    config = Gemma3Config(text_config=text)
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    expected = mpc.simulate(configuration("gemma3_text"))
    for given in (config, tmp_path):
        report = mpc.simulate(given)
        assert report.total == expected.total and report.label == "gemma3"
        assert any("text half, gemma3_text" in note for note in report.notes)
        narrow = mpc.simulate(given, vocab_size=30)
        assert narrow.total == mpc.simulate(configuration("gemma3_text"), vocab_size=30).total
    mixture = {"model_type": "whole", "text_config": configuration("mixtral").to_dict()}
    assert mpc.simulate(mixture, revealed_routing=True).comm_bytes < (
        mpc.simulate(mixture).comm_bytes
    )
    with pytest.raises(ValueError, match="revealed_routing is for mixtures"):
        mpc.simulate(config, revealed_routing=True)


def test_pictures_have_one_length_and_sounds_two() -> None:
    picture = mpc.simulate(configuration("vit"))
    # 4 x 4 patches and the row in front; the picture has 20 x 20 pixels of 3 colours.
    assert picture.sizes["context_length"] == 17
    assert picture.operations[1].shape == f"16x{5 * 5 * 3}x24"
    with pytest.raises(ValueError, match="context_length of vit is that of its inputs, 17"):
        mpc.simulate(configuration("vit"), context_length=16)
    for length in (4, 9):
        sound = mpc.simulate(configuration("whisper"), context_length=length)
        shapes = {one.name: one.shape for one in sound.operations if one.name.startswith("c")}
        assert shapes["convolution 1"] == f"20x{3 * 7}x24"
        assert shapes["convolution 2"] == f"10x{3 * 24}x24"
        assert shapes["cross scores"] == f"4 x {length}x6x10"
        assert shapes["cross softmax"] == f"{4 * length}x10"


def test_an_encoder_reads_as_many_tokens_as_the_decoder_and_says_so() -> None:
    report = mpc.simulate(configuration("t5"), context_length=7)
    assert any("reads as many tokens" in note for note in report.notes)
    found = [one.shape for one in report.operations if one.name == "cross scores"]
    assert found == ["6 x 7x8x7"] * 3
    for family in ("t5", "whisper", "vit"):
        with pytest.raises(ValueError, match="earlier tokens"):
            mpc.simulate_generation(configuration(family), new_tokens=2)


def test_a_head_that_no_family_has_is_said() -> None:
    config = {**configuration("t5").to_dict(), "architectures": ["T5Stack"]}
    [note] = [one for one in mpc.simulate(config).notes if "T5Stack" in one]
    assert "priced with the head of its family, an encoder and a decoder" in note
    for entries, words in (
        ({"feed_forward_proj": "double-relu"}, "feed_forward_proj of t5"),
        ({"feed_forward_proj": "gated-mish"}, "feed_forward_proj of t5"),
    ):
        with pytest.raises(ValueError, match=words):
            mpc.simulate({**configuration("t5").to_dict(), **entries})


def test_a_half_of_an_encoder_and_a_decoder_is_priced_without_the_other() -> None:
    def price(family: str, name: str, **settings: Any) -> mpc.CostReport:
        config = {**configuration(family).to_dict(), "architectures": [name]}
        return mpc.simulate(config, **settings)

    for name in ("T5EncoderModel", "T5ForTokenClassification"):
        report = price("t5", name, context_length=7)
        assert [one.shape for one in report.operations if one.kind == "QK"] == ["6 x 7x8x7"] * 2
        assert report.notes == () and report.sizes["num_layers"] == 2
    heads = [one.shape for one in report.operations if one.kind == "lm head"]
    assert heads == ["7x24x2"]
    for report in (price("whisper", "WhisperForAudioClassification"),
                   price("whisper", "WhisperEncoder")):  # fmt: skip
        assert [one.shape for one in report.operations if one.kind == "QK"] == ["6 x 10x4x10"] * 2
        assert not any("decoder" in note for note in report.notes)
        assert report.sizes["context_length"] == 10
    decoder = price("whisper", "WhisperForCausalLM", context_length=9)
    scores = [one.shape for one in decoder.operations if one.kind == "QK"]
    assert scores == ["4 x 9x6x9", "4 x 9x6x10"] * 3
    assert any("which is not priced" in note for note in decoder.notes)
    weighted = {**configuration("whisper").to_dict(), "use_weighted_layer_sum": True}
    with pytest.raises(ValueError, match="use_weighted_layer_sum"):
        mpc.simulate({**weighted, "architectures": ["WhisperForAudioClassification"]})


def test_a_last_layer_computes_the_row_of_every_output_that_is_read() -> None:
    def rows(name: str, **settings: Any) -> dict[str, int]:
        config = {**configuration("bert").to_dict(), "architectures": [name]}
        report = mpc.simulate(config, last_layer_one_row=True, **settings)
        shapes = {one.name: one.shape for one in report.operations if one.layer == 2}
        # "rows x in x out" of products with weights, behind their head in those of attention.
        return {
            part: int(shapes[part].split(" x ")[-1].split("x")[0])
            for part in ("queries, keys, values", "scores", "projection", "FFN, in", "FFN, out")
        }

    def expected(read: int) -> dict[str, int]:
        parts = dict.fromkeys(("scores", "projection", "FFN, in", "FFN, out"), read)
        return {**parts, "queries, keys, values": 32}

    assert rows("BertForMaskedLM") == expected(1)
    assert rows("BertForSequenceClassification") == expected(1)
    # The first token's for the next sentence, the last token's for the masked word.
    assert rows("BertForPreTraining") == expected(2)
    assert rows("BertForPreTraining", context_length=1)["FFN, in"] == 1


def test_a_last_layer_of_one_row_leaves_one_row_to_the_head() -> None:
    for network in (configuration("llama"), "SM+LN+G"):
        one, both = (
            mpc.simulate(network, last_layer_one_row=True, last_token_head=flag)
            for flag in (False, True)
        )
        assert one.operations == both.operations
        [logits] = [each for each in one.operations if each.kind == "lm head"]
        assert logits.shape.startswith("1x")


def test_a_second_row_of_the_last_layer_costs_what_its_operations_cost() -> None:
    def layer(name: str, one_row: bool) -> mpc.CostReport:
        config = {**configuration("bert").to_dict(), "architectures": [name]}
        return mpc.simulate(config, stack="spu-semi2k", last_layer_one_row=one_row)

    def sent(report: mpc.CostReport, kind: str) -> float:
        return sum(
            one.cost.comm_bytes for one in report.operations if (one.layer, one.kind) == (2, kind)
        )

    two, one = layer("BertForPreTraining", True), layer("BertForMaskedLM", True)
    whole = layer("BertForPreTraining", False)
    # What is counted by element: 2 and 1 of the 32 rows.
    assert sent(two, "act") == pytest.approx(sent(whole, "act") * 2 / 32, rel=1e-6)
    assert sent(one, "act") == pytest.approx(sent(whole, "act") / 32, rel=1e-6)
    assert sent(one, "softmax") < sent(two, "softmax") < sent(whole, "softmax") / 8


def test_a_second_output_of_all_positions_keeps_all_rows() -> None:
    masked = described(configuration("bert").to_dict()).operations
    *before, logits = masked
    other = {**logits, "output": "other", "name": "other logits"}
    description = {"label": "two", "context_length": 32, "vocab_size": 61}
    fields = {"last_layer_one_row": True, "last_token_head": True}
    found = mpc.simulate({**description, "operations": [*before, other, logits]}, **fields)
    shapes = {one.name: one.shape for one in found.operations if one.layer in (2, None)}
    assert shapes["FFN, in"] == "32x24x40" and shapes["other logits"] == "32x24x61"
    assert shapes["logits"] == "1x24x61"
    alone = mpc.simulate({**description, "operations": masked}, **fields)
    assert {one.name: one.shape for one in alone.operations}["FFN, in"] == "1x24x40"


LARGE = {
    "model_type": "llama", "vocab_size": 128_256, "hidden_size": 8192, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28_672,
    "max_position_embeddings": 131_072,
}  # fmt: skip


@pytest.mark.parametrize("stack", STACKS)
def test_seventy_billion_weights_have_a_total_or_an_error_that_names_what_is_too_large(
    stack: str,
) -> None:
    # Of all whole numbers up to 2^53 a double is exact.
    report = mpc.simulate(LARGE, context_length=4096, stack=stack)
    assert 1e13 < report.comm_bytes <= 2**53
    assert sum(one.cost.comm_bytes for one in report.operations) == report.comm_bytes
    with pytest.raises(ValueError, match=r"the network has more than 2\^53 comm_bytes"):
        mpc.simulate(LARGE, context_length=2**18 if stack == "sigma" else 2**17, stack=stack)
    wide = {**LARGE, "num_attention_heads": 8192, "num_key_value_heads": 8192}
    # The first operation that is too large.
    with pytest.raises(ValueError, match=r"(?:scores|softmax) has more than 2\^53 comm_bytes"):
        mpc.simulate(wide, context_length=2**18, stack=stack)


def test_an_input_of_no_positions_of_its_own_has_those_of_the_context() -> None:
    source = {"op": "source", "inputs": [], "output": "x", "positions": 0, "width": 4}
    linear = {"op": "linear", "inputs": ["x"], "output": "logits", "part": "lm head", "in": 4,
              "out": 9, "transposed": False}  # fmt: skip
    network = {"label": "own", "context_length": 6, "vocab_size": 9,
               "operations": [source, linear]}  # fmt: skip
    report = mpc.simulate(network)
    assert [one.shape for one in report.operations if one.kind == "lm head"] == ["6x4x9"]
