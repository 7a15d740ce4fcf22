"""`aero export`."""

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from typer.testing import CliRunner

from aero.cli import app
from aero.network import numpy_reader
from aero.network.files import read_network

from .conftest import tokens, trained


def run(*arguments):
    return CliRunner().invoke(app, ["export", *map(str, arguments)])


def test_a_saved_network_is_exported(tmp_path):
    model = trained("EReg(SM(t)+ScFuFFN)", dtype=torch.float32)
    model.save_pretrained(tmp_path / "model")
    result = run(tmp_path / "model", "--output", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert str(tmp_path / "out") in result.stderr
    got = numpy_reader.forward(read_network(tmp_path / "out"), tokens().numpy())
    with torch.no_grad():
        np.testing.assert_allclose(got, model(tokens()).logits.numpy(), atol=1e-4)


def test_a_run_is_exported(tmp_path):
    trained("SM+G", dtype=torch.float32).save_pretrained(tmp_path / "run" / "model")
    (tmp_path / "run" / "run.json").write_text("{}")
    assert run(tmp_path / "run", "--output", tmp_path / "out").exit_code == 0
    assert read_network(tmp_path / "out").description["label"] == "SM+G"


def test_a_network_with_its_code_is_written_on_request(tmp_path):
    trained("SM+G", dtype=torch.float32).save_pretrained(tmp_path / "model")
    assert run(tmp_path / "model", "--output", tmp_path / "out", "--remote-code").exit_code == 0
    assert (tmp_path / "out" / "modeling_aero.py").is_file()
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").config.spec.label == "SM+G"


def test_a_saved_gpt2_is_exported(tmp_path):
    config = GPT2Config(
        vocab_size=9, n_embd=8, n_layer=1, n_head=2, n_positions=8, bos_token_id=0, eos_token_id=0
    )
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    assert run(tmp_path / "gpt2", "--output", tmp_path / "out").exit_code == 0
    assert read_network(tmp_path / "out").description["label"] == "SM+LN+G"


FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 1}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"num_key_value_heads": 1, "head_dim": 4}),
    "bert": (BertConfig, BertForMaskedLM, {}),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_model_of_another_family_is_exported(tmp_path, family):
    config, kind, more = FAMILIES[family]
    sizes = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 2, "intermediate_size": 12}
    torch.manual_seed(1)
    model = kind(config(**sizes, num_attention_heads=2, max_position_embeddings=16, **more)).eval()
    model.save_pretrained(tmp_path / family)
    result = run(tmp_path / family, "--output", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    ids = torch.tensor([[1, 8, 3, 0, 5]])
    got = numpy_reader.forward(read_network(tmp_path / "out"), ids.numpy())
    with torch.no_grad():
        np.testing.assert_allclose(got, model(ids).logits.numpy(), atol=1e-5)


def test_a_family_without_a_description_is_one_line_and_is_not_loaded(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    result = run(tmp_path, "--output", tmp_path / "out")
    assert result.exit_code == 2
    assert "llama" in result.stderr and "'mamba'" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("is_run", [False, True])
def test_a_folder_without_a_network_is_one_line(tmp_path, is_run):
    if is_run:
        (tmp_path / "run.json").write_text("{}")
    result = run(tmp_path, "--output", tmp_path / "out")
    assert result.exit_code == 2
    assert result.stderr.startswith("aero: export: ") and "holds no network" in result.stderr
    assert len(result.stderr.splitlines()) == 1
