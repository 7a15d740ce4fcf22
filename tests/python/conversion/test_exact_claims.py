"""What a step says about the logits, over the grid of networks that it accepts."""

import itertools

import pytest
import torch

from aero.conversion import (
    convert,
    fold_layernorm,
    fold_norm,
    fuse_ffn,
    prune_ffn,
    remove_layernorm,
    replace_activation,
)

from .networks import aero_network, logits_of, relative_difference, tokens

TEMPERATURES = ["", "(t:scalar)", "(t:head)"]
NORMS = ["", "+LN", "+FN"]
FEED_FORWARDS = ["+G", "", "+WNFFN(qkvo+ffn)", "+SNFFN", "+SNFFN(qk)", "+SNFFN(qkvo+ffn)"]
STEPS = {
    "fold_layernorm": fold_layernorm,
    "remove_layernorm": remove_layernorm,
    "fold_norm": fold_norm,
    "fuse_ffn": fuse_ffn,
    "replace_activation": lambda model: replace_activation(model, "identity"),
    "prune_ffn": lambda model: prune_ffn(model, deepest=1),
    "a shorter context": lambda model: _convert(model, context_length=20),
    "untied": lambda model: _convert(model, tied_embeddings=False),
    "with thresholds": lambda model: convert(model, f"EReg({model.config.spec.label})"),
    "without temperature": lambda model: _convert(model, temperature="none"),
    "finer temperatures": lambda model: _convert(model, temperature="head_position"),
    "without a norm of weights": lambda model: _convert(model, ffn="linear"),
    "one norm of weights fewer": lambda model: _convert(model, normalized_layers="ffn"),
}


def _convert(model, *, context_length=None, tied_embeddings=None, **changes):
    """The network with other fields of its spec."""
    label = model.config.spec.replace(**changes).label
    return convert(model, label, context_length=context_length, tied_embeddings=tied_embeddings)


def _check(model, step):
    """Whether the step was taken; its claim must hold where it says exact."""
    try:
        changed = STEPS[step](model)
    except ValueError:
        return False
    claims = changed.config.conversion_steps or []
    if all("(exact)" in claim for claim in claims):
        ids = tokens()
        difference = relative_difference(logits_of(changed, ids), logits_of(model, ids))
        # Products are rounded once, in float64.
        assert difference < 1e-9, (model.config.spec.label, claims, difference)
    return True


@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_calls_itself_exact_keeps_the_logits(step):
    taken = 0
    for t, norm, ffn in itertools.product(TEMPERATURES, NORMS, FEED_FORWARDS):
        taken += _check(aero_network(f"SM{t}{norm}{ffn}", num_layers=1).double(), step)
    for label in ("SOTA:SM(t:head)+FN+SNFFN(qk)", "SOTA:SM(t:scalar)+LN+SNFFN", "SOTA:SM+FN+R"):
        taken += _check(aero_network(label).double(), step)
    assert taken >= 9


def test_a_norm_of_weights_that_no_step_touches_stays_as_it_was_trained():
    for label in ("SM+SNFFN(qkvo+ffn)", "SM+WNFFN(qkvo+ffn)"):
        model = aero_network(label)
        network = convert(model, label.replace("SM", "SM(t:head)"))
        assert network.config.conversion_steps
        state = network.state_dict()
        for name, value in model.state_dict().items():
            assert torch.equal(state[name], value), name


def test_a_final_foldable_norm_takes_the_kind_of_the_norms_that_come():
    model = aero_network("SM+LN+G", final_norm="foldable")
    network = convert(model, "SM+FN(scalar)+G", final_norm="foldable")
    before = model.transformer.ln_f.running_mean_square
    torch.testing.assert_close(network.transformer.ln_f.running_mean_square, before.mean().view(1))
    assert torch.equal(network.transformer.ln_f.weight, model.transformer.ln_f.weight)
    kept = convert(model, "SM+FN+G", final_norm="foldable").transformer.ln_f
    assert torch.equal(kept.running_mean_square, before)


def test_switched_off_layer_norms_fold_exactly_under_a_spectral_norm():
    model = aero_network("SM+LN+SNFFN(qkvo+ffn)", layer_norm_epsilon=1e12).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".ln_" in name and name.endswith("weight"):
                parameter.mul_(1e6)
        for _ in range(20):  # singular values as a training knows them, so that no weight is huge
            model.train()(tokens())
    network = remove_layernorm(model.eval())
    assert network.config.conversion_steps[0].startswith("remove_layernorm (exact)")
    difference = relative_difference(logits_of(network, tokens()), logits_of(model, tokens()))
    # The variance beside an epsilon of 1e12 counts in float64.
    assert difference < 1e-9
