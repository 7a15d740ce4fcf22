"""How strongly the entropy penalty holds each head: equally, or as learned.

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
from aero.ops import reference


def strengths_of(bias: Tensor) -> Tensor:
    """The strengths of all heads, of mean 1, [L, H].

    Args:
        bias: [L, H], the learned numbers; their mean has no effect.
    """
    return bias.numel() * bias.flatten().softmax(0).view_as(bias)


def penalty_of_heads(
    entropies: Sequence[Tensor], thresholds: Tensor, strength_bias: Tensor | None, **rule: Any
) -> Tensor:
    """The penalty, with every head held as strongly as it is learned to be, 0-D.

    Args:
        entropies: L tensors [B, H, T], nats.
        thresholds: [L, H], fractions of the maximal entropy.
        strength_bias: [L, H]; None holds all heads equally, by the fused operator.
        **rule: as of `aero.ops.entropy_regularization`.
    """
    if strength_bias is None:
        return ops.entropy_regularization(entropies, thresholds, **rule)
    penalties = reference.head_penalties(torch.stack(tuple(entropies)), thresholds, **rule)
    logs = strength_bias.to(penalties.dtype).flatten().log_softmax(0) + math.log(penalties.numel())
    held = (logs.exp() * penalties.flatten()).mean()
    return held - penalties.mean().detach() * logs.mean()
