import pytest
import torch
import torch.nn.functional as F

from aero.nn import FeedForward, FusedFeedForward, ScaledFeedForward, ScaledFusedFeedForward

X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        ("gelu", lambda x: F.gelu(x, approximate="tanh")),
        ("relu", torch.relu),
        ("linear", lambda x: x),
    ],
)
def test_two_layers_with_an_activation_between(activation, function):
    layer = FeedForward(8, 32, activation).double()
    hidden = X @ layer.c_fc.weight.T + layer.c_fc.bias
    expected = function(hidden) @ layer.c_proj.weight.T + layer.c_proj.bias
    torch.testing.assert_close(layer(X), expected)


def test_leaky_slope_is_learned_per_layer_or_handed_in():
    own = FeedForward(8, 32, "leaky_relu", negative_slope=0.25).double()
    shared = FeedForward(8, 32, "leaky_relu").double()
    shared.load_state_dict({k: v for k, v in own.state_dict().items() if k != "negative_slope"})
    slope = torch.full((1,), 0.25, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(shared(X, slope), own(X))
    hidden = F.leaky_relu(own.c_fc(X), 0.25)
    torch.testing.assert_close(own(X), own.c_proj(hidden))
    own(X).sum().backward()
    shared(X, slope).sum().backward()
    assert own.negative_slope.grad.item() != 0
    torch.testing.assert_close(slope.grad, own.negative_slope.grad)
    with pytest.raises(ValueError, match="leaky_relu needs a negative_slope"):
        shared(X)


def test_a_fused_ffn_is_the_product_of_the_two_layers():
    linear, fused = FeedForward(8, 32, "linear").double(), FusedFeedForward(8).double()
    with torch.no_grad():
        fused.weight.copy_(linear.c_fc.weight.T @ linear.c_proj.weight.T)
        fused.bias.copy_(linear.c_fc.bias @ linear.c_proj.weight.T + linear.c_proj.bias)
    torch.testing.assert_close(fused(X), linear(X))
    assert FusedFeedForward(64).weight.std().item() == pytest.approx(0.02, rel=0.1)


def _randomize(module):
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module


def test_scaled_ffns_follow_equation_six():
    two, fused = _randomize(ScaledFeedForward(8, 32)), _randomize(ScaledFusedFeedForward(8))
    stream = torch.randn(2, 5, 8)
    inputs = torch.randn(2, 5, 8)
    expected = two.beta * stream + two(inputs) / two.alpha
    torch.testing.assert_close(two.scaled(stream, inputs), expected)
    expected = fused.beta * stream + (stream @ fused.weight + fused.bias) / fused.alpha
    torch.testing.assert_close(fused.scaled(stream), expected, rtol=1e-5, atol=1e-5)
    expected = fused.beta * stream + (inputs @ fused.weight + fused.bias) / fused.alpha
    torch.testing.assert_close(fused.scaled(stream, inputs), expected, rtol=1e-5, atol=1e-5)


def test_an_input_scale_goes_into_the_weight_with_its_gradient():
    layer = _randomize(ScaledFusedFeedForward(8)).double()
    stream = X.clone().requires_grad_()
    scale = torch.rand(8, dtype=torch.float64, requires_grad=True)
    leaves = [stream, scale, *layer.parameters()]
    gradients = [
        torch.autograd.grad(output.pow(2).sum(), leaves)
        for output in (
            layer.scaled(stream, input_scale=scale),
            layer.scaled(stream, inputs=stream * scale),
        )
    ]
    for folded, explicit in zip(*gradients, strict=True):
        torch.testing.assert_close(folded, explicit)


@pytest.mark.parametrize("trainable", [("alpha", "beta"), ("alpha",), ("beta",), ()])
def test_scales_that_are_not_trainable_stay(trainable):
    for layer in (
        ScaledFeedForward(8, 32, trainable=trainable),
        ScaledFusedFeedForward(8, trainable=trainable),
    ):
        assert layer.alpha.shape == layer.beta.shape == (1,)
        learned = {name for name in ("alpha", "beta") if getattr(layer, name).requires_grad}
        assert learned == set(trainable)
