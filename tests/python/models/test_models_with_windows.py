"""Windows of transformers' models are a call that skips keys, without a mask of T x T."""

import pytest
import torch
from transformers import DynamicCache, StaticCache

import aero

from .test_flattened_batches import Squares, gradients
from .windowed_models import WINDOW, windowed_model

T = 23
TOKENS = torch.randint(1, 16, (2, T), generator=torch.Generator().manual_seed(1))
NAMES = ["mistral", "qwen2", "gemma3", "starcoder2"]
ONES = torch.ones(2, T, dtype=torch.long)
BATCHES = {
    "no mask": {"use_cache": False},
    "a mask of ones": {"attention_mask": ONES, "use_cache": False},
    "an empty cache": {"attention_mask": ONES, "use_cache": True},
}


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", NAMES)
def test_losses_and_gradients_are_eagers_and_nothing_is_a_square(name, batch):
    found, model = [], windowed_model(name, "aero", torch.float64).train()
    with Squares(T) as seen:
        outputs = model(TOKENS, labels=TOKENS, **BATCHES[batch])
        found = gradients(model, outputs.loss)
    assert not seen.found
    eager = windowed_model(name, "eager", torch.float64).train()
    wanted = eager(TOKENS, labels=TOKENS, **BATCHES[batch])
    # Rotary angles, losses and the softmax of eager attention are float32.
    torch.testing.assert_close(outputs.logits, wanted.logits, rtol=1e-5, atol=1e-5)
    for parameter, gradient in gradients(eager, wanted.loss).items():
        torch.testing.assert_close(found[parameter], gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_one_sequence_has_the_same_bits_with_ones_and_without(name):
    model = windowed_model(name, "aero")
    with torch.no_grad():
        logits = model(TOKENS, use_cache=False).logits
        assert torch.equal(model(TOKENS, attention_mask=ONES, use_cache=False).logits, logits)
        short = TOKENS[:, : WINDOW - 1]
        torch.testing.assert_close(model(short, use_cache=False).logits, logits[:, : WINDOW - 1])


@pytest.mark.parametrize("cache", ["dynamic", "static", "none"])
def test_padding_and_caches_have_the_logits_of_eager(cache):
    models = [windowed_model("mistral", name) for name in ("aero", "eager")]
    padded = ONES.clone()
    padded[1, :6] = 0
    results = []
    for model in models:
        past = {
            "dynamic": DynamicCache(config=model.config),
            "static": StaticCache(config=model.config, max_cache_len=T + 2),
            "none": None,
        }[cache]
        how = {"past_key_values": past, "use_cache": past is not None}
        calls = [(TOKENS[:, :9], padded[:, :9]), (TOKENS[:, 9:], padded)]
        with torch.no_grad():
            for ids, mask in [(TOKENS, padded)] if cache == "none" else calls:
                results.append(model(ids, attention_mask=mask, **how).logits)
    half = len(results) // 2
    for ours, theirs in zip(results[:half], results[half:], strict=True):
        row = 6 if ours.shape[1] != T - 9 else 0
        torch.testing.assert_close(ours[:, row:], theirs[:, row:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mask", [ONES, None], ids=["ones", "none"])
def test_packed_positions_that_would_be_ignored_are_still_refused(mask):
    model = windowed_model("mistral", "aero")
    places = torch.cat([torch.arange(9), torch.arange(T - 9)]).expand(2, -1)
    with pytest.raises(ValueError, match="sequences before theirs"):
        model(TOKENS, attention_mask=mask, position_ids=places, use_cache=True)


def test_entropies_count_the_keys_of_the_window():
    found = aero.entropies(windowed_model("mistral", "aero_entropy"), {"input_ids": TOKENS})
    assert torch.equal(found.visible_keys[0, 0], torch.arange(1, T + 1).clamp(max=WINDOW))


def test_dropout_follows_the_seed_and_drops_weights_of_the_window():
    model = windowed_model("mistral", "aero")
    model.config.attention_dropout = 0.5
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    losses = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        losses.append(float(model.train()(TOKENS, labels=TOKENS, use_cache=False).loss.detach()))
    assert losses[0] == losses[1] != losses[2]
