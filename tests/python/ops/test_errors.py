"""Every message about bad input: operator, argument, the expected and the given value."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from tests.python.refusals import assert_refused
from torch._subclasses.fake_tensor import FakeTensorMode

from aero import ops
from aero.ops._boundary import refusing
from aero.ops._gradients import PLAIN

from .bad_calls import (
    ADDRESS,
    BAD,
    ELEMENTS,
    INVERTIBLE,
    OPERATORS,
    attend,
    feed,
    penalty,
    softmax,
)


@pytest.mark.parametrize(("call", "changed", "argument", "expected", "got"), BAD)
def test_bad_input_is_named(
    call: Any, changed: dict[str, Any], argument: str, expected: str, got: str
) -> None:
    named = f"{OPERATORS[call]}: {argument} ", f" {expected}, got ", f"got {got}"
    assert_refused(lambda: call(**changed), *named)


# What the kernels alone cannot take: addresses, huge sizes, wide heads, what has no inverse.
OF_KERNELS = (ADDRESS, ELEMENTS, INVERTIBLE, "from 1 to 512", "below 2^31 with return_max_logits")
OF_THE_REFERENCE = [
    (call, changed, argument, "at least 1" if got == "0" and argument == "D" else expected)
    for call, changed, argument, expected, got in BAD
    if "backend" not in changed
    and (expected not in OF_KERNELS or (argument, got) == ("D", "0"))
    and (argument, got) != ("entropies", "bfloat16")
]


@pytest.mark.parametrize(("call", "changed", "argument", "expected"), OF_THE_REFERENCE)
def test_bad_input_is_named_where_plain_pytorch_computes(
    call: Any, changed: dict[str, Any], argument: str, expected: str
) -> None:
    layout = expected.split(" = ")[0].replace("B, H, S", "B, G, S")
    named = f"{OPERATORS[call]}: {argument} must be ", layout
    assert_refused(lambda: call(**changed, backend="reference"), *named)


STARTS = torch.tensor([0, 3, 6], dtype=torch.int32)


@pytest.mark.parametrize(
    ("changed", "argument"),
    [
        ({"cu_seqlens": torch.tensor([0, 4, 3, 6], dtype=torch.int32)}, "cu_seqlens_q"),
        ({"cu_seqlens": STARTS[:2]}, "cu_seqlens_q"),
        ({"cu_seqlens": STARTS[:0], "dropout_p": 0.5}, "cu_seqlens_q"),
        ({"cu_seqlens": STARTS.long()}, "cu_seqlens_q"),
        ({"cu_seqlens": (STARTS, STARTS[::2])}, "cu_seqlens_k"),
        ({"cu_seqlens": [STARTS]}, "cu_seqlens"),
        ({"cu_seqlens": [0, 6]}, "cu_seqlens_q"),
        ({"cu_seqlens": STARTS, "mask": torch.ones(6, 6).bool()}, "mask"),
        ({"cu_seqlens": STARTS, "bias": torch.ones(6, 6)}, "bias"),
        ({"alibi_slopes": torch.ones(3)}, "alibi_slopes"),
    ],
)
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_what_does_not_fit_packed_sequences_and_heads_is_named(
    changed: dict[str, Any], argument: str, backend: str
) -> None:
    q = torch.zeros(1, 4, 6, 8)
    call = lambda: ops.attention_entropy(q, q, q, **changed, backend=backend)  # noqa: E731
    assert_refused(call, f"attention_entropy: {argument} must be ")


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


def nested(layout: torch.layout) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.zeros(4, 8), torch.zeros(6, 8)], layout=layout)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (attend, "q"), (attend, "temperature"), (attend, "mask"), (softmax, "scores"),
        (softmax, "temperature"), (penalty, "entropies"), (penalty, "thresholds"), (feed, "x"),
        (feed, "alpha"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: 1.0, ("tensor", "got float")),
        (lambda: torch.ones(3).numpy(), ("tensor", "got ndarray")),
        (lambda: nested(torch.strided), ("a dense tensor", "got", "pad")),
        (lambda: nested(torch.jagged), ("a dense tensor", "got", "pad")),
    ],
    ids=["number", "array", "strided", "jagged"],
)
def test_what_is_no_dense_tensor_is_named(
    call: Any, argument: str, make: Any, named: tuple[str, ...]
) -> None:
    assert_refused(lambda: call(**{argument: make()}), f": {argument} must be ", *named)


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


def test_the_largest_size_is_taken() -> None:
    keys = torch.zeros(1, 1, 1, 1).expand(1, 1, 2**40, 1)
    assert ops.attention_entropy(torch.zeros(1, 1, 0, 1), keys, keys)[0].shape == (1, 1, 0, 1)


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
    out, entropy, logsumexp, statistics, _, _ = torch.ops.aero.attention_entropy(
        q, k, v, None, None, False, None, *PLAIN, False
    )
    attention = torch.ops.aero.attention_entropy_backward
    rest = (None, False, None, *PLAIN, True, True, True, *[False] * 4)
    for arguments, message in (
        (
            (out, None, None, None, q, k, v, None, None, out, statistics[:1]),
            r"statistics must be \[B, H, 3",
        ),
        ((out, None, None, None, q, k, v, None, None, out[:1], statistics), "out must be"),
        ((out[:1], None, None, None, q, k, v, None, None, out, statistics), "dout must be"),
        ((None, entropy[:1], None, None, q, k, v, None, None, out, statistics), "dentropy must be"),
        (
            (None, None, entropy.double(), None, q, k, v, None, None, out, statistics),
            "dlogsumexp must be",
        ),
        ((None, None, None, entropy, q, k, v, None, None, out, statistics), "largest_key must be"),
    ):
        with pytest.raises(ValueError, match=message):
            attention(*arguments, *rest)

    entropies, thresholds = torch.zeros(3, 2, 4, 6), torch.zeros(3, 4)
    with pytest.raises(ValueError, match=r"max_entropy must be broadcastable to \[B, T\]"):
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


def test_a_refusal_that_torch_made_a_runtime_error_is_a_value_error_again() -> None:
    def failing(message: str) -> None:
        raise RuntimeError(message)

    for refusal in ("scaled_ffn: x must be [..., C], got [4]", "AERO_FFN_PRODUCT must be 1, got 2"):
        with pytest.raises(ValueError, match=f"^{re.escape(refusal)}$"):
            refusing(failing, refusal)
    for other in ("CUDA out of memory", "scaled_ffn: this PyTorch has no CUDA"):
        with pytest.raises(RuntimeError, match=other):
            refusing(failing, other)


@pytest.mark.parametrize(
    ("operator", "name"),
    [
        ("attention_entropy", "causal"),
        ("attention_entropy", "left padding"),
        ("temperature_softmax", "mask"),
        ("entropy_regularization", "masked rows"),
        ("scaled_ffn", "three dimensions"),
    ],
)
def test_a_tensor_on_another_device_is_named(operator: str, name: str, named_sample: Any) -> None:
    inputs = named_sample(operator, name).inputs(torch.float32)
    options = {key for key, value in inputs.options.items() if isinstance(value, torch.Tensor)}
    function, arguments = getattr(ops, operator), {**inputs.tensors, **inputs.options}
    first, *others = [*inputs.tensors, *options]
    for moved in others:
        elsewhere = {**arguments, moved: arguments[moved].to("meta")}
        message = rf"^{operator}: {moved} must be on cpu like {first}, got meta"
        with pytest.raises(ValueError, match=message):
            function(**elsewhere)
    with pytest.raises(
        ValueError, match=rf"^{operator}: \w+ must be on meta like {first}, got cpu"
    ):
        function(**{**arguments, first: arguments[first].to("meta")})


@pytest.mark.parametrize(
    ("call", "setting"),
    [
        (attend, {"scale": float("nan")}),
        (attend, {"scale": float("inf")}),
        (penalty, {"margin": float("nan")}),
        (penalty, {"margin": -0.5}),
    ],
)
def test_the_reference_refuses_the_settings_that_the_native_backend_refuses(call, setting):
    words = []
    for backend in ("native", "reference"):
        with pytest.raises(ValueError) as error:
            call(**setting, backend=backend)
        words.append(str(error.value))
    assert words[0] == words[1]
