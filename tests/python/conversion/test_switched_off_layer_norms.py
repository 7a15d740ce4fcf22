"""GPT-2 models whose LayerNorms were trained away, as they are published (arXiv 2507.02559)."""

import pytest
import torch
from tests.python.refusals import assert_refused
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from aero import AeroForCausalLM
from aero.conversion import convert, remove_layernorm

from .networks import aero_network, gpt2, logits_of, pythia, relative_difference, tokens


def published(*, tied=True, final_bias=0.0):
    """A model as in those checkpoints: an epsilon of 1e12, and gains of 1e6 times the map."""
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=2, n_head=2, n_embd=8, vocab_size=11, n_positions=12, attn_pdrop=0.0,
        embd_pdrop=0.0, resid_pdrop=0.0, layer_norm_epsilon=1e12, initializer_range=0.3,
        tie_word_embeddings=tied,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".bias" in name and ".ln_f." not in name:
                parameter.normal_(std=0.3)
            elif ".ln_f.bias" in name:
                parameter.fill_(final_bias)
            elif ".ln_" in name:
                parameter.uniform_(0.5e6, 2e6)
    return model


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [0.0, 0.4])
def test_layer_norms_that_are_switched_off_go_exactly(tied, bias):
    model = published(tied=tied, final_bias=bias)
    tokens = torch.randint(11, (3, 12), generator=torch.Generator().manual_seed(1))
    expected = model(tokens).logits
    plan = convert(model, "SM+G", dry_run=True)
    assert [str(step).partition(":")[0] for step in plan.steps] == ["remove_layernorm (exact)"]
    for converted in (convert(model, "SM+G"), remove_layernorm(model)):
        assert converted.config.spec.label == "SM+G"
        assert not [n for n, _ in converted.named_parameters() if ".ln_" in n]
        torch.testing.assert_close(converted(tokens).logits, expected, atol=2e-5, rtol=1e-4)
    convert(model, "SM+G", inplace=True)
    torch.testing.assert_close(model(tokens).logits, expected, atol=2e-5, rtol=1e-4)
    again = convert(model, "SM+G")  # reads what stands there now
    torch.testing.assert_close(again(tokens).logits, expected, atol=2e-5, rtol=1e-4)


def test_a_tied_head_of_such_a_model_becomes_a_matrix_of_its_own():
    model = published()
    (step,) = convert(model, "SM+G", dry_run=True).steps
    assert str(step).endswith("centring, gain and bias fold; the head is no longer tied")
    converted = convert(model, "SM+G")
    assert not converted.config.spec.tied_embeddings
    assert converted.lm_head.weight is not converted.transformer.wte.weight


def without_a_gain():
    model = published(final_bias=0.4)
    with torch.no_grad():
        model.transformer.ln_f.weight[3] = 0.0
    return model


@pytest.mark.parametrize(
    ("make", "label", "named"),
    [
        (without_a_gain, "SM+G", ("a bias in channel 3", "gain is 0")),
        (published, "SM+FN+G", ("convert it to a label", "switched off (epsilon 1e+12)")),
    ],
)
def test_what_stays_of_the_norms_must_be_nothing(make, label, named):
    assert_refused(lambda: convert(make(), label), *named)


@pytest.mark.parametrize(
    "make",
    [
        lambda: pythia(layer_norm_eps=1e12),
        lambda: gpt2(layer_norm_epsilon=1e12, tie_word_embeddings=False),
        lambda: aero_network("SM+LN+ScFFN_i1", "pythia", layer_norm_epsilon=1e12),
        lambda: aero_network("SM+LN+ScFuFFN_i2", tied_embeddings=False, layer_norm_epsilon=1e12),
    ],
)
def test_any_network_with_a_head_of_its_own_loses_them_exactly(make):
    model = make().double()
    removed = remove_layernorm(model)
    assert removed.config.conversion_steps[-1] == (
        "remove_layernorm (exact): switched off by epsilon 1e+12: centring, gain and bias fold"
    )
    # A variance of the stream is 1e-10 of the epsilon or less.
    expected = logits_of(model, tokens())
    assert relative_difference(logits_of(removed, tokens()), expected) < 1e-9
    if isinstance(model, PreTrainedModel) and not isinstance(model, AeroForCausalLM):
        convert(model, "SM+G", inplace=True)
        assert relative_difference(logits_of(model, tokens()), expected) < 1e-9


@pytest.mark.parametrize(("epsilon", "is_exact"), [(1e11, True), (1e11 - 0.5, False)])
def test_an_epsilon_of_1e11_switches_off(epsilon, is_exact):
    steps = convert(gpt2(layer_norm_epsilon=epsilon), "SM+G", dry_run=True).steps
    assert all(step.is_exact for step in steps) == is_exact
