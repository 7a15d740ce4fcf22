"""The entropy penalty of models as `transformers` ships them, and how it joins their loss."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import make_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from aero.models.hugging_face_attention import visible_keys
from aero.models.loss import PUBLISHED_TOKENS, penalty_beside_loss, penalty_of_heads
from aero.ops.entropy_regularization import MaxEntropy, Reduction

_NUMBERS = {"weight": 0, "tokens": 1, "margin": 0}
_CHOICES = {
    "reduction": ("position_sum", "query_mean"),
    "max_entropy": ("log_context", "log_visible"),
}


class EntropyPenalty(nn.Module):
    """Penalty on the attention entropies of a model, `aero.ops.entropy_regularization`.

    Args:
        thresholds: [L, H], where they start, as fractions of the maximal entropy.
        weight: lambda, of the penalty in the loss.
        tokens: with ``"position_sum"``, the predicted tokens that lambda belongs to. The penalty
            is the sum over this many, whatever a call holds; the default is the paper's batch, 128
            windows of 128 tokens.
        margin: gamma, half width of the band without penalty, a fraction of the maximum.
        reduction: ``"position_sum"`` or ``"query_mean"``.
        max_entropy: ``"log_context"`` or ``"log_visible"``.
        context_length: of ``"log_context"``; None for the length of each batch.
        strengths: how strongly each head is held: ``"equal"``, ``"learned"`` from equal ones, or
            [L, H] numbers above 0 from which they are learned; their mean is always 1, see
            `aero.models.loss`.

    Attributes:
        threshold_bias: the thresholds, [L, H], learned. `Trainer` spares parameters with "bias" in
            their names from weight decay, which would pull thresholds to zero.
        strength_bias: learned, [L, H], of the strengths; None where they are equal.
        weight: and the other settings, as given; they may be changed during training.

    Raises:
        ValueError: a setting that is not allowed.

    Example:
        >>> from aero.models import EntropyPenalty
        >>> import torch
        >>> penalty = EntropyPenalty(torch.full((1, 1), 0.5), context_length=10)
        >>> round(penalty((torch.zeros(1, 1, 2),)).item(), 4)  # twice (0.5 ln 10)^2
        2.6509
    """

    def __init__(
        self,
        thresholds: Tensor,
        *,
        weight: float = 1e-5,
        tokens: int = PUBLISHED_TOKENS,
        margin: float = 0.1,
        reduction: Reduction = "position_sum",
        max_entropy: MaxEntropy = "log_context",
        context_length: int | None = None,
        strengths: Any = "equal",
    ) -> None:
        super().__init__()
        self.weight, self.tokens, self.margin = weight, tokens, margin
        self.reduction: Reduction = reduction
        self.max_entropy: MaxEntropy = max_entropy
        self.context_length = context_length
        for name, smallest in _NUMBERS.items():
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not value >= smallest:
                raise ValueError(
                    f"with_entropy_penalty: {name} must be a number from {smallest}, got {value!r}"
                )
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"with_entropy_penalty: {name} must be {' or '.join(map(repr, allowed))}, got "
                    f"{getattr(self, name)!r}"
                )
        self.threshold_bias = nn.Parameter(thresholds.clone())
        self.strength_bias = _strength_bias(strengths, thresholds)

    def forward(
        self,
        layers: tuple[Tensor, ...],
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """Returns the penalty of this call, before its weight, 0-D.

        Args:
            layers: L tensors [B, H, T], nats.
            attention_mask: [B, T], 0 for padding, whose rows do not count, or [B, 1, T, S].
            position_ids: [B, T] or [1, T]; without a mask, a position 0 begins another sequence.
        """
        keys = visible_keys(attention_mask, position_ids, layers[0])
        by_context = self.max_entropy == "log_context"
        return penalty_of_heads(
            layers,
            self.threshold_bias,
            self.strength_bias,
            margin=self.margin,
            max_entropy=self.max_entropy,
            visible_keys=None if by_context else keys,
            row_mask=None if keys is None else keys > 0,
            context_length=self.context_length if by_context else None,
            reduction=self.reduction,
        )

    def join(self, outputs: Any, arguments: Mapping[str, Any]) -> Any:
        """Adds the weighted penalty to ``outputs.loss``; the old value becomes ``lm_loss``.

        As in `AeroForCausalLM`, ``entropy_loss`` is divided by the same number as ``lm_loss``.

        Args:
            outputs: of a training call with entropies for attentions.
            arguments: of that call, by name.
        """
        layers = entropies_in(outputs)
        if layers is None:
            raise ValueError(
                "with_entropy_penalty: the model returned no entropies; its attention must stay "
                "'aero_entropy' and return_dict true"
            )
        if outputs.loss is None:
            raise ValueError(
                "with_entropy_penalty: a training call needs labels, so that the penalty has a "
                "loss to join (Trainer's label smoothing and compute_loss_func take them away)"
            )
        if outputs.loss.requires_grad and not any(layer.requires_grad for layer in layers):
            raise ValueError(
                "with_entropy_penalty: the entropies have no gradient; checkpoint activations with "
                "gradient_checkpointing_kwargs={'use_reentrant': False}, and leave some layer "
                "trainable"
            )
        penalty = self.beside_loss(layers, arguments)
        loss = outputs.loss + self.weight * penalty
        output_class: Any = type(outputs)
        joined = _output_with_parts(output_class)
        parts = {"loss": loss, "lm_loss": outputs.loss, "entropy_loss": penalty}
        return joined(**{**outputs, **parts})

    def beside_loss(self, layers: tuple[Tensor, ...], arguments: Mapping[str, Any]) -> Tensor:
        """Returns the penalty before its weight, divided as the language-model loss is, 0-D.

        Args:
            layers: L tensors [B, H, T], nats.
            arguments: of the model's call, by name; labels or shift_labels among them.
        """
        targets = arguments.get("shift_labels")
        if targets is None:
            targets = arguments["labels"][..., 1:]
        is_sum = self.reduction == "position_sum"
        return penalty_beside_loss(
            self(layers, arguments.get("attention_mask"), arguments.get("position_ids")),
            targets,
            arguments.get("num_items_in_batch"),
            tokens=self.tokens if is_sum else None,
        )

    def settings(self) -> dict[str, Any]:
        """The settings by name, as `aero.with_entropy_penalty` takes them."""
        names = (*_NUMBERS, *_CHOICES, "context_length")
        strengths = "equal" if self.strength_bias is None else "learned"
        return {**{name: getattr(self, name) for name in names}, "strengths": strengths}

    def extra_repr(self) -> str:
        """The settings."""
        return ", ".join(f"{name}={value!r}" for name, value in self.settings().items())


def _strength_bias(strengths: Any, thresholds: Tensor) -> nn.Parameter | None:
    if isinstance(strengths, str) and strengths in ("equal", "learned"):
        return None if strengths == "equal" else nn.Parameter(torch.zeros_like(thresholds))
    try:
        starts = torch.as_tensor(strengths, dtype=thresholds.dtype, device=thresholds.device)
    except (TypeError, ValueError, RuntimeError):
        starts = torch.empty(0)
    if starts.shape != thresholds.shape or not bool((starts > 0).all() and starts.isfinite().all()):
        shape = list(thresholds.shape)
        raise ValueError(
            f"with_entropy_penalty: strengths must be 'equal', 'learned' or [L, H] = {shape} "
            f"numbers above 0, got {strengths!r}"
        )
    return nn.Parameter(starts.log())


def entropies_in(outputs: Any) -> tuple[Tensor, ...] | None:
    """The entropies that a call returned for attentions, L tensors [B, H, T]; None without."""
    layers: tuple[Tensor, ...] | None = getattr(outputs, "attentions", None)
    if not layers or any(layer is None or layer.dim() != 3 for layer in layers):
        return None
    return layers


@functools.cache
def _output_with_parts(output_class: Any) -> Any:
    # Fields, not only keys: data parallelism takes outputs apart and builds them again.
    fields = [(name, Tensor | None, None) for name in ("lm_loss", "entropy_loss")]
    return make_dataclass(output_class.__name__, fields, bases=(output_class,))
