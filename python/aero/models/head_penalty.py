"""The entropy penalty of all heads as it joins a loss.

It holds each head equally strongly, or as learned.

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
from torch import Tensor

from aero import ops
from aero.models.loss import per_counted
from aero.ops import reference

# Predicted tokens of the paper's batch: 128 windows of 128 tokens.
PUBLISHED_TOKENS = 128 * 127


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
    num_layers = len(thresholds)
    for name, given in (("entropies", entropies), ("visible_keys", visible_keys)):
        if given is not None and len(given) != num_layers:
            raise ValueError(
                f"entropy penalty: {name} must be of the {num_layers} layers of the thresholds, "
                f"got {len(given)}"
            )
    groups = _layers_by_keys(visible_keys, num_layers)
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
