"""Networks in fixed point against themselves in floating point."""

import pytest
import torch
from tests.python.refusals import assert_refused

from aero.fixed_point import Approximations
from aero.models import FixedPointForCausalLM
from aero.nn import FoldableNorm

from .labels import LABELS, tiny

# Fine enough that only the approximations of 1/sqrt, tanh and the reciprocal remain: products stay
# below 2^(63 - 48) = 2^15, exp is off by x^2 / 2^13 of itself.
FINE = Approximations(fraction_bits=24, exp_squarings=12)


def trained_like(label: str, family: str = "gpt2", **overrides):
    """A network none of whose parameters has a special value any more."""
    torch.manual_seed(0)
    model = tiny(label, family, **overrides)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        for _ in range(3):  # the power iterations of spectral norms follow
            model.train()(torch.randint(256, (1, 32)))
        for module in model.modules():
            if isinstance(module, FoldableNorm):
                module.running_mean_square.uniform_(0.5, 2)
    return model.eval()


def difference(model, approximations=None, *, shape=(2, 32)) -> float:
    """Largest difference of the logits over their root mean square."""
    tokens = torch.randint(model.config.spec.vocab_size, shape)
    with torch.no_grad():
        exact = model(tokens).logits.double()
    found = FixedPointForCausalLM(model, approximations)(tokens).logits
    assert found.shape == exact.shape and found.dtype == torch.float64
    return ((found - exact).abs().max() / exact.square().mean().sqrt()).item()


CASES = [(label, "gpt2") for label in LABELS]
CASES += [(label, "pythia") for label in LABELS if not label.startswith("SOTA")]


@pytest.mark.parametrize(("label", "family"), CASES)
def test_every_network_computes_its_function(label, family):
    model = trained_like(label, family)
    # tanh is right to 0.005, erf to 6e-4 and 1/sqrt to 3e-4, which later layers amplify a little;
    # the rest is right to 1e-4.
    is_approximate = any(word in label.replace("EReg", "") for word in ("G", "LN", "DyT", "Derf"))
    assert difference(model, FINE) < (0.05 if is_approximate else 2e-3)


def test_fewer_squarings_and_bits_cost_accuracy():
    model = trained_like("EReg(SM(t)+ScFuFFN)")
    errors = [
        difference(model, Approximations.of_stack("spu-2024", **fields))
        for fields in ({"fraction_bits": 24, "exp_squarings": 12}, {}, {"exp_squarings": 5})
    ]
    assert errors[0] < errors[1] < errors[2]


def test_only_the_clip_makes_far_scores_zero():
    model = trained_like("SM+ScFuFFN")
    for block in model.transformer.blocks():
        block.attn.c_attn.weight.data.mul_(30)
    tokens = torch.randint(256, (1, 32))
    # (1 + x / 2^3)^(2^3) is large again for x below -16.
    clipped, grown = (
        FixedPointForCausalLM(model, Approximations(exp_squarings=3, exp_clip=clip))(tokens).logits
        for clip in (True, False)
    )
    assert (clipped - grown).abs().max() > 0.1 * clipped.abs().max()


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (1, 32)])
def test_any_length_up_to_the_context_is_fine(shape):
    assert difference(trained_like("SM+ScFuFFN"), shape=shape) < 0.05


@pytest.mark.parametrize(
    ("ids", "named"),
    [
        ([[0] * 33], ("T up to 32", "got [1, 33]")),
        ([[255, -1]], ("from 0 to 255, the vocabulary", "got -1")),
        ([[255, 256]], ("from 0 to 255, the vocabulary", "got 256")),
    ],
)
def test_ids_that_the_network_does_not_know_are_an_error(ids, named):
    model = FixedPointForCausalLM(trained_like("SM"))
    assert_refused(lambda: model(torch.tensor(ids)), *named)


def test_a_secret_temperature_and_shares_change_the_last_bits_only():
    model = trained_like("EReg(SM(t)+ScFuFFN)")
    tokens = torch.randint(256, (1, 32))
    plain = FixedPointForCausalLM(model)(tokens).logits
    for fields in ({"secret_temperature": True}, {"truncation": "shares"}):
        approximations = Approximations.of_stack("spu-2024", **fields)
        found = FixedPointForCausalLM(model, approximations)(tokens).logits
        assert 0 < (found - plain).abs().max() < 0.02 * plain.abs().max()


@pytest.mark.parametrize("gelu", ["tanh", "segment", "piecewise"])
def test_every_gelu_serves(gelu):
    model = trained_like("SM+G")
    found = difference(model, Approximations(gelu=gelu))
    assert 1e-4 < found < 0.3  # the fits are off by up to 0.02 per activation


def test_a_rectified_number_below_zero_is_zero_to_the_last_bit():
    model = trained_like("SM+R")
    tokens = torch.randint(256, (1, 32))
    found = []
    for factor in (1000.0, 0.0):  # by which the unit would be multiplied
        for block in model.transformer.blocks():
            torch.nn.init.zeros_(block.mlp.c_fc.weight)
            torch.nn.init.constant_(block.mlp.c_fc.bias, -3.0)
            torch.nn.init.constant_(block.mlp.c_proj.weight, factor)
        found.append(FixedPointForCausalLM(model)(tokens).logits)
    assert torch.equal(*found)
