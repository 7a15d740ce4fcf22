"""`aero convert`: its output, files and errors."""

import json

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from typer.testing import CliRunner

from aero import cli
from aero.models import AeroConfig, AeroForCausalLM
from aero.saved.tokenizer import load_tokenizer
from aero.train.runs.run_folder import RunFolder

from .run_records import run_info


def invoke(*arguments):
    return CliRunner().invoke(cli.app, ["convert", *map(str, arguments)])


@pytest.fixture
def gpt2(tmp_path):
    config = GPT2Config(n_layer=3, n_embd=16, n_head=2, n_positions=24, vocab_size=40)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    return tmp_path / "gpt2"


def test_a_gpt2_checkpoint_becomes_the_network_of_a_label(gpt2, tmp_path):
    output = tmp_path / "out"
    done = invoke(gpt2, "--label", "SM+ScFuFFN_i1", "--output", output)
    assert done.exit_code == 0, done.output
    assert "AeroForCausalLM SM+LN+G (L 3, d 16, H 2, T 24) to SM+ScFuFFN_i1" in done.stdout
    assert "- prune_ffn (inexact): no FFN in layer 2" in done.stdout
    assert f"wrote {output}" in done.stderr and "has no tokenizer to copy" in done.stderr
    assert AeroForCausalLM.from_pretrained(output).config.spec.label == "SM+ScFuFFN_i1"


def test_a_dry_run_writes_nothing(gpt2, tmp_path):
    before = sorted(tmp_path.iterdir())
    done = invoke(gpt2, "--label", "SM+LN+R", "--dry-run", "--output", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "replace_activation  INEXACT" in done.stdout
    assert sorted(tmp_path.iterdir()) == before


def test_sizes_and_absorption_are_options(gpt2, tmp_path):
    done = invoke(
        gpt2, "--label", "SM+FuFFN", "--context-length", 8, "--untie", "--absorb-ffn",
        "--max-condition", 1e6, "--output", tmp_path / "out",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "3 of 3 FFNs absorbed at condition numbers up to 1e+06; measured" in done.stdout
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["context_length"], config["tied_embeddings"]) == (8, False)
    assert config["num_pruned_ffns"] == 3


def test_the_network_of_a_run_is_converted_with_its_tokenizer(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.write_info(run_info())
    model = AeroForCausalLM(AeroConfig.from_label("SM+ScFFN", model="tiny"))
    model.save_pretrained(run.model)
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    words = Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(run.model)
    done = invoke(run.path, "--label", "SM+ScFuFFN", "--output", tmp_path / "out")
    assert done.exit_code == 0, done.output
    converted = AeroForCausalLM.from_pretrained(tmp_path / "out")
    ids = torch.randint(256, (1, 9))
    with torch.no_grad():
        torch.testing.assert_close(converted(ids).logits, model.eval()(ids).logits)
    assert load_tokenizer(tmp_path / "out").get_vocab() == {"a": 0, "b": 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--label", "SM+ScFuFFN"], "convert: give --output FOLDER, or --dry-run"),
        (["--label", "SM+ScFuFFN_i9", "--dry-run"], "prunes more FFNs than the 3 layers"),
        (["--label", "SM+XX", "--dry-run"], "nearest"),
        (["--label", "SM", "--context-length", "99", "--dry-run"], "from 1 to the network's 24"),
        (["--label", "SM+LN", "--absorb-ffn", "--dry-run"], "absorb_ffn: SM+LN has a LayerNorm"),
    ],
)
def test_wrong_use_ends_with_one_line(gpt2, arguments, message):
    done = invoke(gpt2, *arguments)
    assert done.exit_code == 2, done.output
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("aero: ") and message in last


def test_a_missing_source_ends_with_one_line(tmp_path):
    done = invoke(tmp_path / "nothing", "--label", "SM", "--dry-run")
    assert done.exit_code == 2
    assert "nothing" in done.stderr.strip().splitlines()[-1]
