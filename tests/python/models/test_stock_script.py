"""A training script of other people, changed in one line, trains with the entropy penalty."""

import runpy
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

import aero

from .test_ecosystem import CHARACTERS, tokenizer

SCRIPT = Path(__file__).with_name("stock_script.py").read_text()
STOCK = "model = AutoModelForCausalLM.from_pretrained(checkpoint)\n"
OURS = (
    "import aero; model = aero.with_entropy_penalty(AutoModelForCausalLM.from_pretrained("
    "checkpoint, attn_pdrop=0.0), weight=1e-3, threshold=0.3)\n"
)


@pytest.fixture
def checkpoint(tmp_path):
    """A tiny GPT-2 with its usual dropouts, and its tokenizer."""
    torch.manual_seed(0)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32}
    ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    config = GPT2Config(vocab_size=len(CHARACTERS) + 1, **sizes, **ends)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "checkpoint")
    tokenizer().save_pretrained(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def run(script, folder, checkpoint, monkeypatch):
    """Perplexity, and mean entropies of the trained network on a few lines."""
    folder.mkdir()
    path = folder / "script.py"
    path.write_text(script)
    arguments = [checkpoint, Path(__file__), folder / "out"]
    monkeypatch.setattr(sys, "argv", [str(path), *map(str, arguments)])
    perplexity = runpy.run_path(str(path))["perplexity"]
    trained = AutoModelForCausalLM.from_pretrained(folder / "out")
    lines = [line for line in Path(__file__).read_text().splitlines() if len(line) > 32][:8]
    batch = torch.tensor([tokenizer()(line)["input_ids"][:32] for line in lines])
    return perplexity, aero.entropies(trained, batch).summary().head_entropy.mean()


def test_one_changed_line_trains_with_the_penalty(checkpoint, tmp_path, monkeypatch):
    assert SCRIPT.count(STOCK) == 1 and "aero" not in SCRIPT
    stock, stock_entropy = run(SCRIPT, tmp_path / "stock", checkpoint, monkeypatch)
    changed = SCRIPT.replace(STOCK, OURS)
    ours, our_entropy = run(changed, tmp_path / "ours", checkpoint, monkeypatch)
    # Both learn (a network that knows nothing has a perplexity of 97, one per character), and the
    # penalised attention is nearer to 0.3 of the maximum, from above.
    assert stock < 48 and ours < 48
    assert our_entropy < 0.85 * stock_entropy
    saved = load_file(tmp_path / "ours" / "out" / "model.safetensors")
    assert (saved["entropy_penalty.threshold_bias"] != 0.3).all()
    assert (tmp_path / "ours" / "out" / "checkpoint-40" / "model.safetensors").exists()
