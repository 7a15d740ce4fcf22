"""Faults of memory, grouped heads, dropout and packed sequences that attention had elsewhere."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from aero.ops import attention_entropy

from . import oracle
from .bug_checks import (
    Attend,
    Results,
    as_contiguous,
    beside_oracle,
    bug,
    draw,
    operands,
    with_gradient,
)

# --- memory -------------------------------------------------------------------------------------

LONG = operands(1, 65_540, 1, 1, 4)


@bug("pytorch/pytorch#162588", "keys behind 65,536 are read at the beginning",
     beside_oracle(LONG, mask=draw(65_540, seed=5) > 0))  # fmt: skip
def _(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Results:
    at = torch.arange(k.shape[2]) % 2**16
    return attention_entropy(q, k[:, :, at], v[:, :, at], mask=mask)


VIEWS = {n: x.transpose(1, 2).contiguous().transpose(1, 2) for n, x in operands(5, 6).items()}


@bug("pytorch/pytorch#112577", "views are read as contiguous", beside_oracle(VIEWS))
def _(q: Tensor, k: Tensor, v: Tensor) -> Results:
    return attention_entropy(*map(as_contiguous, (q, k, v)))


BROADCAST = operands(4, 33, 4, 4)
BROADCAST |= {n: BROADCAST[n][:, :1].expand(-1, 4, -1, -1) for n in ("k", "v")}


@bug("pytorch/pytorch#191937", "broadcast keys, one more than a tile: the last is lost",
     beside_oracle(BROADCAST, mask=draw(4, 33, seed=5) > -2))  # fmt: skip
def _(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Results:
    return attention_entropy(q, k, v, mask=mask & (torch.arange(33) < 32))


TRANSPOSED = draw(2, 5, 2, 8, seed=9).transpose(1, 2)


@bug("pytorch/pytorch#133671", "the output's gradient is read as contiguous",
     beside_oracle(operands(5, 6), douts=(TRANSPOSED, None, None)))  # fmt: skip
def _(q: Tensor, k: Tensor, v: Tensor) -> Results:
    out, *rest = attention_entropy(q, k, v)
    return with_gradient(out, as_contiguous), *rest


@bug("facebookresearch/xformers#813", "rows of a bias that lie further apart than S",
     beside_oracle({**operands(5, 43), "bias": draw(2, 2, 5, 48, seed=4)[..., :43]}))  # fmt: skip
def _(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Results:
    return attention_entropy(q, k, v, bias=as_contiguous(bias))


ONE_BIAS = {**operands(5, 6), "bias": draw(1, 1, 5, 6, seed=4)}


@bug("pytorch/pytorch#188302", "a bias that alone wants a gradient gets none",
     beside_oracle(ONE_BIAS, learned=("bias",)))  # fmt: skip
def _(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Results:
    return attention_entropy(q, k, v, bias=bias if q.requires_grad else bias.detach())


# --- grouped heads ------------------------------------------------------------------------------

GROUPED = operands(5, 6, 6, 2)


@bug("XunhaoLai/native-sparse-attention-triton#27", "keys get the gradient of one head of a group",
     beside_oracle(GROUPED))  # fmt: skip
def _(q: Tensor, k: Tensor, v: Tensor) -> Results:
    def first(x: Tensor) -> Tensor:
        return torch.stack((x, x.detach(), x.detach()), 2).flatten(1, 2)

    return attention_entropy(q, first(k), first(v))


@bug("ekzhang/jax-js#180", "heads read key head h mod G", beside_oracle(GROUPED))
def _(q: Tensor, k: Tensor, v: Tensor) -> Results:
    return attention_entropy(q, k.repeat(1, 3, 1, 1), v.repeat(1, 3, 1, 1))


def _refused(attend: Attend) -> None:
    try:
        attend(**operands(5, 6, 3, 2))
    except ValueError:
        return
    raise AssertionError("three heads on two of keys are no error")


@bug("fla-org/flash-linear-attention#1029", "heads that are no multiple of key heads are computed",
     _refused)  # fmt: skip
def _(q: Tensor, k: Tensor, v: Tensor) -> Results:
    of_head = torch.arange(q.shape[1]) // (q.shape[1] // k.shape[1])
    of_head = of_head.clamp(max=k.shape[1] - 1)
    return attention_entropy(q, k[:, of_head], v[:, of_head])


# --- dropout ------------------------------------------------------------------------------------


def _is_linear_in_values(attend: Attend, through: Callable[..., Tensor]) -> None:
    tensors = {n: x.requires_grad_() for n, x in operands(9, 9).items()}
    torch.manual_seed(0)
    out = through(lambda q, k, v: attend(q, k, v, dropout_p=0.5)[0], *tensors.values())
    dout = draw(*out.shape, seed=5)
    dv = torch.autograd.grad(out, tensors["v"], dout)[0]
    torch.testing.assert_close((dv * tensors["v"]).sum(), (dout * out).sum(), rtol=1e-4, atol=1e-4)


@bug("Dao-AILab/flash-attention#1251", "forward and backward drop other weights",
     lambda attend: _is_linear_in_values(attend, lambda f, *x: f(*x)))  # fmt: skip
def _(q: Tensor, k: Tensor, v: Tensor, dropout_p: float) -> Results:
    out, *rest = attention_entropy(q, k, v, dropout_p=dropout_p)
    other = attention_entropy(q, k, v, dropout_p=dropout_p)[0]
    return out.detach() + other - other.detach(), *rest


def _checkpointed(f: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    out: Tensor = torch.utils.checkpoint.checkpoint(f, *tensors, use_reentrant=False)
    return out


SEEDS = itertools.count()


@bug("pytorch/pytorch#190717", "what checkpointing computes again drops other weights",
     lambda attend: _is_linear_in_values(attend, _checkpointed))  # fmt: skip
def _(q: Tensor, k: Tensor, v: Tensor, dropout_p: float) -> Results:
    torch.manual_seed(next(SEEDS))
    return attention_entropy(q, k, v, dropout_p=dropout_p)


# --- packed sequences ---------------------------------------------------------------------------

STARTS = [torch.tensor(x, dtype=torch.int32) for x in ([0, 0, 3, 7, 7], [0, 2, 5, 9, 12])]


def _apart(attend: Attend) -> None:
    """Sequences of no queries, and no queries behind the last."""
    tensors = {n: x[:1].requires_grad_() for n, x in operands(7, 12).items()}
    out, *_ = attend(**tensors, is_causal=True, cu_seqlens=tuple(STARTS))
    dout = draw(*out.shape, seed=5)
    found = torch.autograd.grad(out, list(tensors.values()), dout)
    for n in range(4):
        rows, keys = (slice(int(s[n]), int(s[n + 1])) for s in STARTS)
        part = {x: tensors[x][:, :, rows if x == "q" else keys] for x in tensors}
        cotangents = [dout[:, :, rows], None, None]
        exact, gradients = oracle.run("attention_entropy", part, {"is_causal": True}, cotangents)
        torch.testing.assert_close(out[:, :, rows].double(), exact[0], rtol=0, atol=3e-5)
        for (name, wanted), got in zip(gradients.items(), found, strict=True):
            got = got[:, :, rows if name == "q" else keys]
            torch.testing.assert_close(got.double(), wanted, rtol=0, atol=1e-4)


@bug("Dao-AILab/flash-attention#2562", "keys of a sequence without queries get what memory held",
     _apart)  # fmt: skip
def _(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, cu_seqlens: Any) -> Results:
    k = with_gradient(k, lambda g: g.index_fill(2, torch.tensor([0, 1]), 1e3))
    return attention_entropy(q, k, v, is_causal=is_causal, cu_seqlens=cu_seqlens)


@bug("huggingface/transformers#46634", "a sequence sees those packed before it", _apart)
def _(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, cu_seqlens: Any) -> Results:
    return attention_entropy(q, k, v, is_causal=is_causal)
