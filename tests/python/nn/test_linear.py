import pytest
import torch
import torch.nn.functional as F
from torch import nn

from aero.nn import linear as layers
from aero.nn.linear import Linear, add_product, linear, product

SIZES = [((64, 64), 64), ((3, 50, 64), 128), ((2, 200, 96), 48), ((1, 1, 8), 4), ((0, 64), 64)]


@pytest.fixture(autouse=True)
def _onednn(monkeypatch):
    """On Intel's processors too."""
    monkeypatch.setattr(layers, "_prefers_mkl", lambda: False)


@pytest.mark.parametrize(("shape", "outputs"), SIZES)
@pytest.mark.parametrize("has_bias", [True, False])
def test_results_and_gradients_equal_torch(shape, outputs, has_bias):
    inputs = torch.randn(shape, requires_grad=True)
    weight = torch.randn(outputs, shape[-1], requires_grad=True)
    bias = torch.randn(outputs, requires_grad=True) if has_bias else None
    leaves = [leaf for leaf in (inputs, weight, bias) if leaf is not None]
    actual, expected = linear(inputs, weight, bias), F.linear(inputs, weight, bias)
    # Sums of up to 400 products of order one: their float32 rounding stays under 1e-5 relative.
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-4)
    gradient = torch.randn_like(expected)
    for got, wanted in zip(
        torch.autograd.grad(actual, leaves, gradient),
        torch.autograd.grad(expected, leaves, gradient),
        strict=True,
    ):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-4)


def test_transposed_operands_are_handled():
    inputs, weight = torch.randn(96, 128).t(), torch.randn(96, 80).t()
    torch.testing.assert_close(
        linear(inputs, weight), F.linear(inputs, weight), rtol=1e-5, atol=1e-4
    )


def test_large_float32_products_run_on_onednn_and_can_be_told_not_to():
    layer, inputs = Linear(128, 128), torch.randn(64, 128)
    assert "OneDnn" in str(layer(inputs).grad_fn.next_functions)
    with torch.backends.mkldnn.flags(enabled=False):
        assert "OneDnn" not in str(layer(inputs).grad_fn.next_functions)


def test_a_processor_that_multiplies_faster_by_mkl_keeps_it(monkeypatch):
    monkeypatch.setattr(layers, "_prefers_mkl", lambda: True)
    inputs, weight = torch.randn(64, 128), torch.randn(128, 128)
    assert torch.equal(linear(inputs, weight), F.linear(inputs, weight))
    assert torch.equal(product(inputs, weight), torch.mm(inputs, weight.t()))


def test_a_second_derivative_through_onednn_is_an_error():
    inputs = torch.randn(64, 128, requires_grad=True)
    (gradient,) = torch.autograd.grad(
        Linear(128, 128)(inputs).square().sum(), inputs, create_graph=True
    )
    with pytest.raises(RuntimeError, match=r"differentiate twice.*once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("lacks", [True, False])
@pytest.mark.parametrize("is_autocast", [True, False])
def test_products_of_bfloat16_are_rounded_once_on_every_processor(monkeypatch, lacks, is_autocast):
    monkeypatch.setattr(layers, "_lacks_bfloat16", lambda: lacks)
    leaves = [torch.randn(size).bfloat16() for size in ((37, 70), (90, 70), (90,))]
    wide = [x.double().requires_grad_() for x in leaves]
    if is_autocast:
        leaves = [x.float() for x in leaves]
    for x in leaves:
        x.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=is_autocast):
        result = linear(*leaves)
    assert result.dtype == torch.bfloat16
    cotangent = torch.randn(37, 90).bfloat16()
    exact = F.linear(*wide)
    found = [result, *torch.autograd.grad(result, leaves, cotangent)]
    wanted = [exact, *torch.autograd.grad(exact, wide, cotangent.double())]
    # Half a unit of bfloat16's last place, at most 2^-8 of a number, and the rounding of sums.
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=2**-7.99, atol=1e-4)
    assert [x.dtype for x in found[1:]] == [x.dtype for x in leaves]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("lacks", [True, False])
@pytest.mark.parametrize("prefers", [True, False])
def test_products_add_up_where_they_are_wanted(monkeypatch, dtype, lacks, prefers):
    monkeypatch.setattr(layers, "_lacks_bfloat16", lambda: lacks)
    monkeypatch.setattr(layers, "_prefers_mkl", lambda: prefers)
    a, b = torch.randn(65, 64).to(dtype), torch.randn(66, 64).to(dtype)
    exact = a.double() @ b.double().t()
    for wide in (dtype, torch.promote_types(dtype, torch.float32)):
        total = torch.full((65, 66), float("nan"), dtype=wide)
        add_product(total, a, b, begins=True)
        add_product(total, a, b)
        rounded = 3 * 2**-8.0 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(total.double(), 2 * exact, rtol=rounded, atol=30 * rounded)


def test_autocast_gives_bfloat16():
    with torch.autocast("cpu", torch.bfloat16):
        assert Linear(128, 128)(torch.randn(64, 128)).dtype == torch.bfloat16


def test_wrong_width_is_torchs_own_error():
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        Linear(128, 128)(torch.randn(64, 100))


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated")
def test_quantization_by_exact_type_says_what_it_leaves_out_and_the_way_out_works() -> None:
    model = nn.Sequential(Linear(8, 8), nn.ReLU(), Linear(8, 4, bias=False))
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    want = model(x)
    with pytest.warns(UserWarning, match=r"layer\.__class__ = torch\.nn\.Linear"):
        left = torch.ao.quantization.quantize_dynamic(model)
    assert [type(layer) for layer in left] == [type(layer) for layer in model]
    for layer in model.modules():
        if isinstance(layer, Linear):
            layer.__class__ = nn.Linear
    quantized = torch.ao.quantization.quantize_dynamic(model)
    assert not any(isinstance(layer, nn.Linear) for layer in quantized)
    # Eight bits for the range of inputs and of weights, in sums of eight.
    assert (quantized(x) - want).abs().max() < 0.05 * want.abs().max()
