"""Soft caps, biases, sinks, windows, dropout and encoders through `attn_implementation`."""

import math

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    BertConfig,
    Gemma2Config,
    GPT2Config,
    T5Config,
    T5ForConditionalGeneration,
)

import aero
from aero.models.hugging_face_attention import (
    aero_attention_forward,
    aero_entropy_attention_forward,
)

from .stock_models import stock_model

TOKENS = torch.randint(1, 16, (2, 9), generator=torch.Generator().manual_seed(0))
_SIZES = {
    "vocab_size": 16, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "initializer_range": 0.5, "pad_token_id": 0,
}  # fmt: skip


def pair(kind, config, **settings):
    """A model with eager attention and one with ours, of the same weights."""
    build = getattr(kind, "from_config", None) or kind._from_config
    models = []
    for name in ("eager", "aero"):
        torch.manual_seed(0)
        models.append(build(config(**settings), attn_implementation=name).eval())
    return models


def assert_equal_with_gradients(models, *arguments, **keywords):
    outputs = [model(*arguments, **keywords).logits for model in models]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-4)
    for output in outputs:
        output.square().mean().backward()
    for ours, theirs in zip(models[1].parameters(), models[0].parameters(), strict=True):
        if theirs.grad is not None:
            scale = theirs.grad.abs().max().item()
            assert (ours.grad - theirs.grad).abs().max() <= 1e-4 * max(scale, 1.0)


def test_a_soft_cap_that_binds_gives_eagers_logits_and_gradients():
    settings = {**_SIZES, "num_key_value_heads": 2, "head_dim": 8, "query_pre_attn_scalar": 8}
    settings["sliding_window"] = 4
    models = pair(
        AutoModelForCausalLM, Gemma2Config, **settings, attn_logit_softcapping=0.5, bos_token_id=0,
        eos_token_id=None,
    )  # fmt: skip
    assert_equal_with_gradients(models, TOKENS)
    uncapped = pair(AutoModelForCausalLM, Gemma2Config, **settings, attn_logit_softcapping=None)
    assert not torch.allclose(models[1](TOKENS).logits, uncapped[1](TOKENS).logits, atol=1e-2)


def test_a_learned_position_bias_gives_eagers_logits_and_gradients():
    config = {
        "vocab_size": 16, "d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 4,
        "initializer_factor": 1.0, "pad_token_id": 0, "dropout_rate": 0.0,
    }  # fmt: skip
    models = pair(T5ForConditionalGeneration, T5Config, **config)
    mask = torch.ones_like(TOKENS)
    mask[1, :3] = 0
    assert_equal_with_gradients(
        models, input_ids=TOKENS, attention_mask=mask, decoder_input_ids=TOKENS[:, :5]
    )


def test_a_mask_of_numbers_is_added_to_the_scores():
    models = pair(AutoModelForCausalLM, GPT2Config, vocab_size=16, n_embd=32, n_layer=2, n_head=4,
                  initializer_range=0.3, bos_token_id=0, eos_token_id=0)  # fmt: skip
    causal = torch.full((9, 9), -torch.inf).triu(1).expand(2, 1, 9, 9)
    distances = (torch.arange(9) - torch.arange(9)[:, None]).clamp(max=0) * 0.3
    assert_equal_with_gradients(models, TOKENS, attention_mask=causal + distances)
    layer, q = torch.nn.Module(), torch.randn(2, 2, 9, 8)
    ours = aero_attention_forward(layer, q, q, q, causal)[0]
    torch.testing.assert_close(ours, aero_attention_forward(layer, q, q, q, None)[0])


def test_a_mask_that_changes_in_place_counts_as_it_is():
    layer, q = torch.nn.Module(), torch.randn(1, 2, 3, 8)
    mask = torch.zeros(1, 1, 3, 3)
    before = aero_attention_forward(layer, q, q, q, mask)[0]
    mask[..., 2] = -torch.inf
    after = aero_attention_forward(layer, q, q, q, mask)[0]
    torch.testing.assert_close(after, aero_attention_forward(layer, q, q, q, mask == 0)[0])
    assert not torch.allclose(before, after)


@pytest.mark.parametrize("rows", [False, True], ids=["of heads", "of rows"])
def test_a_sink_takes_its_share_and_entropies_are_those_of_the_keys(rows):
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 5, 8, generator=generator)
    shape = (2, 4, 5, 1) if rows else (4,)
    sinks = torch.randn(shape, generator=generator, requires_grad=True)
    name = "sinks" if rows else "s_aux"
    out, entropy = aero_entropy_attention_forward(torch.nn.Module(), q, k, v, None, **{name: sinks})
    scores = (q @ k.mT).double() / math.sqrt(8)
    scores = scores.masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), -torch.inf)
    column = (sinks if rows else sinks.view(1, 4, 1, 1)).double().expand(2, 4, 5, 1)
    weights = torch.cat((scores, column), -1).softmax(-1)[..., :-1]
    expected = (weights @ v.double()).transpose(1, 2)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-6)
    shares = scores.softmax(-1)
    torch.testing.assert_close(
        entropy.double(), torch.special.entr(shares).sum(-1), rtol=1e-5, atol=1e-6
    )
    dout = torch.randn(out.shape, generator=generator)
    found, wanted = (
        torch.autograd.grad(x, sinks, y) for x, y in ((out, dout), (expected, dout.double()))
    )
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_sinks_count_beside_an_empty_other_name_and_two_of_them_are_refused():
    layer, q, sinks = torch.nn.Module(), torch.randn(1, 4, 3, 8), torch.randn(4)
    expected = aero_attention_forward(layer, q, q, q, None, sinks=sinks)[0]
    found = aero_attention_forward(layer, q, q, q, None, s_aux=None, sinks=sinks)[0]
    assert torch.equal(found, expected)
    assert not torch.allclose(found, aero_attention_forward(layer, q, q, q, None)[0])
    with pytest.raises(ValueError, match="s_aux and sinks"):
        aero_attention_forward(layer, q, q, q, None, s_aux=sinks + 1, sinks=sinks)


def test_a_window_that_the_mask_says_too_changes_nothing():
    layer, q = torch.nn.Module(), torch.randn(2, 2, 40, 8)
    rows, columns = torch.arange(40)[:, None], torch.arange(40)
    mask = ((columns <= rows) & (columns > rows - 5)).expand(2, 1, 40, 40)
    plain = aero_entropy_attention_forward(layer, q, q, q, mask)
    hinted = aero_entropy_attention_forward(layer, q, q, q, mask, sliding_window=5)
    torch.testing.assert_close(hinted, plain)


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_zeroes_weights_and_scales_the_others_but_not_the_entropies(p):
    layer, count = torch.nn.Module(), 64
    q, k = torch.randn(2, 8, 4, count, 64, generator=torch.Generator().manual_seed(0))
    v = torch.eye(count).expand(8, 4, count, count)  # the output is the weights
    whole, entropy = aero_entropy_attention_forward(layer, q, k, v, None)
    out, dropped_entropy = aero_entropy_attention_forward(layer, q, k, v, None, dropout=p)
    assert torch.equal(entropy, dropped_entropy)
    seen = whole > 0
    is_dropped = (out == 0) & seen
    torch.testing.assert_close(out[seen & ~is_dropped], whole[seen & ~is_dropped] / (1 - p))
    share = is_dropped.sum() / seen.sum()
    assert abs(share - p) < 6 * math.sqrt(p * (1 - p) / seen.sum())


@pytest.mark.parametrize("name", ["gpt2", "llama-grouped"])
def test_models_train_with_the_dropout_that_they_have_by_default(name):
    dropout = {"gpt2": {"attn_pdrop": 0.1}, "llama-grouped": {"attention_dropout": 0.1}}[name]
    model = aero.with_entropy_penalty(stock_model(name, "sdpa", **dropout)).train()
    torch.manual_seed(1)
    first, again = (model(TOKENS, labels=TOKENS).loss for _ in range(2))
    torch.manual_seed(1)
    assert torch.equal(model(TOKENS, labels=TOKENS).loss, first) and first != again
    first.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_entropies_of_an_encoder_are_those_of_eagers_weights():
    config = BertConfig(**_SIZES)
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(config, attn_implementation="eager").eval()
    mask = torch.ones_like(TOKENS)
    mask[1, -4:] = 0
    batch = {"input_ids": TOKENS, "attention_mask": mask}
    found = aero.entropies(model, batch)
    with torch.no_grad():
        theirs = model(**batch, output_attentions=True).attentions
    rows = mask.bool()[:, None].expand(2, 4, 9)
    for layer, weights in zip(found.layers, theirs, strict=True):
        wanted = torch.special.entr(weights).sum(-1)
        torch.testing.assert_close(layer[rows], wanted[rows], rtol=1e-4, atol=1e-5)
    assert found.visible_keys.tolist() == [[[9] * 9, [5] * 5 + [0] * 4]] * 2
