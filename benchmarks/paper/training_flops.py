"""Operations of a training: the matrix products as executed, with all that a teacher takes.

Every token costs a forward pass and a backward pass of twice the operations. A student's token
costs a forward pass of its teacher besides, and the teacher's own training counts too.
"""

from __future__ import annotations

from dataclasses import dataclass

from aero.architecture import ArchitectureSpec
from aero.internals.errors import TrainingError

PASSES = 3


@dataclass(frozen=True)
class Teacher:
    """What a student owes to its teacher.

    Attributes:
        tokens: that the teacher was trained on.
        flops_per_token: of the teacher's forward pass.
    """

    tokens: int
    flops_per_token: float


def training_flops(spec: ArchitectureSpec, tokens: int, teacher: Teacher | None = None) -> float:
    """Returns the operations of a training.

    Args:
        spec: the network.
        tokens: that it sees.
        teacher: whose logits it learns from; None learns from the text alone.
    """
    return _per_token(spec, teacher) * tokens + _spent(teacher)


def affordable_tokens(
    spec: ArchitectureSpec, flops: float, tokens_per_step: int, teacher: Teacher | None = None
) -> int:
    """Returns the tokens of the whole steps that a training can afford.

    Args:
        spec: the network.
        flops: what the training, its teacher's included, may take.
        tokens_per_step: of an optimizer step.
        teacher: as of `training_flops`.

    Raises:
        TrainingError: not one step can be afforded.
    """
    left = flops - _spent(teacher)
    steps = int(left / _per_token(spec, teacher) / tokens_per_step + 1e-9)
    if steps < 1:
        raise TrainingError(
            f"reproduce: {flops:.3g} operations leave {left:.3g} for {spec.label}, less than one "
            f"step of {tokens_per_step} tokens"
        )
    return steps * tokens_per_step


def _per_token(spec: ArchitectureSpec, teacher: Teacher | None) -> float:
    return PASSES * forward_flops(spec) + (0.0 if teacher is None else teacher.flops_per_token)


def _spent(teacher: Teacher | None) -> float:
    return 0.0 if teacher is None else PASSES * teacher.flops_per_token * teacher.tokens


def forward_flops(spec: ArchitectureSpec) -> float:
    """Operations of a forward pass per token of a full window."""
    return float(spec.flops("executed").total) / spec.context_length
