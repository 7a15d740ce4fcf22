import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM

from aero.models import AeroConfig, AeroForCausalLM

from .labels import tiny

TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8]])


def _gpt2(implementation, **config):
    torch.manual_seed(0)
    settings = {"vocab_size": 16, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
    settings |= {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0} | config
    config = GPT2Config(bos_token_id=0, eos_token_id=0, pad_token_id=0, **settings)
    config._attn_implementation = implementation
    return GPT2LMHeadModel(config).eval()


def _neox(implementation):
    torch.manual_seed(0)
    config = GPTNeoXConfig(
        vocab_size=16,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
        attn_implementation=implementation,
    )
    return GPTNeoXForCausalLM(config).eval()


def _entropies(weights):
    return -torch.xlogy(weights, weights).sum(dim=-1)


@pytest.mark.parametrize("build", [_gpt2, _neox])
def test_stock_models_give_their_logits_and_entropies(build):
    with torch.no_grad():
        eager = build("eager")(TOKENS, output_attentions=True)
        plain = build("aero")(TOKENS, output_attentions=True)
        ours = build("aero_entropy")(TOKENS, output_attentions=True)
    torch.testing.assert_close(plain.logits, eager.logits)
    torch.testing.assert_close(ours.logits, eager.logits)
    assert not plain.attentions
    assert len(ours.attentions) == 2
    for entropy, weights in zip(ours.attentions, eager.attentions, strict=True):
        assert entropy.dtype == torch.float32
        torch.testing.assert_close(entropy, _entropies(weights), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("build", [_gpt2, _neox])
def test_stock_models_respect_left_padding(build):
    mask = torch.ones_like(TOKENS)
    mask[1, :4] = 0
    arguments = {"attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}
    with torch.no_grad():
        eager = build("eager")(TOKENS, **arguments).logits
        ours = build("aero_entropy")(TOKENS, **arguments).logits
    torch.testing.assert_close(ours[mask.bool()], eager[mask.bool()])


def test_gradients_of_entropies_reach_stock_weights():
    gradients = []
    for name in ("eager", "aero_entropy"):
        model = _gpt2(name).train()
        attentions = model(TOKENS, output_attentions=True).attentions
        if name == "eager":
            # xlogy has no gradient at the masked zeros.
            attentions = [-(w * w.clamp(min=1e-30).log()).sum(-1) for w in attentions]
        sum(entropy.sum() for entropy in attentions).backward()
        gradients.append(model.transformer.h[0].attn.c_attn.weight.grad)
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-4, rtol=1e-3)


def test_the_implementation_of_a_stock_model_changes_at_run_time():
    model = _gpt2("sdpa")
    model.set_attn_implementation("aero_entropy")
    assert len(model(TOKENS, output_attentions=True).attentions) == 2


@pytest.mark.parametrize("cache", [None, "static"])
def test_generation_of_stock_models_equals_eager(cache):
    arguments = {"max_new_tokens": 6, "do_sample": False, "cache_implementation": cache}
    arguments |= {"disable_compile": True} if cache else {}
    expected = _gpt2("eager").generate(TOKENS, **arguments)
    assert torch.equal(_gpt2("aero").generate(TOKENS, **arguments), expected)


def test_dropout_is_refused_not_ignored():
    model = _gpt2("aero", attn_pdrop=0.1)
    model(TOKENS)
    with pytest.raises(ValueError, match=r"GPT2Attention asks for dropout 0\.1"):
        model.train()(TOKENS)


def test_additive_masks_and_unsupported_features_are_refused():
    from aero.models import aero_attention_forward

    q = torch.randn(1, 2, 4, 8)
    module = torch.nn.Module()
    with pytest.raises(ValueError, match="attention_mask must be boolean"):
        aero_attention_forward(module, q, q, q, torch.zeros(1, 1, 4, 4))
    with pytest.raises(ValueError, match="Module needs sliding_window, which is not supported"):
        aero_attention_forward(module, q, q, q, None, sliding_window=2)


def test_bidirectional_layers_see_every_key():
    from aero.models import aero_entropy_attention_forward

    module = torch.nn.Module()
    module.is_causal = False
    q = torch.zeros(1, 2, 4, 8)
    _, entropy = aero_entropy_attention_forward(module, q, q, q, None)
    torch.testing.assert_close(entropy, torch.full((1, 2, 4), 4.0).log())


def test_own_models_default_to_aero_and_refuse_foreign_attention():
    model = tiny("SM(t)+G")
    assert model.config._attn_implementation == "aero"
    model.set_attn_implementation("aero_entropy")
    assert model.config._attn_implementation == "aero_entropy"
    for name in ("sdpa", "eager", "flash_attention_2"):
        with pytest.raises(ValueError, match=f"'aero' or 'aero_entropy', got '{name}'"):
            model.set_attn_implementation(name)
        with pytest.raises(ValueError, match="would ignore temperatures"):
            AeroForCausalLM(AeroConfig.from_label("SM", model="tiny", attn_implementation=name))


def test_own_models_repeat_entropies_as_attentions_on_request():
    output = tiny("SM+G")(TOKENS, output_attentions=True)
    assert all(map(torch.equal, output.attentions, output.entropies))
    assert tiny("SM+G")(TOKENS).attentions is None
