"""Faults of visible keys and of scores that attention had elsewhere."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from aero.ops import attention_entropy

from .bug_checks import Attend, Results, beside_oracle, bug, operands, with_gradient

# --- rows and keys that are not seen ------------------------------------------------------------

CORNER = torch.zeros(8, 8, dtype=torch.bool)
CORNER[:4, :4] = True


@bug("pytorch/pytorch#103963", "rows that a boolean mask hides whole are NaN",
     beside_oracle(operands(8, 8), mask=CORNER))  # fmt: skip
def _(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Results:
    out, *rest = attention_entropy(q, k, v, mask=mask)
    return out.masked_fill(~mask.any(-1, keepdim=True), math.nan), *rest


BAND = torch.full((600, 600), -math.inf)
BAND = torch.triu(BAND, diagonal=1) + torch.tril(BAND, diagonal=-10)
FAR = {**operands(600, 600, 1, 1, 2), "bias": BAND}


@bug("pytorch/pytorch#127055", "rows whose first tile of keys is hidden are NaN",
     beside_oracle(FAR, learned=("q", "k", "v")))  # fmt: skip
def _(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Results:
    out, *rest = attention_entropy(q, k, v, bias=bias)
    is_hidden = (bias[:, :512] == -math.inf).all(-1, keepdim=True)
    return out.masked_fill(is_hidden, math.nan), *rest


LEAST = torch.zeros(3, 4).index_fill(0, torch.tensor([0]), torch.finfo(torch.float32).min)


def _is_mean(attend: Attend) -> None:
    """Beside the least number no score counts; rows of it may not be logsumexp's."""
    tensors = operands(3, 4)
    out, entropy, _ = attend(**tensors, bias=LEAST)
    torch.testing.assert_close(out[:, :, 0], tensors["v"].mean(2))
    torch.testing.assert_close(entropy[:, :, 0], torch.full((2, 2), math.log(4)))


@bug("pytorch/pytorch#110213", "a row of the least numbers is no mean of its values", _is_mean)
def _(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Results:
    return attention_entropy(q, k, v, bias=2 * bias)


NAN_QUERY = operands(5, 6)
NAN_QUERY["q"] = NAN_QUERY["q"].index_fill(2, torch.tensor([3]), math.nan)


def _nan_stays(attend: Attend) -> None:
    out, entropy, logsumexp = attend(**NAN_QUERY)
    for x in (out[:, :, 3], entropy[:, :, 3], logsumexp[:, :, 3]):
        assert x.isnan().all()
    assert out[:, :, [0, 1, 2, 4]].isfinite().all()


@bug("pytorch/pytorch#141128", "queries of NaN give zeros", _nan_stays)
def _(q: Tensor, k: Tensor, v: Tensor) -> Results:
    out, *rest = attention_entropy(q, k, v)
    return out.nan_to_num(), *rest


# --- the diagonal and windows -------------------------------------------------------------------


def _shifted(q: Tensor, k: Tensor, left: float, right: float, offset: int) -> Tensor:
    ahead = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None] - offset
    return (ahead >= -left) & (ahead <= right)


@bug("Dao-AILab/flash-attention#282", "query 0 sees key 0 alone beside a longer cache",
     beside_oracle(operands(3, 8), is_causal=True))  # fmt: skip
def _(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Results:
    return attention_entropy(q, k, v, mask=_shifted(q, k, math.inf, 0, 0))


@bug("Dao-AILab/flash-attention#1778", "more queries than keys: rows before the first key",
     beside_oracle(operands(8, 3), is_causal=True))  # fmt: skip
def _(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Results:
    mask = _shifted(q, k, math.inf, 0, -5)
    mask[:, 0] = True
    return attention_entropy(q, k, v, mask=mask)


@bug("Dao-AILab/flash-attention#1133", "a window of S - 1 keys back hides the first",
     beside_oracle(operands(70, 70), window=(69, 0)))  # fmt: skip
def _(q: Tensor, k: Tensor, v: Tensor, window: Any) -> Results:
    return attention_entropy(q, k, v, window=(window[0] - 1, 0))


@bug("Dao-AILab/flash-attention#895", "a window beyond the last key is cut to S, and hides keys",
     beside_oracle(operands(9, 4), window=(None, 2**31 - 1)))  # fmt: skip
def _(q: Tensor, k: Tensor, v: Tensor, window: Any) -> Results:
    return attention_entropy(q, k, v, window=(None, min(window[1], k.shape[2])))


def _counts_keys(attend: Attend) -> None:
    q = torch.zeros(1, 1, 9, 8)
    _, entropy, _ = attend(q, q, q, window=(3, 0))
    wanted = torch.tensor([1, 2, 3, 4, 4, 4, 4, 4, 4.0]).log()
    torch.testing.assert_close(entropy[0, 0], wanted)


@bug("huggingface/transformers#39408", "a window sees one key more", _counts_keys)
def _(q: Tensor, k: Tensor, v: Tensor, window: Any) -> Results:
    return attention_entropy(q, k, v, window=(window[0] + 1, window[1]))


@bug("ROCm/flash-attention#185", "the window of a new token counts from the first key",
     beside_oracle(operands(1, 12), window=(3, 0)))  # fmt: skip
def _(q: Tensor, k: Tensor, v: Tensor, window: Any) -> Results:
    return attention_entropy(q, k, v, mask=_shifted(q, k, *window, 0))


# --- scores -------------------------------------------------------------------------------------


@bug("SKaiNET-developers/SKaiNET#860", "without a scale all scores are zero",
     beside_oracle(operands(5, 6)))  # fmt: skip
def _(q: Tensor, k: Tensor, v: Tensor) -> Results:
    return attention_entropy(q, k, v, scale=0.0)


@bug("sgl-project/sglang#33915", "the soft cap is taken and left out",
     beside_oracle(operands(5, 6), softcap=0.7))  # fmt: skip
def _(q: Tensor, k: Tensor, v: Tensor, softcap: float) -> Results:
    return attention_entropy(q, k, v)


@bug("vllm-project/vllm#945", "slopes of a new token count from the first key",
     beside_oracle({**operands(1, 9), "alibi_slopes": torch.tensor([0.5, 1.0])}))  # fmt: skip
def _(q: Tensor, k: Tensor, v: Tensor, alibi_slopes: Tensor) -> Results:
    ahead = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None]
    return attention_entropy(q, k, v, bias=-alibi_slopes[:, None, None] * ahead.abs())


SINKS = {**operands(6, 6), "sinks": torch.tensor([0.3, 2.0])}


@bug("NVIDIA/TransformerEngine#3551", "sinks get a gradient of zero",
     beside_oracle(SINKS, is_causal=True))  # fmt: skip
def _(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, is_causal: bool) -> Results:
    return attention_entropy(q, k, v, sinks=sinks.detach(), is_causal=is_causal)


@bug("pytorch/torchtitan#4796", "sinks scale the output by a logsumexp without a gradient",
     beside_oracle(SINKS, is_causal=True))  # fmt: skip
def _(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, is_causal: bool) -> Results:
    _, *rest = attention_entropy(q, k, v, sinks=sinks, is_causal=is_causal)
    out, _, logsumexp = attention_entropy(q, k, v, is_causal=is_causal)
    share = torch.sigmoid(logsumexp.detach() - sinks[:, None])
    return out * share[..., None], *rest


WHOLE = {n: (4 * x).round() for n, x in operands(5, 6).items()}
WHOLE["q"][..., 0], WHOLE["k"][..., 0] = 100, 100  # exact products of 10,000 and a few


@bug("pytorch/pytorch#125674", "gradients of large scores take a rounded logsumexp",
     beside_oracle(WHOLE, scale=1.0))  # fmt: skip
def _(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Results:
    rounding = math.exp(2.0**-11)  # half of the distance of float32's numbers at 10,000
    return attention_entropy(q, k, with_gradient(v, lambda g: g * rounding), scale=scale)


LOW = operands(70, 70, 1, 1)
LOW["q"], LOW["k"] = (
    x.clone().index_fill(-1, torch.tensor([0]), sign * 20.0)
    for x, sign in ((LOW["q"], 1), (LOW["k"], -1))
)


@bug("pytorch/pytorch#196678", "the padding of the last tile is a score of 0 beside very low ones",
     beside_oracle(LOW, mask=torch.ones(70, 70, dtype=torch.bool)))  # fmt: skip
def _(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Results:
    *_, logsumexp = attention_entropy(q, k, v, mask=mask)
    padding = (-logsumexp.detach())[..., None].exp() * 0
    q = with_gradient(q, lambda g: g + padding)
    return attention_entropy(q, k, v, mask=mask)
