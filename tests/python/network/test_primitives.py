"""Each operation of the NumPy reader against PyTorch, those that no label has among them."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from aero.network.description import Operation
from aero.network.numpy_reader import OPERATIONS

GENERATOR = np.random.default_rng(0)


def run(op, *inputs, weights=None, **fields):
    one = Operation(op, fields, (), "y")
    return OPERATIONS[op](one, weights or {}, *inputs)


def values(*shape):
    return GENERATOR.standard_normal(shape)


def assert_equal(found, expected):
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("relu", F.relu),
        ("leaky_relu", lambda x: F.leaky_relu(x, 0.3)),
        ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")),
        ("gelu_erf", F.gelu),
        ("silu", F.silu),
        ("tanh", torch.tanh),
        ("sigmoid", torch.sigmoid),
        ("exp", torch.exp),
        ("reciprocal", torch.reciprocal),
        ("rsqrt", torch.rsqrt),
        ("relu_squared", lambda x: F.relu(x).square()),
    ],
)
def test_activations(function, expected):
    x = values(2, 5, 7)
    x = np.abs(x) if function == "rsqrt" else x
    found = run("activation", x, function=function, width=7, slope=0.3)
    assert_equal(found, expected(torch.tensor(x)))


def test_norms():
    x, gain, bias = 3 + values(2, 5, 8), values(8), values(8)
    tensors = [torch.tensor(one) for one in (x, gain, bias)]
    weights = {"weight": gain, "bias": bias}
    found = run("norm", x, weights=weights, kind="layer", width=8, epsilon=1e-3)
    assert_equal(found, F.layer_norm(tensors[0], (8,), *tensors[1:], eps=1e-3))
    found = run("norm", x, weights={"weight": gain}, kind="rms", width=8, epsilon=1e-3)
    assert_equal(found, F.rms_norm(tensors[0], (8,), tensors[1], eps=1e-3))


@pytest.mark.parametrize("window", [0, 1, 3, 99])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_attention_with_groups_and_windows(key_heads, causal, window):
    query, key, value = values(2, 4, 6, 3), values(2, key_heads, 6, 3), values(2, key_heads, 6, 3)
    sizes = {"heads": 4, "key_heads": key_heads, "head_dim": 3}
    scores = run("scores", query, key, **sizes, scale=0.7, soft_cap=0.0)
    weights = run("softmax", scores, heads=4, causal=causal, window=window)
    found = run("weighted_sum", weights, value, **sizes)
    distance = torch.arange(6)[:, None] - torch.arange(6)
    seen = distance >= 0 if causal else torch.ones(6, 6, dtype=torch.bool)
    if window:
        seen = seen & (distance < window)
    expected = F.scaled_dot_product_attention(
        *(torch.tensor(one) for one in (query, key, value)), attn_mask=seen, scale=0.7,
        enable_gqa=True,
    )  # fmt: skip
    assert_equal(found, expected)


def test_a_soft_cap_bounds_the_scores():
    query, key = 9 * values(1, 1, 4, 3), 9 * values(1, 1, 4, 3)
    found = run("scores", query, key, heads=1, key_heads=1, head_dim=3, scale=1.0, soft_cap=5.0)
    plain = torch.tensor(query) @ torch.tensor(key).mT
    assert_equal(found, 5 * torch.tanh(plain / 5))


def test_shift_and_product_make_a_causal_convolution():
    x, taps = values(2, 6, 3), values(3, 4, 4 - 1)  # [out, taps, in]
    found = sum(
        run("linear", run("shift", x, tokens=back) if back else x,
            weights={"weight": taps[:, back].T}, transposed=False)
        for back in range(4)
    )  # fmt: skip
    padded = F.pad(torch.tensor(x).mT, (3, 0))
    expected = F.conv1d(padded, torch.tensor(taps.transpose(0, 2, 1)[:, :, ::-1].copy())).mT
    assert_equal(found, expected)
    assert not run("shift", x, tokens=9).any()


def test_pools_and_argmax():
    x = values(2, 5, 3)
    assert np.array_equal(run("pool", x, kind="last"), x[:, -1])
    assert np.array_equal(run("pool", x, kind="first"), x[:, 0])
    np.testing.assert_allclose(run("pool", x, kind="mean"), x.mean(axis=1))
    assert np.array_equal(run("argmax", x, width=3), torch.tensor(x).argmax(-1).numpy())
    assert np.array_equal(run("multiply", x, x, width=3), x**2)


@pytest.mark.parametrize("taps", [1, 2, 4, 9])
def test_unfolding_and_one_product_make_a_causal_convolution(taps):
    x, kernel = values(2, 6, 3), values(5, 3, taps)  # [out, in, taps], oldest first
    rows = kernel[:, :, ::-1].transpose(2, 1, 0).reshape(-1, 5)
    unfolded = run("unfold", x, taps=taps)
    found = run("linear", unfolded, weights={"weight": rows}, transposed=False)
    padded = F.pad(torch.tensor(x).mT, (taps - 1, 0))
    assert_equal(found, F.conv1d(padded, torch.tensor(kernel)).mT)
