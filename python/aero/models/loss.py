"""Next-token cross entropy without copies of the logits, and the penalty that joins it.

The penalty holds each head equally strongly, or as learned.

The abstract of the paper's third version names learnable strengths per head and not their form, so
the form is ours. With n heads, penalties P_i and learned numbers b_i

    s_i = n softmax(b)_i        the strengths, above 0 and of mean 1
    R   = mean(s_i P_i) - mean(P_i) mean(log s_i)

Gradients of the second term reach b alone. Without it, descent would give all strength to the head
with the least penalty, where the band around the threshold makes it 0. The term is a log-barrier in
units of the mean penalty, so that it needs no weight, and is never negative (Jensen). With
M = mean(P_i) and W = mean(s_i P_i),

    dR / db_i = (s_i (P_i - W + M) - M) / n

is -M / n at s_i = 0, which raises s_i, and is zero at s_i = M / (P_i - W + M). As W is at least the
least penalty, a strength at rest is at least 1 / (1 + (P_i - min P) / M).

R is linear in the penalties, so that micro-batches and processes sum to the step of all rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from aero import ops
from aero.ops import reference

IGNORED = -100

# Logits per piece: 1 MB of float32, so that a piece stays in the second-level cache.
_PIECE = 2**18


# Predicted tokens of the paper's batch: 128 windows of 128 tokens.
PUBLISHED_TOKENS = 128 * 127


def next_token_loss(
    logits: Tensor,
    labels: Tensor,
    num_items_in_batch: int | Tensor | None = None,
    *,
    of_nothing: float = 0.0,
) -> Tensor:
    """Cross entropy of every token given the ones before it.

    Args:
        logits: [B, T, V].
        labels: [B, T], the tokens themselves, -100 where not counted.
        num_items_in_batch: the divisor of the sum; default: the number of counted tokens here.
        of_nothing: the loss where the divisor is 0.

    Returns:
        The loss in nats, 0-D, float32 (float64 for float64 logits).
    """
    targets = shifted_targets(labels)
    if num_items_in_batch is None:
        num_items_in_batch = targets.ne(IGNORED).sum()
    total = summed_cross_entropy(logits.flatten(0, 1), targets)
    return per_counted(total, num_items_in_batch, of_nothing=of_nothing)


def shifted_targets(labels: Tensor) -> Tensor:
    """Labels [B, T] moved one to the left, not logits to the right: no copy of [B, T, V]; [B T]."""
    return F.pad(labels[:, 1:], (0, 1), value=IGNORED).flatten()


def per_counted(total: Tensor, count: int | Tensor, *, of_nothing: float = 0.0) -> Tensor:
    """``total / count``; where the count is 0 `of_nothing`, with gradients of exactly 0.

    A quotient by 0 would make every gradient NaN. `transformers` has zeros there too.

    Args:
        total: a sum over what counts, 0-D.
        count: how much that is.
        of_nothing: 0, so that other batches of a step stay as they are, or NaN in an evaluation,
            where a 0 would pass for a good loss.
    """
    divisor = torch.as_tensor(count).to(total)
    is_empty = divisor == 0
    return torch.where(is_empty, of_nothing, total) / torch.where(is_empty, 1.0, divisor)


def summed_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum of ``logsumexp(logits_i) - logits_i[target_i]`` over the rows that have a target.

    On CPUs in pieces of rows that stay in the cache, keeping nothing for the backward but the
    logits: 4096 rows of 4096 take 42 ms forward and backward on one thread of an EPYC, where
    `torch.nn.functional.cross_entropy` with its two further [N, V] tensors takes 95 ms.

    Args:
        logits: [N, V].
        targets: [N], int64, -100 for rows that do not count.

    Returns:
        The sum, 0-D, float32 (float64 for float64 logits).
    """
    if logits.device.type != "cpu" or torch.compiler.is_compiling():
        wide = torch.promote_types(logits.dtype, torch.float32)
        return F.cross_entropy(logits.to(wide), targets, reduction="sum", ignore_index=IGNORED)
    return _PiecewiseCrossEntropy.apply(  # type: ignore[no-any-return,no-untyped-call]
        logits, targets
    )


class _PiecewiseCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        ctx.save_for_backward(logits, targets)
        wide = torch.promote_types(logits.dtype, torch.float32)
        total = torch.zeros((), dtype=wide)
        for piece, target in pieces(logits, targets):
            log_probabilities = F.log_softmax(piece, dim=-1, dtype=wide)
            total += F.nll_loss(log_probabilities, target, reduction="sum", ignore_index=IGNORED)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        logits, targets = ctx.saved_tensors
        d_logits = torch.empty_like(logits)
        wide = gradient.dtype
        for (piece, target), (d_piece,) in zip(
            pieces(logits, targets), pieces(d_logits), strict=True
        ):
            # softmax minus one at the target, zero in rows without one
            counted = target.ne(IGNORED)
            in_place = d_piece if logits.dtype == wide else None
            probabilities = torch.softmax(piece, dim=-1, dtype=wide, out=in_place)
            index = target.clamp(min=0).unsqueeze(-1)
            probabilities.scatter_add_(1, index, torch.full_like(index, -1, dtype=wide))
            probabilities.mul_((gradient * counted).unsqueeze(-1))
            if in_place is None:
                d_piece.copy_(probabilities)
        return d_logits, None


def pieces(logits: Tensor, *of_rows: Tensor) -> zip[tuple[Tensor, ...]]:
    """Logits [N, V] and tensors of N rows beside them, by rows that stay in the cache."""
    rows = max(1, _PIECE // logits.shape[-1])
    return zip(*(x.split(rows) for x in (logits, *of_rows)), strict=True)  # type: ignore[no-untyped-call]


def strengths_of(bias: Tensor) -> Tensor:
    """The strengths of all heads, of mean 1, [L, H].

    Args:
        bias: [L, H], the learned numbers; their mean has no effect.
    """
    return bias.numel() * bias.flatten().softmax(0).view_as(bias)


def penalty_of_heads(
    entropies: Sequence[Tensor],
    thresholds: Tensor,
    strength_bias: Tensor | None,
    *,
    visible_keys: Sequence[Tensor] | None = None,
    **rule: Any,
) -> Tensor:
    """The penalty, with every head held as strongly as it is learned to be, 0-D.

    Args:
        entropies: L tensors [B, H, T], nats.
        thresholds: [L, H], fractions of the maximal entropy.
        strength_bias: [L, H]; None holds all heads equally, by the fused operator.
        visible_keys: L tensors [B, T], the same one for layers that see the same; 0 in rows that do
            not count. None where all rows count and are causal.
        **rule: else as of `aero.ops.entropy_regularization`.
    """
    groups = _layers_by_keys(visible_keys, len(entropies))
    compute: Any = ops.entropy_regularization
    if strength_bias is not None:
        compute = reference.head_penalties
    parts = [
        compute(
            torch.stack([entropies[layer] for layer in layers]),
            _of_layers(thresholds, layers),
            **rule,
            **_rule_of_rows(keys, rule["max_entropy"]),
        )
        for layers, keys in groups
    ]
    if strength_bias is None:
        shares = [len(layers) / len(entropies) for layers, _ in groups]
        shared = [share * part for share, part in zip(shares, parts, strict=True)]
        return torch.stack(shared).sum()
    penalties = torch.cat(parts)
    bias = _of_layers(strength_bias, [layer for layers, _ in groups for layer in layers])
    logs = bias.to(penalties.dtype).flatten().log_softmax(0) + math.log(penalties.numel())
    held: Tensor = (logs.exp() * penalties.flatten()).mean()
    return held - penalties.mean().detach() * logs.mean()


def _layers_by_keys(
    visible_keys: Sequence[Tensor] | None, num_layers: int
) -> list[tuple[list[int], Tensor | None]]:
    """The layers that share their keys, by index, and these keys."""
    if visible_keys is None:
        return [(list(range(num_layers)), None)]
    groups: list[tuple[list[int], Tensor | None]] = []
    for layer, keys in enumerate(visible_keys):
        for layers, of_them in groups:
            if of_them is keys:
                layers.append(layer)
                break
        else:
            groups.append(([layer], keys))
    return groups


def _of_layers(values: Tensor, layers: list[int]) -> Tensor:
    """The layers' rows; of all in order the tensor itself, as a GPU waits for a list of indices."""
    return values if layers == list(range(len(values))) else values[layers]


def _rule_of_rows(keys: Tensor | None, max_entropy: str) -> dict[str, Tensor | None]:
    return {
        "visible_keys": keys if max_entropy == "log_visible" else None,
        "row_mask": None if keys is None else keys > 0,
    }


def penalty_in_loss(
    entropies: Sequence[Tensor],
    thresholds: Tensor,
    predicted: int | Tensor,
    num_items_in_batch: int | Tensor | None = None,
    *,
    weight: float,
    tokens: int = PUBLISHED_TOKENS,
    strength_bias: Tensor | None = None,
    **rule: Any,
) -> tuple[Tensor, Tensor]:
    """The penalty as it joins a loss in nats per predicted token; 0 where no token is predicted.

    It has the divisor of the loss. A loop that averages over processes and micro-batches, or that
    counts the tokens of a step, so treats both alike, and their balance is the same in every loop.

    Args:
        entropies: L tensors [B, H, T], nats.
        thresholds: [L, H], fractions of the maximal entropy.
        predicted: the predicted tokens of this call that the loss counts.
        num_items_in_batch: the divisor of the loss; default: `predicted`.
        weight: lambda.
        tokens: of ``"position_sum"``: the predicted tokens that lambda belongs to, at which the sum
            keeps its size. A mean over sequences counts with this call's share of the tokens.
        strength_bias: [L, H], as of `penalty_of_heads`.
        **rule: as of `penalty_of_heads`.

    Returns:
        The penalty before its weight, and the term to add to the loss, 0-D each.
    """
    penalty = penalty_of_heads(entropies, thresholds, strength_bias, **rule)
    divisor = predicted if num_items_in_batch is None else num_items_in_batch
    share = predicted if rule.get("reduction") == "query_mean" else tokens
    penalty = penalty * per_counted(torch.as_tensor(share).to(penalty), divisor)
    return penalty, weight * penalty
