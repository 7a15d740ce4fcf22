"""Every message about bad input: operator, argument, what was expected, what came."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from aero import ops


def attend(**changed: Any) -> tuple[Tensor, ...]:
    q, k, v = torch.zeros(3, 2, 4, 6, 8)
    return ops.attention_entropy(**({"q": q, "k": k, "v": v} | changed))


def softmax(**changed: Any) -> tuple[Tensor, ...]:
    return ops.temperature_softmax(**({"scores": torch.zeros(2, 4, 6, 7)} | changed))


def penalty(**changed: Any) -> Tensor:
    arguments = {"entropies": torch.zeros(3, 2, 4, 6), "thresholds": torch.zeros(3, 4)}
    return ops.entropy_regularization(**(arguments | changed))  # type: ignore[arg-type]


def feed(**changed: Any) -> Tensor:
    arguments = {"x": torch.zeros(2, 3, 5), "weight": torch.eye(5), "bias": torch.zeros(5)}
    scales = {"alpha": torch.ones(1), "beta": torch.ones(1)}
    return ops.scaled_ffn(**(arguments | scales | changed))


def zero_at(*index: int) -> Tensor:
    """A temperature with one zero, whose shape has as many dimensions as the index."""
    temperature = torch.ones([(), (4,), (4, 6), (2, 4, 6)][len(index)])
    temperature[index] = 0
    return temperature


def misaligned(*shape: int) -> Tensor:
    """Float32 zeros, one byte after an address that fits them."""
    count = torch.Size(shape).numel()
    memory = torch.zeros(4 * count + 4, dtype=torch.uint8).numpy()
    return torch.frombuffer(memory, dtype=torch.float32, count=count, offset=1).view(shape)


LEGAL_TEMPERATURES = "a scalar, [1], [H], [H, T] or [B, H, T] with [B, H, T] = [2, 4, 6]"

BAD: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (
        attend,
        {"q": torch.zeros(2, 6, 8)},
        "attention_entropy: q must be [B, H, T, D], got [2, 6, 8]",
    ),
    (
        attend,
        {"k": torch.zeros(2, 6, 8)},
        "attention_entropy: k must be [B, G, S, D], got [2, 6, 8]",
    ),
    (
        attend,
        {"k": torch.zeros(2, 4, 6, 9)},
        "attention_entropy: k must be [B, H, S, D] = [2, 4, 6, 8], got [2, 4, 6, 9]",
    ),
    (
        attend,
        {"v": torch.zeros(2, 4, 5, 8)},
        "attention_entropy: v must be [B, H, S, D] = [2, 4, 6, 8], got [2, 4, 5, 8]",
    ),
    (
        attend,
        {"k": torch.zeros(1, 2, 6, 8), "v": torch.zeros(1, 2, 6, 8)},
        "attention_entropy: k must be [B, G, S, D] = [2, 2, 6, 8], got [1, 2, 6, 8]",
    ),
    (
        attend,
        {"k": torch.zeros(2, 3, 6, 8), "v": torch.zeros(2, 3, 6, 8)},
        "attention_entropy: H must be a multiple of k's heads (3), got 4",
    ),
    (
        attend,
        dict.fromkeys("qkv", torch.zeros(1, 1, 2, 257)),
        "attention_entropy: D must be from 1 to 256, got 257",
    ),
    (
        attend,
        dict.fromkeys("qkv", torch.zeros(1, 1, 2, 0)),
        "attention_entropy: D must be from 1 to 256, got 0",
    ),
    (
        attend,
        dict.fromkeys("qkv", torch.zeros(1, 1, 1, 1).expand(1, 1, 2**41, 1)),
        "attention_entropy: T must be at most 1099511627776, got 2199023255552",
    ),
    (
        attend,
        dict.fromkeys("kv", torch.zeros(2, 4, 1, 8).expand(2, 4, 2**41, 8)),
        "attention_entropy: S must be at most 1099511627776, got 2199023255552",
    ),
    (
        attend,
        {"q": misaligned(2, 4, 6, 8)},
        "attention_entropy: q must be at an address that is a multiple of 4, got 1 more",
    ),
    (
        attend,
        {"v": misaligned(2, 4, 6, 8)},
        "attention_entropy: v must be at an address that is a multiple of 4, got 1 more",
    ),
    (
        attend,
        {"temperature": misaligned(4)},
        "attention_entropy: temperature must be at an address that is a multiple of 4, got 1 more",
    ),
    (
        attend,
        {"k": torch.zeros(2, 4, 6, 8, device="meta")},
        "attention_entropy: k must be on cpu like q, got meta",
    ),
    (
        attend,
        {"mask": torch.ones(6, 6, dtype=torch.bool, device="meta")},
        "attention_entropy: mask must be on cpu like q, got meta",
    ),
    (
        attend,
        {"v": torch.zeros(2, 4, 6, 8, dtype=torch.bfloat16)},
        "attention_entropy: v must be float32 like q, got bfloat16",
    ),
    (
        attend,
        {"q": torch.zeros(2, 4, 6, 8, dtype=torch.int64)},
        "attention_entropy: q must be float32, bfloat16, float16 or float64, got Long",
    ),
    (
        attend,
        {"temperature": torch.ones(6, 4)},
        f"attention_entropy: temperature must be {LEGAL_TEMPERATURES}, got [6, 4]",
    ),
    (
        attend,
        {"temperature": torch.ones(3)},
        f"attention_entropy: temperature must be {LEGAL_TEMPERATURES}, got [3]",
    ),
    (
        attend,
        {"temperature": zero_at()},
        "attention_entropy: temperature must be nonzero, got 0 at head 0, position 0",
    ),
    (
        attend,
        {"temperature": zero_at(3)},
        "attention_entropy: temperature must be nonzero, got 0 at head 3, position 0",
    ),
    (
        attend,
        {"temperature": zero_at(2, 5)},
        "attention_entropy: temperature must be nonzero, got 0 at head 2, position 5",
    ),
    (
        attend,
        {"temperature": zero_at(1, 2, 5)},
        "attention_entropy: temperature must be nonzero, got 0 at head 2, position 5,"
        " batch entry 1",
    ),
    (
        attend,
        {"mask": torch.zeros(2, 1, 6, 6)},
        "attention_entropy: mask must be bool (true where the query sees the key), got float32",
    ),
    (
        attend,
        {"mask": torch.ones(2, 1, 6, 5, dtype=torch.bool)},
        "attention_entropy: mask must be broadcastable to [B, H, T, S] = [2, 4, 6, 6],"
        " got [2, 1, 6, 5]",
    ),
    (
        attend,
        {"mask": torch.ones(1, 1, 1, 1, 1, dtype=torch.bool)},
        "attention_entropy: mask must be broadcastable to [B, H, T, S] = [2, 4, 6, 6],"
        " got [1, 1, 1, 1, 1]",
    ),
    (
        attend,
        {"backend": "cuda"},
        "attention_entropy: backend must be 'native' or 'reference', got 'cuda'",
    ),
    (
        softmax,
        {"scores": torch.zeros(6, 7)},
        "temperature_softmax: scores must be [B, H, T, S], got [6, 7]",
    ),
    (
        softmax,
        {"scores": torch.zeros(2, 4, 6, 7, dtype=torch.complex64)},
        "temperature_softmax: scores must be float32, bfloat16, float16 or float64,"
        " got ComplexFloat",
    ),
    (
        softmax,
        {"scores": misaligned(2, 4, 6, 7)},
        "temperature_softmax: scores must be at an address that is a multiple of 4, got 1 more",
    ),
    (
        softmax,
        {"scores": torch.zeros(1, 1, 1, 1).expand(1, 1, 2**41, 1)},
        "temperature_softmax: T must be at most 1099511627776, got 2199023255552",
    ),
    (
        softmax,
        {"scores": torch.zeros(1, 1, 1, 1).expand(1, 1, 1, 2**41)},
        "temperature_softmax: S must be at most 1099511627776, got 2199023255552",
    ),
    (
        softmax,
        {"temperature": torch.ones(4, device="meta")},
        "temperature_softmax: temperature must be on cpu like scores, got meta",
    ),
    (
        softmax,
        {"temperature": zero_at()},
        "temperature_softmax: temperature must be nonzero, got 0 at head 0, position 0",
    ),
    (
        softmax,
        {"mask": torch.zeros(6, 7)},
        "temperature_softmax: mask must be bool (true where the query sees the key), got float32",
    ),
    (
        softmax,
        {"temperature": torch.ones(2, 4, 7)},
        f"temperature_softmax: temperature must be {LEGAL_TEMPERATURES}, got [2, 4, 7]",
    ),
    (
        softmax,
        {"temperature": zero_at(1, 2, 5)},
        "temperature_softmax: temperature must be nonzero, got 0 at head 2, position 5,"
        " batch entry 1",
    ),
    (
        softmax,
        {"mask": torch.ones(7, 6, dtype=torch.bool)},
        "temperature_softmax: mask must be broadcastable to [B, H, T, S] = [2, 4, 6, 7],"
        " got [7, 6]",
    ),
    (
        penalty,
        {"entropies": torch.zeros(3, 2, 4)},
        "entropy_regularization: entropies must be [L, B, H, T], got [3, 2, 4]",
    ),
    (
        penalty,
        {"entropies": []},
        "entropy_regularization: entropies must be [L, B, H, T] or L tensors of one shape, got []",
    ),
    (
        penalty,
        {"entropies": [torch.zeros(2, 4, 6), torch.zeros(2, 4, 5)]},
        "entropy_regularization: entropies must be [L, B, H, T] or L tensors of one shape,"
        " got [[2, 4, 6], [2, 4, 5]]",
    ),
    (
        penalty,
        {"entropies": torch.zeros(3, 2, 4, 6, dtype=torch.bfloat16)},
        "entropy_regularization: entropies must be float32 or float64, got bfloat16",
    ),
    (
        penalty,
        {"entropies": misaligned(3, 2, 4, 6)},
        "entropy_regularization: entropies must be at an address that is a multiple of 4,"
        " got 1 more",
    ),
    (
        penalty,
        {"entropies": torch.zeros(1, 1, 1, 1).expand(3, 1, 4, 2**41)},
        "entropy_regularization: L * B * H * T must be at most 1099511627776, got 26388279066624",
    ),
    (
        penalty,
        {"thresholds": torch.zeros(3, 4, device="meta")},
        "entropy_regularization: thresholds must be on cpu like entropies, got meta",
    ),
    (
        penalty,
        {"thresholds": torch.zeros(4, 3)},
        "entropy_regularization: thresholds must be [L, H] = [3, 4], got [4, 3]",
    ),
    (
        penalty,
        {"row_mask": torch.ones(2, 6)},
        "entropy_regularization: row_mask must be bool (true where the row counts), got float32",
    ),
    (
        penalty,
        {"row_mask": torch.ones(6, 2, dtype=torch.bool)},
        "entropy_regularization: row_mask must be [B, T] = [2, 6], got [6, 2]",
    ),
    (
        penalty,
        {"margin": -0.5},
        "entropy_regularization: margin must be at least 0, got -0.500000",
    ),
    (
        penalty,
        {"margin": float("nan")},
        "entropy_regularization: margin must be at least 0, got nan",
    ),
    (
        penalty,
        {"reduction": "mean"},
        "entropy_regularization: reduction must be 'position_sum' or 'query_mean', got 'mean'",
    ),
    (
        penalty,
        {"max_entropy": "log"},
        "entropy_regularization: max_entropy must be 'log_context' or 'log_visible', got 'log'",
    ),
    (
        penalty,
        {"max_entropy": "log_visible", "context_length": 6},
        "entropy_regularization: context_length must be None with max_entropy='log_visible', got 6",
    ),
    (
        penalty,
        {"context_length": 0},
        "entropy_regularization: context_length must be at least 1, got 0",
    ),
    (
        penalty,
        {"visible_keys": torch.ones(2, 6, dtype=torch.int64)},
        "entropy_regularization: visible_keys must be None with max_entropy='log_context',"
        " got a tensor",
    ),
    (
        penalty,
        {"max_entropy": "log_visible", "visible_keys": torch.ones(2, 6)},
        "entropy_regularization: visible_keys must be an integer tensor, got torch.float32",
    ),
    (
        penalty,
        {"max_entropy": "log_visible", "visible_keys": torch.ones(2, 5, dtype=torch.int64)},
        "entropy_regularization: visible_keys must be [B, T] = [2, 6], got [2, 5]",
    ),
    (feed, {"x": torch.zeros(())}, "scaled_ffn: x must be [..., C], got []"),
    (
        feed,
        {"x": torch.zeros(2, 4)},
        "scaled_ffn: weight must be [C, C] = [4, 4], got [5, 5]",
    ),
    (
        feed,
        {"x": misaligned(2, 5)},
        "scaled_ffn: x must be at an address that is a multiple of 4, got 1 more",
    ),
    (
        feed,
        {"weight": misaligned(5, 5)},
        "scaled_ffn: weight must be at an address that is a multiple of 4, got 1 more",
    ),
    (
        feed,
        {"x": torch.zeros(1, 5).expand(2**41, 5)},
        "scaled_ffn: rows of x must be at most 1099511627776, got 2199023255552",
    ),
    (
        feed,
        {"bias": torch.zeros(5, device="meta")},
        "scaled_ffn: bias must be on cpu like x, got meta",
    ),
    (feed, {"bias": torch.zeros(4)}, "scaled_ffn: bias must be [C] = [5], got [4]"),
    (
        feed,
        {"weight": torch.eye(5, dtype=torch.float64)},
        "scaled_ffn: weight must be float32 like x, got float64",
    ),
    (
        feed,
        {"bias": torch.zeros(5, dtype=torch.float64)},
        "scaled_ffn: bias must be float32 like weight, got float64",
    ),
    (feed, {"alpha": torch.ones(2)}, "scaled_ffn: alpha must be a scalar or [1], got [2]"),
    (feed, {"beta": torch.ones(1, 1)}, "scaled_ffn: beta must be a scalar or [1], got [1, 1]"),
    (feed, {"alpha": torch.zeros(1)}, "scaled_ffn: alpha must be nonzero, got 0"),
    (
        feed,
        {"x": torch.zeros(2, 5, dtype=torch.int32)},
        "scaled_ffn: x must be float32, bfloat16, float16 or float64, got Int",
    ),
]


@pytest.mark.parametrize(
    ("call", "changed", "message"), BAD, ids=[message.split(", got")[0] for _, _, message in BAD]
)
def test_bad_input_is_named(call: Any, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call(**changed)


def test_rows_that_run_backwards_are_torchs_to_refuse_or_to_copy() -> None:
    """No tensor has negative strides, and one that is negated only on paper comes negated."""
    with pytest.raises(RuntimeError, match="Negative strides are not supported"):
        torch.zeros(2, 4, 6, 8).as_strided((2, 4, 6, 8), (192, 48, 8, -1))
    q = torch.randn(2, 4, 6, 8, dtype=torch.complex64).conj().imag
    assert q.is_neg() and q.stride(-1) == 2
    k, v = torch.randn(2, 2, 4, 6, 8)
    for got, want in zip(
        ops.attention_entropy(q, k, v), ops.attention_entropy(q + 0, k, v), strict=True
    ):
        assert torch.equal(got, want)
    assert torch.equal(ops.temperature_softmax(q)[0], ops.temperature_softmax(q + 0)[0])


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (attend, "q"), (attend, "temperature"), (attend, "mask"), (softmax, "scores"),
        (softmax, "temperature"), (penalty, "thresholds"), (feed, "x"), (feed, "alpha"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", [1.0, torch.ones(3).numpy()])
def test_what_is_no_tensor_is_named(call: Any, argument: str, value: Any) -> None:
    message = f"{argument} must be a tensor, got {type(value).__name__}"
    with pytest.raises(ValueError, match=message):
        call(**{argument: value})


@pytest.mark.parametrize(
    ("call", "argument", "shape"),
    [
        (attend, "k", (2, 4, 6, 8)),
        (softmax, "mask", (6, 7)),
        (penalty, "thresholds", (3, 4)),
        (feed, "weight", (5, 5)),
    ],
)
def test_a_device_without_kernels_is_named(
    call: Any, argument: str, shape: tuple[int, ...]
) -> None:
    with FakeTensorMode():
        elsewhere = torch.empty(shape, device="cuda")
    # An operator with kernels for both still wants its tensors on one device.
    place = "the cpu, the only device with kernels of it in this build|cpu like [a-z]+"
    message = f"{argument} must be on ({place}), got cuda"
    with pytest.raises(ValueError, match=message):
        call(**{argument: elsewhere})


def test_the_operators_themselves_check_what_the_backward_pass_gets() -> None:
    """Direct calls of torch.ops.aero cannot read beyond a tensor."""
    scores = torch.zeros(2, 3, 4, 5)
    p, entropy, logsumexp, statistics = torch.ops.aero.temperature_softmax(
        scores, None, None, False
    )
    backward = torch.ops.aero.temperature_softmax_backward
    rest = (False, True, False)
    for arguments, message in (
        (
            (p, entropy, logsumexp, scores, None, None, statistics[:1]),
            r"statistics must be \[B, H, 3",
        ),
        ((p[:1], entropy, logsumexp, scores, None, None, statistics), "dprobabilities must be"),
        ((p, entropy[:1], logsumexp, scores, None, None, statistics), "dentropy must be"),
        ((p, entropy, logsumexp.half(), scores, None, None, statistics), "dlogsumexp must be"),
    ):
        with pytest.raises(ValueError, match=message):
            backward(*arguments, *rest)

    q, k, v = torch.zeros(3, 2, 4, 6, 8)
    out, entropy, logsumexp, statistics = torch.ops.aero.attention_entropy(
        q, k, v, None, None, False, None
    )
    attention = torch.ops.aero.attention_entropy_backward
    rest = (False, None, True, True, True, False)
    for arguments, message in (
        (
            (out, None, None, q, k, v, None, None, out, statistics[:1]),
            r"statistics must be \[B, H, 3",
        ),
        ((out, None, None, q, k, v, None, None, out[:1], statistics), "out must be"),
        ((out[:1], None, None, q, k, v, None, None, out, statistics), "dout must be"),
        ((None, entropy[:1], None, q, k, v, None, None, out, statistics), "dentropy must be"),
        (
            (None, None, entropy.double(), q, k, v, None, None, out, statistics),
            "dlogsumexp must be",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            attention(*arguments, *rest)

    entropies, thresholds = torch.zeros(3, 2, 4, 6), torch.zeros(3, 4)
    with pytest.raises(
        ValueError, match=r"max_entropy must be a scalar or broadcastable to \[B, T\]"
    ):
        torch.ops.aero.entropy_regularization(
            entropies, thresholds, torch.ones(3, 6), None, 0.1, False
        )
    with pytest.raises(ValueError, match="dloss must be a scalar"):
        torch.ops.aero.entropy_regularization_backward(
            torch.ones(2), entropies, thresholds, torch.ones(()), None, 0.1, False
        )
    x, weight, bias, one = torch.zeros(2, 5), torch.eye(5), torch.zeros(5), torch.ones(1)
    with pytest.raises(ValueError, match=r"dy must be \[..., C\] = \[2, 5\], got \[3, 5\]"):
        torch.ops.aero.scaled_ffn_backward(torch.zeros(3, 5), x, weight, bias, one, one, True, True)
