import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from aero.nn.linear import Linear
from aero.nn.weight_forms import normalize_weight


def test_weight_norm_has_a_gain_per_output_and_starts_as_the_plain_layer():
    layer = Linear(6, 4)
    before = layer.weight.detach().clone()
    normalize_weight(layer, "weight_norm")
    torch.testing.assert_close(layer.weight, before)
    gains = layer.parametrizations.weight.original0
    assert gains.shape == (4, 1)
    with torch.no_grad():
        gains.fill_(3.0)
    torch.testing.assert_close(layer.weight.norm(dim=1), torch.full((4,), 3.0))


def test_spectral_norm_makes_the_largest_singular_value_one():
    layer = normalize_weight(Linear(12, 9), "spectral_norm")
    for _ in range(50):
        layer(torch.zeros(1, 12))
    largest = torch.linalg.matrix_norm(layer.eval().weight, 2).item()
    assert largest == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_recomputing_a_checkpoint_makes_no_power_iteration(use_reentrant):
    torch.manual_seed(0)
    linear = nn.Linear(6, 6)
    # Singular values so close that every iteration still turns the vectors.
    nn.init.orthogonal_(linear.weight)
    with torch.no_grad():
        linear.weight.mul_(torch.linspace(0.9, 1.0, 6).unsqueeze(1))
    plain = normalize_weight(linear, "spectral_norm")
    checkpointed = copy.deepcopy(plain)
    x = torch.randn(4, 6, requires_grad=True)
    plain(x).pow(3).sum().backward()
    expected, x.grad = x.grad, None
    checkpoint(checkpointed, x, use_reentrant=use_reentrant).pow(3).sum().backward()
    torch.testing.assert_close(x.grad, expected)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(checkpointed.state_dict()[name], value)
