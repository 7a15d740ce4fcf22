"""Networks without a label: what they are, against the models themselves, and what they cost."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
)
from typer.testing import CliRunner

import aero
from aero import AeroConfig, AeroForCausalLM, mpc
from aero.cli import app
from aero.families.configurations import FAMILIES, described
from aero.models.foreign_writer import describe_model
from aero.report import to_html, to_text

SIZES: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 6,
    "intermediate_size": 40, "max_position_embeddings": 32,
}  # fmt: skip
GPT: dict[str, Any] = {"vocab_size": 61, "n_embd": 24, "n_layer": 3, "n_head": 6, "n_positions": 32}
GROUPED: dict[str, Any] = {**SIZES, "num_key_value_heads": 2}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "bert": SIZES,
    "bloom": {"vocab_size": 61, "hidden_size": 24, "n_layer": 3, "n_head": 6, "seq_length": 32},
    "cohere": GROUPED,
    "distilbert": {"vocab_size": 61, "dim": 24, "n_layers": 3, "n_heads": 6, "hidden_dim": 40,
                   "max_position_embeddings": 32},
    "falcon": {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 3,
               "num_attention_heads": 6, "max_position_embeddings": 32, "ffn_hidden_size": 40},
    "gemma": {**GROUPED, "head_dim": 8},
    "gemma2": {**GROUPED, "head_dim": 8, "sliding_window": 5},
    "gemma3_text": {**GROUPED, "head_dim": 8, "sliding_window": 5},
    "gpt2": GPT,
    "gpt_bigcode": GPT,
    "gpt_neo": {"vocab_size": 61, "hidden_size": 24, "num_layers": 3, "num_heads": 6,
                "attention_types": [[["global", "local", "local"], 1]], "window_size": 5,
                "max_position_embeddings": 32},
    "gpt_neox": SIZES,
    "gptj": {**GPT, "rotary_dim": 2},
    "granite": {**GROUPED, "attention_multiplier": 0.5},
    "llama": {**GROUPED, "attention_bias": True, "mlp_bias": True},
    "mistral": {**GROUPED, "sliding_window": 5},
    "mixtral": {**GROUPED, "num_local_experts": 4},
    "opt": {**{k: v for k, v in SIZES.items() if k != "intermediate_size"}, "ffn_dim": 40,
            "word_embed_proj_dim": 24},
    "phi": SIZES,
    "phi3": {**GROUPED, "pad_token_id": 0},
    "qwen2": GROUPED,
    "qwen3": {**GROUPED, "head_dim": 8},
    "roberta": SIZES,
    "stablelm": GROUPED,
    "starcoder2": GROUPED,
}  # fmt: skip


def configuration(family: str) -> Any:
    return AutoConfig.for_model(family, **CONFIGURATIONS[family])


def model_of(config: Any) -> torch.nn.Module:
    head: Any = (
        AutoModelForMaskedLM
        if config.model_type in ("bert", "distilbert", "roberta")
        else AutoModelForCausalLM
    )
    with torch.device("meta"):
        return head.from_config(config)  # type: ignore[no-any-return]


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


# --- what a configuration describes ---------------------------------------------------------------


def test_every_family_is_tested() -> None:
    assert CONFIGURATIONS.keys() == FAMILIES.keys()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_configuration_has_as_many_parameters_as_its_model(family: str) -> None:
    config = configuration(family)
    model = model_of(config)
    expected = sum(one.numel() for one in model.parameters())
    if config.tie_word_embeddings:
        expected += 61 * 24  # the head is the embedding again
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


@pytest.mark.parametrize("stack", [*mpc.stack_names(), "sigma"])
def test_gpt2_costs_what_its_label_costs(stack: str) -> None:
    report = mpc.simulate(GPT2Config(), stack=stack)
    label = mpc.simulate("SM+LN+G", stack=stack)
    assert (report.total, report.by_kind) == (label.total, label.by_kind)
    assert report.by_layer == label.by_layer and report.unchecked == label.unchecked
    assert report.latency("lan-1gbps").schedule().seconds == (
        label.latency("lan-1gbps").schedule().seconds
    )


def test_pythia_costs_what_its_label_costs_with_the_exact_gelu() -> None:
    config = GPTNeoXConfig(
        vocab_size=50304, hidden_size=512, num_hidden_layers=6, num_attention_heads=8,
        intermediate_size=2048,
    )  # fmt: skip
    report = mpc.simulate(config, stack="spu-0.9.5")
    label = mpc.simulate("SM+LN+G", model="pythia-70m", stack="spu-0.9.5", gelu="erf")
    assert report.total == label.total
    assert any("exact GELU" in words for words in report.notes)
    tanh = mpc.simulate(config, stack="spu-0.9.5", gelu="tanh")
    assert tanh.comm_bytes < report.comm_bytes / 2
    assert any("gelu=erf" in words for words in tanh.notes)
    # A kernel for both forms stays.
    assert mpc.simulate(config, stack="openbumblebee").stack_fields["gelu"] == "segment"


# --- what can be given ----------------------------------------------------------------------------


def test_configuration_model_folder_and_description_cost_the_same(tmp_path: Path) -> None:
    config = LlamaConfig(**GROUPED)
    network = describe_model(config)
    (tmp_path / "configured").mkdir()
    config.save_pretrained(tmp_path / "configured")
    (tmp_path / "described").mkdir()
    (tmp_path / "described" / "network.json").write_text(json.dumps(network.description))
    first = mpc.simulate(config)
    for given in (
        model_of(config),
        tmp_path / "configured",
        str(tmp_path / "configured"),
        tmp_path / "described",
        network,
    ):
        report = mpc.simulate(given)
        assert report == first
    assert (first.label, first.spec) == ("llama", None)
    # 32 positions, not 128.
    assert first.sizes == {
        "num_layers": 3, "num_heads": 6, "width": 24, "context_length": 32, "vocab_size": 61,
    }  # fmt: skip


def test_networks_of_this_package_cost_what_their_spec_costs(tmp_path: Path) -> None:
    config = AeroConfig.from_label("EReg(SM(t)+FN+R)", model="tiny")
    model = AeroForCausalLM(config)
    model.save_pretrained(tmp_path)
    expected = mpc.simulate(config.spec)
    for given in (config, model, tmp_path):
        assert mpc.simulate(given) == expected
    longer = mpc.simulate(config, context_length=20)
    assert longer.total == mpc.simulate(config.spec, context_length=20).total
    exact = AeroConfig.from_label("SM+LN+G", model="tiny", gelu_approximation="none")
    assert mpc.simulate(exact).total == mpc.simulate(exact.spec, gelu="erf").total


def test_a_converted_model_costs_what_it_was_converted_to() -> None:
    model = AutoModelForCausalLM.from_config(GPT2Config(**GPT, attn_pdrop=0.0))
    before = mpc.simulate(model).comm_bytes
    converted = aero.convert(model, "SM+ScFuFFN")
    report = mpc.simulate(converted)
    assert report.label == "SM+ScFuFFN" and report.comm_bytes < before


def test_other_things_are_refused_in_one_line(tmp_path: Path) -> None:
    for given in (3, None, object(), tmp_path, tmp_path / "nothing", f"{tmp_path}/nothing"):
        with pytest.raises(ValueError, match=r"simulate: .*label") as error:
            mpc.simulate(given)
        assert "\n" not in str(error.value)
    config = LlamaConfig(**GROUPED)
    for keywords, word in (
        ({"num_heads": 3}, "num_heads"),
        ({"model": "tiny"}, "model"),
        ({"final_norm": "none"}, "final_norm"),
    ):
        with pytest.raises(ValueError, match=f"simulate: {word} is for labels"):
            mpc.simulate(config, **keywords)
    with pytest.raises(ValueError, match="vocab_size of a described network is its own"):
        mpc.simulate(describe_model(config), vocab_size=9)
    assert mpc.simulate(config, vocab_size=9).sizes["vocab_size"] == 9


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"model_type": "mamba"}, "model_type must be one of bert, .*mamba"),
        ({"hidden_act": "mish"}, "hidden_act of llama must be one of"),
        ({"hidden_size": "24"}, "hidden_size of llama must be an integer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers of llama"),
        ({"num_key_value_heads": 5}, "key_heads"),
        ({"sliding_window": -1}, "sliding_window of llama"),
        ({"model_type": "aero"}, "of aero must be given"),
        ({"model_type": "bert", "is_decoder": True}, "is_decoder of bert"),
    ],
)
def test_a_configuration_that_cannot_be_priced_names_why(
    tmp_path: Path, entries: dict[str, Any], words: str
) -> None:
    config = {"model_type": "llama", **GROUPED, **entries}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=words):
        mpc.simulate(tmp_path)


def test_a_soft_cap_costs_a_tanh_and_two_truncations_of_each_score() -> None:
    # Measured between two parties with SPU 0.9.5 on 32 x 512 elements: 2,129 bytes each.
    measured = 2129 * 32 * 512
    cap = mpc.operation_cost("soft_cap", 32 * 512, stack="spu-0.9.5")
    assert cap.comm_bytes == pytest.approx(measured, rel=0.003)
    report = mpc.simulate(configuration("gemma2"), stack="spu-0.9.5")
    found = [one for one in report.operations if one.name == "soft cap"]
    expected = mpc.operation_cost("soft_cap", 6 * 32 * 32, stack="spu-0.9.5")
    assert [(one.kind, one.layer) for one in found] == [("QK", 0), ("QK", 1), ("QK", 2)]
    assert all(abs(one.cost.comm_bytes - expected.comm_bytes) <= 1 for one in found)
    # The softmax waits for it, and it for the product.
    scores, softmax = (
        next(i for i, one in enumerate(report.operations) if one.name == name)
        for name in ("scores", "softmax")
    )
    place = report.operations.index(found[0])
    assert report.operations[softmax].inputs == (place,) and found[0].inputs == (scores,)
    # No other stack quotes a price of it.
    assert mpc.operation_cost("soft_cap", 9, stack="sigma") == mpc.operation_cost(
        "soft_cap", 9, stack="openbumblebee", causal_skip=True
    )


def test_operations_without_a_description_are_named() -> None:
    network = describe_model(LlamaConfig(**GROUPED))
    network.description["operations"][-1]["op"] = "cross_attention"
    with pytest.raises(ValueError, match=r'op must be .*"cross_attention"'):
        mpc.simulate(network)


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
        report = mpc.simulate(model)
        head = [one for one in report.operations if one.kind == "lm head"]
        positions = 30 if family == "roberta" else 32
        rows = positions if kind is AutoModelForTokenClassification else 1
        assert head[-1].shape == f"{rows}x24x5"


def test_a_classifier_costs_less_by_its_head_alone() -> None:
    config = configuration("bert")
    with torch.device("meta"):
        model = AutoModelForSequenceClassification.from_config(config)
    report, whole = mpc.simulate(model), mpc.simulate(config)
    assert report.by_layer == whole.by_layer
    found = {one.name: one.cost for one in report.operations if one.layer is None}
    expected = {
        "transform": mpc.operation_cost("weight_product", 1, 24, 24),
        "activation": mpc.operation_cost("tanh", 24),
        "logits": mpc.operation_cost("weight_product", 1, 24, 2),
    }
    for name, cost in expected.items():
        assert found[name].comm_bytes == pytest.approx(cost.comm_bytes, abs=1)
    with pytest.raises(ValueError, match="classifier"):
        mpc.simulate_generation(model, new_tokens=2)


def test_another_file_of_that_name_is_refused(tmp_path: Path) -> None:
    description = describe_model(LlamaConfig(**GROUPED)).description
    for changed in ({"version": 1}, {"format": "other"}, {"operations": 3}):
        (tmp_path / "network.json").write_text(json.dumps({**description, **changed}))
        with pytest.raises(ValueError, match="expected"):
            mpc.simulate(tmp_path)


# --- what is said of it ---------------------------------------------------------------------------


def test_what_a_price_leaves_out_is_said_of_it(tmp_path: Path) -> None:
    windowed = MistralConfig(**GROUPED, sliding_window=5)
    assert any("window" in words for words in mpc.simulate(windowed).notes)
    assert not mpc.simulate(windowed, context_length=5).notes
    beyond = mpc.simulate(windowed, context_length=33).notes
    assert any("32 positions" in words for words in beyond)
    answerer = configuration("bert").to_dict() | {"architectures": ["BertForQuestionAnswering"]}
    (tmp_path / "config.json").write_text(json.dumps(answerer))
    notes = mpc.simulate(tmp_path).notes
    assert any("BertForQuestionAnswering, priced with the head" in words for words in notes)
    experts = mpc.simulate(configuration("mixtral")).notes
    assert any("all 4 experts" in words for words in experts)
    assert any("2 of 4 experts have no price" in words for words in experts)


def test_adapters_are_said_to_be_priced_as_merged() -> None:
    model = AutoModelForCausalLM.from_config(LlamaConfig(**GROUPED))
    adapted = get_peft_model(model, LoraConfig(target_modules=["v_proj"]))
    report = mpc.simulate(adapted)
    assert report.total == mpc.simulate(LlamaConfig(**GROUPED)).total
    assert any("merged" in words for words in report.notes)


def test_comparisons_generations_and_pages_take_them() -> None:
    config = LlamaConfig(**GROUPED)
    report, label = mpc.simulate(config), mpc.simulate("SM", model="tiny")
    assert "llama" in to_text(label.compare(report)) and "llama" in to_html(report)
    assert json.loads(json.dumps(report.to_dict()))["spec"] is None
    generated = mpc.simulate_generation(config, new_tokens=2, context_length=8)
    assert generated.token_report(1).sizes == report.sizes | {"context_length": 8}
    assert "llama" in to_text(generated) and "llama" in to_html(generated)
    with pytest.raises(ValueError, match="earlier tokens"):
        mpc.simulate_generation(configuration("bert"), new_tokens=2)


def test_commands_take_a_folder(tmp_path: Path) -> None:
    LlamaConfig(**GROUPED).save_pretrained(tmp_path)
    for arguments in (
        ["show", str(tmp_path)],
        ["show", str(tmp_path), "--json"],
        ["compare", str(tmp_path), "SM"],
        ["schedule", str(tmp_path)],
        ["generate", str(tmp_path), "--new-tokens", "2"],
    ):
        done = CliRunner().invoke(app, ["cost", *arguments])
        assert done.exit_code == 0, done.output
        assert "llama" in done.output


def test_a_folder_is_priced_without_torch(tmp_path: Path) -> None:
    LlamaConfig(**GROUPED).save_pretrained(tmp_path)
    program = (
        "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None\n"
        f"from aero import mpc; print(mpc.simulate({str(tmp_path)!r}).label)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "llama", done.stderr
