"""Learning from a teacher's logits.

Letters: B windows, T tokens per window, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aero.internals.number_checks import is_real
from aero.models.loss import IGNORED, per_counted


def distillation_loss(
    logits: Tensor,
    teacher_logits: Tensor,
    labels: Tensor,
    *,
    temperature: float,
    num_items_in_batch: int | Tensor | None = None,
) -> Tensor:
    """``t^2 KL(softmax(teacher / t) || softmax(logits / t))``, the mean over predicted tokens.

    The factor t^2 keeps the size of the gradients (Hinton et al., arXiv 1503.02531, Section 2).

    Args:
        logits: the student's, [B, T, V].
        teacher_logits: [B, T, V].
        labels: [B, T], the tokens themselves, -100 where not counted: as in the language-model
            loss, position i counts if the token behind it does.
        temperature: t.
        num_items_in_batch: the divisor of the sum; default: the number of counted tokens here.

    Returns:
        The loss in nats, 0-D, float32 (float64 for float64 logits); 0 with zero gradients where no
        token counts.
    """
    counted = labels[:, 1:].ne(IGNORED)
    wide = torch.promote_types(logits.dtype, torch.float32)
    student, teacher = (
        F.log_softmax(values[:, :-1].to(wide) / temperature, dim=-1)
        for values in (logits, teacher_logits)
    )
    divergence = F.kl_div(student, teacher, reduction="none", log_target=True).sum(dim=-1)
    total = torch.where(counted, divergence, 0.0).sum()
    count = counted.sum() if num_items_in_batch is None else num_items_in_batch
    return per_counted(temperature**2 * total, count)


class Distillation:
    """Replaces a share of the cross entropy by the distance to a teacher.

    Args:
        teacher: a causal language model with the student's vocabulary; it goes to evaluation mode.
        temperature: the divisor of the logits of both.
        weight: share of the teacher, in [0, 1].

    Raises:
        ValueError: temperature or weight is no such number.

    Example:
        >>> from aero import AeroConfig, AeroForCausalLM
        >>> from aero.train import AeroTrainer, Distillation
        >>> teacher, student = (
        ...     AeroForCausalLM(AeroConfig.from_label(label, model="tiny"))
        ...     for label in ("SM+LN+G", "SM+ScFuFFN")
        ... )
        >>> share = Distillation(teacher, temperature=2.0, weight=0.5)
        >>> trainer = AeroTrainer(student, distillation=share)
    """

    def __init__(self, teacher: nn.Module, *, temperature: float, weight: float) -> None:
        if not is_real(temperature) or not 0 < temperature < math.inf:
            raise ValueError(
                f"Distillation: temperature must be a number above 0, got {temperature!r}"
            )
        if not is_real(weight) or not 0 <= weight <= 1:
            raise ValueError(f"Distillation: weight must be a number from 0 to 1, got {weight!r}")
        self._teacher = teacher.eval().requires_grad_(False)
        self._temperature = temperature
        self._weight = weight

    def loss(
        self, outputs: Any, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None
    ) -> Tensor:
        """Returns the student's loss with its share of cross entropy replaced.

        Args:
            outputs: of the student, with `loss`, `lm_loss` and `logits`.
            inputs: of the student, `labels` among them.
            num_items_in_batch: predicted tokens of the whole optimizer step.
        """
        given = {name: inputs[name] for name in ("input_ids", "attention_mask") if name in inputs}
        with torch.no_grad():
            teacher_logits = self._teacher(**given, use_cache=False).logits
        distance = distillation_loss(
            outputs.logits,
            teacher_logits,
            inputs["labels"],
            temperature=self._temperature,
            num_items_in_batch=num_items_in_batch,
        )
        loss: Tensor = outputs.loss + self._weight * (distance - outputs.lm_loss)
        return loss
