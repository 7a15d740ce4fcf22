"""Torch's attention with dropout runs on the kernels too, while `accelerate` lasts."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from aero.ops.torch_attention import accelerate

from .torch_calls import ran

P = 0.25


def operands(batch: int = 4, groups: int = 4, length: int = 24, width: int = 24) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((batch, n, length, width) for n in (4, groups, groups))
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


LAYOUTS: dict[str, Callable[..., list[Tensor]]] = {
    "heads alone": lambda q, k, v: [q[0], k[0], v[0]],
    "other values": lambda q, k, v: [q, k, v[..., :5]],
    "one sequence of keys": lambda q, k, v: [q, k[:1], v[:1]],
}


def attend(q: Tensor, k: Tensor, v: Tensor, seed: int = 0, **settings: object) -> Tensor:
    torch.manual_seed(seed)
    return scaled_dot_product_attention(q, k, v, dropout_p=P, **settings)


SETTINGS = {
    "causal": {"is_causal": True},
    "all": {},
    "a boolean mask": {"attn_mask": torch.ones(24, 24, dtype=torch.bool).tril(3)},
    "a mask of numbers": {"attn_mask": torch.randn(4, 1, 24, 24).tril()},
    "grouped": {"is_causal": True, "enable_gqa": True},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_outputs_and_gradients_are_those_of_the_weights_that_stayed(name: str) -> None:
    settings = SETTINGS[name]
    q, k, v = operands(groups=2 if name == "grouped" else 4)
    eye = torch.eye(24).expand(v.shape)  # the output is the weights
    with accelerate():
        stayed = attend(q, k, eye, **settings).detach() != 0
        out = attend(q, k, v, **settings)
    whole = scaled_dot_product_attention(q.double(), k.double(), eye.double(), **{
        key: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x
        for key, x in settings.items()
    })  # fmt: skip
    share = 1 - stayed[whole > 0].double().mean()
    assert abs(share - P) < 6 * math.sqrt(P * (1 - P) / (whole > 0).sum())
    values = v.double().repeat_interleave(4 // v.shape[1], dim=1)
    expected = (whole * stayed / (1 - P)) @ values
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)
    dout = torch.randn(out.shape)
    found = torch.autograd.grad(out, (q, k, v), dout)
    wanted = torch.autograd.grad(expected, (q, k, v), dout.double())
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_other_shapes_run_on_the_kernels_too(layout: str) -> None:
    inputs = LAYOUTS[layout](*operands())
    with accelerate():
        found: list[Tensor] = []
        seen = ran(lambda: found.append(attend(*inputs)))
    theirs = attend(*inputs)
    assert seen == {"aero::attention_entropy"} and found[0].shape == theirs.shape


def test_a_learned_mask_gets_its_gradient() -> None:
    q, k, v = operands()
    mask = torch.zeros(24, 24, requires_grad=True)
    with accelerate():
        attend(q, k, v, attn_mask=mask).square().sum().backward()
    assert mask.grad is not None and mask.grad.abs().sum() > 0


def test_the_seed_decides_and_torchs_own_is_back_afterwards() -> None:
    q, k, v = operands()
    before = attend(q, k, v)
    with accelerate():
        one, again, other = (attend(q, k, v, seed=n) for n in (0, 0, 1))
    assert torch.equal(one, again) and not torch.equal(one, other)
    assert not torch.equal(one, before) and torch.equal(attend(q, k, v), before)


def test_what_is_not_taken_is_torchs() -> None:
    q, k, v = operands()
    calls = {
        "causal with fewer queries": lambda: attend(q[:, :, :9], k, v, is_causal=True),
        "compiled": lambda: torch.compile(attend, backend="aot_eager")(q, k, v),
        "mapped": lambda: torch.vmap(
            lambda a: attend(a[None], k[:1], v[:1]), randomness="same"
        )(q),
    }  # fmt: skip
    for name, call in calls.items():
        with torch.no_grad():
            theirs = call()
            torch.compiler.reset()
            with accelerate():
                ours = call()
            torch.compiler.reset()
        assert torch.equal(theirs, ours), name
