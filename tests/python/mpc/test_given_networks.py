"""Networks without a label: what they are, against the models themselves, and what they cost."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tests.python.mpc.given_configurations import VIT
from tests.python.refusals import assert_refused
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertForPreTraining,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    Qwen3MoeConfig,
)
from typer.testing import CliRunner

import aero
from aero import AeroConfig, AeroForCausalLM, mpc
from aero.cli import app
from aero.families.configurations import described
from aero.models.foreign_writer import describe_model
from aero.report import to_html, to_text

from ..families.configurations import GPT, GROUPED, configuration, model_of


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
    by_jax = mpc.simulate(config, stack="spu-0.9.5", gelu="erfc")
    assert tanh.comm_bytes < report.comm_bytes < by_jax.comm_bytes / 2
    assert any("gelu=erf" in words for words in tanh.notes)
    # A kernel for both forms stays.
    assert mpc.simulate(config, stack="openbumblebee").stack_fields["gelu"] == "segment"


@pytest.mark.parametrize("form", ["tanh", "logistic"])
def test_the_form_of_silu_is_chosen_and_said(form: str) -> None:
    usual = mpc.simulate(LlamaConfig(**GROUPED), stack="spu-semi2k")
    report = mpc.simulate(LlamaConfig(**GROUPED), stack="spu-semi2k", silu=form)
    lines = {"tanh": "x/2 (1 + tanh(x/2))", "logistic": "jax.nn.silu(x): x jax.nn.sigmoid(x)"}
    assert report.lowerings["act"] == (lines[form],)
    [note] = [words for words in report.notes if "SiLU" in words]
    assert f"silu={'tanh' if form == 'logistic' else 'logistic'} prices" in note
    # Of each element of three layers.
    more = {"tanh": 0, "logistic": 1250 - 696}[form] * 32 * 40 * 3
    assert report.comm_bytes - usual.comm_bytes == more
    assert not any("SiLU" in words for words in mpc.simulate(configuration("gemma")).notes)


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
    # SIGMA's code has none.
    assert mpc.operation_cost("soft_cap", 9, stack="sigma") == mpc.operation_cost(
        "soft_cap", 9, stack="openbumblebee", causal_skip=True
    )


def test_networks_without_a_price_are_named(tmp_path: Path) -> None:
    foreign = describe_model(LlamaConfig(**GROUPED))
    foreign.description["operations"][-1]["op"] = "cross_attention"
    gated = AeroConfig.from_label("SM+LN+G", model="tiny", gated_parts=["ffns"])
    gated.save_pretrained(tmp_path / "gated")
    cases: list[tuple[Any, dict[str, Any], tuple[str, ...]]] = [
        (foreign, {}, ("op must be", '"cross_attention"')),
        (tmp_path / "gated", {}, ("gated_parts",)),
        (AeroForCausalLM(gated), {}, ("gated_parts",)),
        ("SM", {"revealed_routing": True}, ("revealed_routing", "mixtures of experts")),
        (
            GPT2Config(),
            {"revealed_routing": True},
            ("revealed_routing", "mixtures", "gpt2 is none"),
        ),
        (gated, {"revealed_routing": True}, ("gated_parts",)),
        (
            AeroConfig.from_label("SM", model="tiny"),
            {"revealed_routing": True},
            ("revealed_routing", "mixtures"),
        ),
    ]
    description = describe_model(LlamaConfig(**GROUPED)).description
    for changed in ({"version": 1}, {"format": "other"}, {"operations": 3}):
        folder = tmp_path / next(iter(changed))
        folder.mkdir()
        (folder / "network.json").write_text(json.dumps({**description, **changed}))
        cases.append((folder, {}, ("network.json", "expected", "got")))
    for given, options, named in cases:
        assert_refused(partial(mpc.simulate, given, **options), *named)


def test_a_classifier_costs_less_by_its_head_alone(tmp_path: Path) -> None:
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
    tagger = {**config.to_dict(), "architectures": ["BertForTokenClassification"]}
    (tmp_path / "config.json").write_text(json.dumps(tagger))
    logits = [one for one in mpc.simulate(tmp_path).operations if one.kind == "lm head"]
    assert [one.shape for one in logits] == ["32x24x2"]
    with pytest.raises(ValueError, match="classifier"):
        mpc.simulate_generation(model, new_tokens=2)


def test_a_last_layer_of_one_row_has_all_rows_where_a_head_reads_their_mean() -> None:
    classifier = configuration("bert").to_dict()
    classifier["architectures"] = ["BertForSequenceClassification"]
    first = described(classifier).operations
    description = {"label": "bert", "context_length": 32, "vocab_size": 61}
    mean = [{**one, "kind": "mean"} if one.get("op") == "pool" else one for one in first]
    for operations, is_one in ((first, True), (mean, False)):
        network = {**description, "operations": operations}
        whole, one_row = (
            mpc.simulate(network, last_layer_one_row=flag).by_layer[2] for flag in (False, True)
        )
        assert (one_row.comm_bytes < 0.7 * whole.comm_bytes) is is_one
        assert one_row == whole or is_one


def test_the_two_heads_of_a_pretrained_bert_are_priced() -> None:
    config = configuration("bert")
    with torch.device("meta"):
        model = BertForPreTraining(config)
    report, masked = mpc.simulate(model), mpc.simulate(config)
    assert report.notes == masked.notes and report.by_layer == masked.by_layer
    more = [one for one in report.operations if one not in masked.operations]
    expected = [
        mpc.operation_cost("weight_product", 1, 24, 24),
        mpc.operation_cost("tanh", 24),
        mpc.operation_cost("weight_product", 1, 24, 2),
    ]
    found = report.comm_bytes - masked.comm_bytes
    assert found == pytest.approx(sum(cost.comm_bytes for cost in expected), abs=3)
    assert "1x24x2" in {one.shape for one in more}


def test_a_pretraining_head_of_another_family_is_told(tmp_path: Path) -> None:
    config = {**configuration("t5").to_dict(), "architectures": ["T5ForPreTraining"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    notes = mpc.simulate(tmp_path).notes
    assert any("T5ForPreTraining, priced with the head" in words for words in notes)


# --- what is said of it ---------------------------------------------------------------------------


def test_what_a_price_leaves_out_is_said_of_it(tmp_path: Path) -> None:
    windowed = MistralConfig(**GROUPED, sliding_window=5)
    assert any("window" in words for words in mpc.simulate(windowed).notes)
    assert not any("window" in words for words in mpc.simulate(windowed, context_length=5).notes)
    blocks = mpc.simulate(windowed, attention_block=4).notes
    assert not any("window" in words for words in blocks)
    own = mpc.simulate("SM", model="tiny", window=5)
    assert any("window" in words for words in own.notes)
    beyond = mpc.simulate(windowed, context_length=33).notes
    assert any("32 positions" in words for words in beyond)
    answerer = configuration("bert").to_dict() | {"architectures": ["BertForQuestionAnswering"]}
    (tmp_path / "config.json").write_text(json.dumps(answerer))
    notes = mpc.simulate(tmp_path).notes
    assert any("BertForQuestionAnswering, priced with the head" in words for words in notes)
    experts = mpc.simulate(configuration("mixtral")).notes
    assert any("all 4 experts" in words for words in experts)
    assert not any("no price" in words for words in experts)


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


LATENT = {
    "model_type": "deepseek_v3", "vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 96,
    "max_position_embeddings": 64, "moe_intermediate_size": 48, "n_routed_experts": 8,
    "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
    "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12,
    "v_head_dim": 12,
}  # fmt: skip


def test_latent_attention_is_priced_product_by_product() -> None:
    tokens = 16
    report = mpc.simulate(LATENT, context_length=tokens, stack="spu-semi2k")

    def product(inner: int, outer: int) -> float:
        return mpc.operation_cost(
            "weight_product", tokens, inner, outer, stack="spu-semi2k"
        ).comm_bytes

    sizes = [(64, 24), (24, 4 * 20), (64, 16 + 8), (16, 4 * 24), (4 * 12, 64)]
    found = [
        one.cost.comm_bytes
        for one in report.operations
        if one.layer == 0 and one.kind == "qkv/proj" and "x" in one.shape
    ]
    assert found == [product(*each) for each in sizes]
    rotary = [one for one in report.operations if one.layer == 0 and one.name == "rotary scores"]
    # The heads' queries are rows of one product with the one rotating key.
    assert [one.shape for one in rotary] == ["1 x 64x8x16"]
    assert [one.shape for one in report.operations if one.layer == 0 and one.name == "heads"] == [
        "4 x 16x16x12"
    ]


def test_revealed_routing_prices_the_experts_that_a_token_takes() -> None:
    secret, seen = (
        mpc.simulate(LATENT, context_length=16, stack="spu-semi2k", **fields)
        for fields in ({}, {"revealed_routing": True})
    )

    def experts(report: mpc.CostReport) -> int:
        return sum(
            one.layer == 1 and one.name.startswith("expert ") and one.name.endswith(", out")
            for one in report.operations
        )

    assert (experts(secret), experts(seen)) == (8 + 1, 2 + 1)
    assert any("revealed_routing=true" in note for note in secret.notes)
    assert any("both parties see" in note for note in seen.notes)
    assert seen.by_layer[0] == secret.by_layer[0]


@pytest.mark.parametrize("entry", ["num_experts", "num_local_experts"])
def test_routing_is_revealed_whatever_a_family_calls_its_experts(entry: str) -> None:
    config = Qwen3MoeConfig(
        vocab_size=64, hidden_size=16, moe_intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, num_experts_per_tok=2,
    ).to_dict()  # fmt: skip
    config = {name: value for name, value in config.items() if not name.endswith("_experts")}
    secret, seen = (
        mpc.simulate({**config, entry: 8}, context_length=16, **fields)
        for fields in ({}, {"revealed_routing": True})
    )
    assert seen.comm_bytes < secret.comm_bytes


def test_a_cap_of_the_logits_is_a_tanh_of_each_and_leaves_the_argmax() -> None:
    family = {**configuration("gemma2").to_dict(), "model_type": "gemma2"}
    capped, plain = (
        mpc.simulate({**family, "final_logit_softcapping": cap}, context_length=8)
        for cap in (30.0, None)
    )
    tanh = mpc.operation_cost("tanh", 8 * 61).comm_bytes
    assert capped.comm_bytes - plain.comm_bytes == pytest.approx(tanh, abs=1)
    assert capped.by_kind["argmax"] == plain.by_kind["argmax"]
    last = [
        mpc.simulate({**family, "final_logit_softcapping": c}, context_length=8,
                     last_token_head=True).comm_bytes
        for c in (30.0, None)
    ]  # fmt: skip
    assert last[0] - last[1] == pytest.approx(mpc.operation_cost("tanh", 61).comm_bytes, abs=1)


def test_headers_leave_out_what_a_network_does_not_have() -> None:
    program = torch.export.export(torch.nn.Linear(8, 4), (torch.zeros(3, 8),))
    for given, missing in ((program, "LHdV"), (VIT, "V")):
        found = mpc.simulate(given, stack="spu-0.9.5")
        for title in (to_text(found), *found.compare(mpc.simulate("SM")).names()):
            assert not any(f"{letter} 0" in title for letter in missing)


def test_a_family_that_is_not_known_is_told_of_exported_programs() -> None:
    with pytest.raises(ValueError, match=r"torch\.export"):
        mpc.simulate({"model_type": "mamba"})


def cached(cache: Path, name: str, config: dict[str, Any]) -> Path:
    """What a download leaves: a link in a snapshot to a file that is named by its content."""
    place = cache / f"models--{name.replace('/', '--')}"
    snapshot = place / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    (place / "blobs").mkdir()
    (place / "blobs" / "feed").write_text(json.dumps(config))
    (snapshot / "config.json").symlink_to("../../blobs/feed")
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("0123abc")
    return snapshot / "config.json"


@pytest.mark.parametrize("name", ["meta-llama/Tiny-Llama", "bert-tiny-uncased", "any/owner"])
def test_a_name_is_priced_by_what_the_local_cache_has(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configuration("bert" if name.startswith("bert") else "llama").to_dict()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("socket.socket.connect", None)  # nothing asks the network
    with pytest.raises(ValueError, match="label"):
        mpc.simulate(name)
    path = cached(tmp_path, name, config)
    report, own = mpc.simulate(name), mpc.simulate(config)
    assert (report.label, report.total) == (own.label, own.total)
    assert any(str(path) in note for note in report.notes)
    done = CliRunner().invoke(app, ["cost", "show", name])
    assert done.exit_code == 0 and str(path) in done.stdout
    assert CliRunner().invoke(app, ["cost", "advise", name]).exit_code == 0


def test_a_published_preset_and_a_label_are_not_looked_for_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    for name in ("gpt2", "EleutherAI/pythia-70m", "SM"):
        cached(tmp_path, name, configuration("bert").to_dict())
        assert mpc.simulate(name).spec is not None


def test_a_runs_folder_is_priced_as_its_network(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ValueError, match=r"config\.json"):
        mpc.simulate(str(tmp_path))
    AeroConfig.from_label("SM+R", model="tiny").save_pretrained(tmp_path / "model")
    report = mpc.simulate(tmp_path)
    assert (report.label, report.total) == ("SM+R", mpc.simulate(tmp_path / "model").total)
    for command in ("show", "advise"):
        assert CliRunner().invoke(app, ["cost", command, str(tmp_path)]).exit_code == 0
    assert not mpc.simulate(tmp_path).notes
