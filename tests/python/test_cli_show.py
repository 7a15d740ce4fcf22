"""`aero show` on the decoders that people bring."""

import json
import math
import re

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, LlamaConfig, MistralConfig
from typer.testing import CliRunner

from aero.cli import app
from aero.saved.tokenizer import save_tokenizer, train_tokenizer

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_SIZES = {"vocab_size": 260, "max_position_embeddings": 64, "initializer_range": 0.3}
_GROUPED = {"num_key_value_heads": 2, "intermediate_size": 48, "hidden_size": 32,
            "num_hidden_layers": 2, "num_attention_heads": 4, **_SIZES}  # fmt: skip
CONFIGS = {
    "gpt2": GPT2Config(n_layer=2, n_head=2, n_embd=8, bos_token_id=0, eos_token_id=0, **_SIZES),
    "llama": LlamaConfig(**_GROUPED),
    "mistral": MistralConfig(**_GROUPED, sliding_window=4),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with the networks, each with a tokenizer."""
    folder = tmp_path_factory.mktemp("saved")
    tokenizer = train_tokenizer(["the cat"], 260)
    for name, config in CONFIGS.items():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        model.save_pretrained(folder / name)
        save_tokenizer(tokenizer, folder / name, context_length=64)
    return folder


def invoke(*arguments):
    return CliRunner().invoke(app, ["show", *map(str, arguments), "--no-browse"])


def shown(page):
    (data,) = re.findall(
        '<script type="application/json" id="data">(.*?)</script>', page.read_text("utf-8"), re.S
    )
    return json.loads(data)


def weights_of(one):
    """[heads, T, T], read back from the page."""
    size, text = len(one["words"]), one["weights"]
    codes = [
        64 * LETTERS.index(a) + LETTERS.index(b) for a, b in zip(text[::2], text[1::2], strict=True)
    ]
    rows, keys = np.tril_indices(size)
    found = np.zeros((len(codes) // len(rows), size, size))
    values = [0.0 if code == 4095 else math.exp(-code / 250) for code in codes]
    found[:, rows, keys] = np.reshape(values, (-1, len(rows)))
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_any_decoder_is_shown_as_it_looks_at_the_text(name, saved, tmp_path):
    page = tmp_path / "page.html"
    done = invoke(saved / name, "--text", "the cat sat", "--output", page)
    assert done.exit_code == 0, done.output
    (one,) = shown(page)
    assert "".join(word[1:-1] for word in one["words"]) == "the cat sat"
    model = AutoModelForCausalLM.from_pretrained(saved / name, attn_implementation="eager").eval()
    batch = torch.tensor([AutoTokenizer.from_pretrained(saved / name)("the cat sat").input_ids])
    with torch.no_grad():
        expected = torch.cat(model(batch, output_attentions=True).attentions).double().numpy()
    np.testing.assert_allclose(weights_of(one), expected.reshape(-1, *expected.shape[-2:]),
                               atol=3e-3)  # fmt: skip
    windows = np.minimum(np.arange(1, batch.shape[1] + 1), 4 if name == "mistral" else 99)
    np.testing.assert_allclose(one["most"], [np.log(windows)] * 2, atol=1e-4)


def test_two_networks_and_a_text_of_its_own_need_no_option(saved):
    done = invoke(saved / "gpt2", saved / "llama")
    assert done.exit_code == 0, done.output
    page = saved / "gpt2" / "show.html"
    assert [len(one["words"]) for one in shown(page)] == [24, 24]
    assert page.stat().st_size < 2_000_000
    assert "first 24 tokens; --max-tokens" in done.stderr
