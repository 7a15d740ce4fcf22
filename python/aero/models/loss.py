"""Next-token cross entropy without copies of the logits, or without the logits as a whole.

`next_token_loss` takes logits. `head_loss` takes hidden states and a head's weight, by blocks of
rows: the logits of a block are turned into their gradient where they lie and multiplied on while
they are in the cache. So a training step keeps neither the logits [B, T, V] nor their gradient, and
the weight's gradient is written once in its own dtype. With GPT-2's vocabulary under bfloat16
autocast, two threads of a Zen 4 (head and loss, forward and backward, freed memory kept): 512 rows
take 316 ms, with whole logits 350 and by torch's own functions 364; 2,048 rows 1.27, 1.33, 1.54 s.

Letters: B batch, T tokens, N = B * T rows, C width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor

from aero.nn.linear import add_product, adds_in_place, linear, product

IGNORED = -100

# Rows per block: 51 MB of logits at GPT-2's vocabulary in bfloat16. Each further block adds to the
# weight's gradient, 8 C V bytes of traffic. 256 rows take 1.1 times as long.
_ROWS = 512

# Classes per product whose result is copied or added from memory of its own. The weight's gradient
# stays in the cache meanwhile, and a product of all classes takes 1.2 times as long there. 2,048
# and 8,192 take as long. Products that MKL adds in place are of all classes: in float32 a Cascade
# Lake takes 1.00 times as long as with whole logits, with slices 1.03.
_CLASSES = 4096

# Fewer logits stay in the cache as a whole: with 2,048 rows of 1,024 classes in float32 a training
# step by blocks takes 1.04 times as long.
_FEW_LOGITS = 1 << 22


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

    On CPUs by a kernel that keeps nothing for the backward but the logits: 4096 rows of 4096 take
    20 ms forward and backward on one thread of a Zen 4, where `torch.nn.functional.cross_entropy`
    takes 27 (freed memory kept).

    Args:
        logits: [N, V].
        targets: [N], int64, -100 for rows that do not count.

    Returns:
        The sum, 0-D, float32 (float64 for float64 logits).
    """
    if not _has_kernel(logits.device):
        wide = torch.promote_types(logits.dtype, torch.float32)
        return F.cross_entropy(logits.to(wide), targets, reduction="sum", ignore_index=IGNORED)
    return _CrossEntropy.apply(logits, targets)  # type: ignore[no-any-return,no-untyped-call]


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        ctx.save_for_backward(logits, targets)
        total: Tensor = torch.ops.aero.cross_entropy(logits, targets)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        logits, targets = ctx.saved_tensors
        d_logits = logits.clone(memory_format=torch.contiguous_format)
        _turn_into_gradient(d_logits, targets, gradient.expand(len(targets)))
        return d_logits, None


def _turn_into_gradient(logits: Tensor, targets: Tensor, factors: Tensor) -> Tensor:
    """Returns the summed cross entropy of rows [N, V]; the logits become their gradient.

    Args:
        logits: [N, V].
        targets: [N].
        factors: [N], by which a row's gradient is multiplied; its dtype is that of the sums.
    """
    torch.autograd.graph.increment_version(logits)
    total: Tensor = torch.ops.aero.cross_entropy_gradient_(logits, targets, factors)
    return total


def _has_kernel(device: torch.device) -> bool:
    """False in a saved network that runs without this package, too."""
    return (
        device.type == "cpu"
        and not torch.compiler.is_compiling()
        and hasattr(torch.ops.aero, "cross_entropy")
    )


def head_loss(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    num_items_in_batch: int | Tensor | None = None,
    *,
    of_nothing: float = 0.0,
) -> Tensor:
    """`next_token_loss` of ``hidden weight^T``, with both gradients computed beside it.

    It forms the logits where they are few, on a GPU, in a compiled graph and in float16, whose
    gradients need the scale of a `GradScaler` before they are rounded.

    Args:
        hidden: [B, T, C].
        weight: [V, C].
        labels: [B, T], as of `next_token_loss`, as are the others.
        num_items_in_batch: the divisor of the sum.
        of_nothing: the loss where the divisor is 0.
    """
    dtype = hidden.dtype
    if torch.is_autocast_enabled(hidden.device.type) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(hidden.device.type)
    elif weight.dtype != dtype:
        dtype = torch.float16  # torch's own error
    is_plain = (
        _has_kernel(hidden.device)
        and hidden.device == weight.device
        and not isinstance(weight, DTensor)
        and dtype != torch.float16
        and hidden.shape[-1] == weight.shape[-1]
        and hidden.shape[:-1] == labels.shape
        and labels.numel() * len(weight) > _FEW_LOGITS
    )
    if not is_plain:
        logits = linear(hidden, weight)
        return next_token_loss(logits, labels, num_items_in_batch, of_nothing=of_nothing)
    targets = shifted_targets(labels)
    if num_items_in_batch is None:
        num_items_in_batch = targets.ne(IGNORED).sum()
    rule = _Rule(dtype, of_nothing, torch.is_grad_enabled())
    divisor = torch.as_tensor(num_items_in_batch).to(rule.wide)
    return _BlockwiseLoss.apply(  # type: ignore[no-any-return,no-untyped-call]
        hidden.flatten(0, 1), weight, targets, divisor, rule
    )


@dataclass(frozen=True)
class _Rule:
    """The dtype of products and logits, the loss of no token, and whether gradients are wanted."""

    dtype: torch.dtype
    of_nothing: float
    has_gradients: bool

    @property
    def wide(self) -> torch.dtype:
        """The dtype of sums and probabilities."""
        return torch.promote_types(self.dtype, torch.float32)


class _BlockwiseLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, divisor: Tensor, rule: _Rule
    ) -> Tensor:
        ctx.save_for_backward(hidden, weight, targets, divisor)
        ctx.rule = rule
        ctx.wanted = ctx.needs_input_grad[:2] if rule.has_gradients else (False, False)
        total, ctx.gradients = _by_blocks(hidden, weight, targets, divisor, rule.dtype, ctx.wanted)
        return per_counted(total, divisor, of_nothing=rule.of_nothing)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # An error if one of them has changed.
        hidden, weight, targets, divisor = ctx.saved_tensors
        # Handed on, as whoever gets them may write to them; another backward computes them again.
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            _, gradients = _by_blocks(hidden, weight, targets, divisor, ctx.rule.dtype, ctx.wanted)
        if gradient != 1:
            for one in gradients:
                if one is not None:
                    one.mul_(gradient)
        return (*gradients, None, None, None)


def _by_blocks(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    divisor: Tensor,
    dtype: torch.dtype,
    wanted: tuple[bool, bool],
) -> tuple[Tensor, tuple[Tensor | None, Tensor | None]]:
    """The summed cross entropy, 0-D, and the wanted gradients of its quotient by `divisor`."""
    rows, head = hidden.to(dtype), weight.to(dtype)
    # The gradient of a row's loss, 0 where it does not count.
    factors = per_counted(targets.ne(IGNORED).to(divisor.dtype), divisor)
    d_hidden = torch.empty_like(hidden) if wanted[0] else None
    # Several blocks add up in float32 or wider.
    summed = weight.dtype if len(rows) <= _ROWS else divisor.dtype
    d_weight = torch.empty_like(weight, dtype=summed) if wanted[1] else None
    total = divisor.new_zeros(())
    memory = rows.new_empty(min(_ROWS, len(rows)), len(head))
    in_place = dtype != torch.bfloat16 and adds_in_place(summed, rows, head)
    slices = _slices(len(head), len(head) if in_place else _CLASSES)
    for first in range(0, len(rows), _ROWS):
        block = slice(first, first + _ROWS)
        x, target = rows[block], targets[block]
        logits = memory[: len(x)]
        for classes in slices:
            product(x, head[classes], out=logits[:, classes])
        if not any(wanted):
            total += summed_cross_entropy(logits, target)
            continue
        total += _turn_into_gradient(logits, target, factors[block])
        if d_hidden is not None:
            d_hidden[block] = product(logits, head.t())
        if d_weight is not None:
            for classes in slices:
                gradients = logits[:, classes].t()
                add_product(d_weight[classes], gradients, x.t(), begins=first == 0)
    return total, (d_hidden, None if d_weight is None else d_weight.to(weight.dtype))


def _slices(count: int, size: int) -> list[slice]:
    return [slice(first, first + size) for first in range(0, count, size)]
