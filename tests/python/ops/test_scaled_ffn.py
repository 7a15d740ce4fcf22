"""scaled_ffn: its scalars' gradients, every size, and the reduced precisions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aero.ops import scaled_ffn

from . import oracle


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def test_it_is_two_linear_layers_scaled_and_added_to_the_stream() -> None:
    """Fusing is exact: W = W_in W_out, b = b_in W_out + b_out."""
    x, first, second = draw(4, 8), draw(8, 32), draw(32, 8)
    first_bias, second_bias = draw(32), draw(8)
    alpha, beta = torch.tensor([2.0]), torch.tensor([0.5])
    two_layers = (x @ first + first_bias) @ second + second_bias
    y = scaled_ffn(x, first @ second, first_bias @ second + second_bias, alpha=alpha, beta=beta)
    torch.testing.assert_close(y, 0.5 * x + two_layers / 2, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_scalar_gradients_err_by_at_most_the_rounding_of_their_terms(dtype: torch.dtype) -> None:
    x, dy, bias = (
        draw(3, 50, 32, dtype=dtype),
        draw(50, 3, 32, dtype=dtype).view(3, 50, 32),
        draw(32),
    )
    weight = draw(32, 32, dtype=dtype)
    alpha, beta = (torch.tensor([value], requires_grad=True) for value in (1.7, 0.6))
    y = scaled_ffn(x, weight, bias.to(dtype), alpha=alpha, beta=beta)
    dalpha, dbeta = torch.autograd.grad(y, [alpha, beta], dy)

    rows, drows = x.double().flatten(0, 1), dy.double().flatten(0, 1)
    gradient = rows.T @ drows
    column_sums = drows.sum(0)
    products = gradient * weight.double()
    bias_products = bias.to(dtype).double() * column_sums
    exact_alpha = -(products.sum() + bias_products.sum()) / alpha.double() ** 2
    # G is stored in the dtype of x: every term carries one rounding of it, and the matrix product
    # a few of float32.
    eps = torch.finfo(dtype).eps + 8 * torch.finfo(torch.float32).eps
    assert (dbeta - gradient.trace()).abs() <= eps * gradient.diagonal().abs().sum()
    allowed = (
        eps * (products.abs().sum() + bias_products.abs().sum()) / alpha.detach().double() ** 2
    )
    assert (dalpha - exact_alpha).abs() <= allowed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("strides", [(1, 1), (1, 2), (2, 1), (0, 1), (1, 0), (3, 2)], ids=str)
def test_rows_of_the_weight_may_overlap_in_memory(
    dtype: torch.dtype, strides: tuple[int, int]
) -> None:
    """oneDNN refuses matrices whose rows lie nearer than their length."""
    x, bias, one = draw(3, 7, dtype=dtype), draw(7, dtype=dtype), torch.ones(1)
    weight = draw(40, dtype=dtype).as_strided((7, 7), strides).requires_grad_()
    y = scaled_ffn(x, weight, bias, alpha=one, beta=one)
    (dweight,) = torch.autograd.grad(y, weight, torch.ones_like(y))
    copied = weight.detach().clone(memory_format=torch.contiguous_format).requires_grad_()
    same = scaled_ffn(x, copied, bias, alpha=one, beta=one)
    (wanted,) = torch.autograd.grad(same, copied, torch.ones_like(same))
    # The order of sums may differ.
    allowed = {"rtol": 0.0, "atol": 16 * torch.finfo(dtype).eps}
    torch.testing.assert_close(y, same, **allowed)
    torch.testing.assert_close(dweight, wanted, **allowed)


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 9), max_size=3),
    st.integers(1, 150),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]),
    st.booleans(),
)
def test_any_shape_agrees_with_the_oracle(
    leading: list[int], width: int, dtype: torch.dtype, transposed: bool
) -> None:
    x = draw(*leading, width).double()
    weight, bias = draw(width, width).double() / width**0.5, draw(width).double()
    statistics = torch.float64 if dtype == torch.float64 else torch.float32
    tensors = {
        "x": x.to(dtype),
        "weight": (weight.T if transposed else weight).to(dtype),
        "bias": bias.to(dtype),
        "alpha": torch.tensor(1.3, dtype=statistics),
        "beta": torch.tensor([0.8], dtype=statistics),
    }
    leaves = {name: tensor.requires_grad_() for name, tensor in tensors.items()}
    y = scaled_ffn(**leaves)
    cotangent = draw(*y.shape, 1).squeeze(-1).to(dtype)
    (exact,), wanted = oracle.run("scaled_ffn", tensors, {}, [cotangent])
    names = ("x", "weight", "bias")
    gradients = torch.autograd.grad(y, [leaves[name] for name in names], cotangent)
    pairs = [(y, exact), *zip(gradients, (wanted[name] for name in names), strict=True)]
    # Sums of up to 729 terms of size one, rounded to dtype.
    tolerance = {
        torch.float64: 1e-12,
        torch.float32: 1e-4,
        torch.bfloat16: 0.1,
        torch.float16: 0.02,
    }
    for result, expected in pairs:
        torch.testing.assert_close(
            result.double(), expected, rtol=tolerance[dtype], atol=tolerance[dtype]
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_float32_stream_keeps_its_digits_beside_half_weights(dtype: torch.dtype) -> None:
    x, dy = draw(7, 33, 48).requires_grad_(), draw(33, 7, 48).view(7, 33, 48)
    weight, bias = (0.1 * draw(48, 48)).to(dtype), draw(48).to(dtype)
    alpha, beta = torch.tensor([1.5], requires_grad=True), torch.tensor([0.7], requires_grad=True)
    leaves = [x, weight.requires_grad_(), bias.requires_grad_(), alpha, beta]
    y = scaled_ffn(x, weight, bias, alpha=alpha, beta=beta)
    gradients = torch.autograd.grad(y, leaves, dy)
    assert y.dtype == gradients[0].dtype == torch.float32

    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    narrow = x.detach().to(dtype).double()  # the product's input
    product = narrow @ exact[1] + exact[2]
    want = exact[4] * exact[0] + product / exact[3]
    # The product is rounded once; the stream beside it is not.
    eps = torch.finfo(dtype).eps
    assert ((y - want).abs() <= eps * product.abs() + 1e-5).all()

    zero = torch.zeros_like(weight)
    y = scaled_ffn(x, zero, torch.zeros_like(bias), alpha=alpha, beta=beta)
    torch.testing.assert_close(y, beta * x, rtol=1e-6, atol=0)
    (dx,) = torch.autograd.grad(y, x, dy)
    torch.testing.assert_close(dx, beta * dy, rtol=1e-6, atol=0)

    gradient = narrow.flatten(0, 1).T @ dy.to(dtype).double().flatten(0, 1)
    want_gradients = (
        0.7 * dy.double() + dy.to(dtype).double() @ exact[1].T / 1.5,
        gradient / 1.5,
        dy.to(dtype).double().sum((0, 1)) / 1.5,
        -((gradient * exact[1]).sum() + (exact[2] * dy.to(dtype).double().sum((0, 1))).sum())
        / 1.5**2,
        gradient.trace(),
    )
    # Results of G, which is rounded to the weight's dtype, cancel to some tenth of their terms.
    for got, expected in zip(gradients, want_gradients, strict=True):
        error = (got.double() - expected).norm() / expected.norm()
        assert error <= 10 * eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("stream", [None, torch.float32], ids=["plain", "float32 stream"])
def test_torchs_operators_do_it_where_they_are_asked_to(
    dtype: torch.dtype, stream: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way out on a GPU where cublasLt has no algorithm; on every device by AERO_FFN_PRODUCT."""
    x, dy = (draw(*shape, dtype=stream or dtype) for shape in ((3, 7, 33), (7, 3, 33)))
    weight, bias = draw(33, 33, dtype=dtype), draw(33, dtype=dtype)
    leaves = [
        t.requires_grad_() for t in (x, weight, bias, torch.tensor([1.7]), torch.tensor([-0.6]))
    ]

    def results() -> list[Tensor]:
        y = scaled_ffn(*leaves[:3], alpha=leaves[3], beta=leaves[4])
        return [y, *torch.autograd.grad(y, leaves, dy.view_as(y))]

    fused = results()
    monkeypatch.setenv("AERO_FFN_PRODUCT", "torch")
    with torch.profiler.profile() as profile:
        found = results()
    assert {"aten::div", "aten::mul", "aten::sub"} <= {
        event.key for event in profile.key_averages()
    }
    # The product is rounded before it is scaled, and the sum.
    for got, want in zip(found, fused, strict=True):
        assert got.dtype == want.dtype
        error = (got.double() - want.double()).norm() / want.double().norm()
        assert error <= 2 * torch.finfo(dtype).eps


def test_a_way_to_multiply_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERO_FFN_PRODUCT", "fused")
    one = torch.ones(1)
    with pytest.raises(ValueError, match="AERO_FFN_PRODUCT must be torch, got fused"):
        scaled_ffn(draw(2, 4), draw(4, 4), draw(4), alpha=one, beta=one)
