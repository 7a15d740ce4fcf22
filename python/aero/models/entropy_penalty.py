"""The entropy penalty of models as `transformers` ships them, and how it joins their loss."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import make_dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from aero.models.head_penalty import PUBLISHED_TOKENS, penalty_in_loss, penalty_of_heads
from aero.models.loss import IGNORED
from aero.nn.visible_keys import AttentionCall, keys_by_layer
from aero.nn.weight_decay import Scales
from aero.ops.entropy_regularization import MaxEntropy, Reduction

_NUMBERS = {"weight": 0, "tokens": 1, "margin": 0}
_CHOICES = {
    "reduction": ("position_sum", "query_mean"),
    "max_entropy": ("log_context", "log_visible"),
}


class EntropyPenalty(Scales):
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
            `aero.models.head_penalty`.

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

    _scale_names = ("threshold_bias", "strength_bias")

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
            is_number = isinstance(value, Real) and not isinstance(value, bool)
            if not is_number or not smallest <= value < math.inf:
                raise ValueError(
                    f"with_entropy_penalty: {name} must be a number from {smallest}, got {value!r}"
                )
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"with_entropy_penalty: {name} must be {' or '.join(map(repr, allowed))}, got "
                    f"{getattr(self, name)!r}"
                )
        if context_length is not None and not context_length >= 1:
            raise ValueError(
                "with_entropy_penalty: context_length must be None or a number from 1, got "
                f"{context_length!r}"
            )
        self.threshold_bias = nn.Parameter(_checked_thresholds(thresholds).clone())
        self.strength_bias = _strength_bias(strengths, thresholds)

    def forward(
        self,
        layers: tuple[Tensor, ...],
        visible_keys: Sequence[Tensor] | None = None,
    ) -> Tensor:
        """Returns the penalty of this call, before its weight, 0-D.

        Args:
            layers: L tensors [B, H, T], nats.
            visible_keys: L tensors [B, T], how many keys each row sees, 0 in rows of padding, which
                do not count; None where all rows are causal and none is padding.
        """
        return penalty_of_heads(
            layers, self.threshold_bias, self.strength_bias, **self._rule(visible_keys)
        )

    def term(self, layers: Sequence[Tensor], predicted: int | Tensor) -> Tensor:
        """Returns what a training loop of its own adds to its loss, nats per token, 0-D.

        It is what `AeroForCausalLM` and `aero.with_entropy_penalty` add: with ``"position_sum"``
        the sum over the rows, times weight and `tokens`, over the predicted tokens. 0, with zero
        gradients, where no token is predicted.

        Args:
            layers: L tensors [B, H, T], nats.
            predicted: how many predicted tokens the loss is averaged over.

        Raises:
            ValueError: a negative number, or entropies that do not fit the thresholds.

        Example:
            >>> from aero.models import EntropyPenalty
            >>> import torch
            >>> penalty = EntropyPenalty(torch.full((1, 1), 0.5), context_length=10)
            >>> round(penalty.term((torch.zeros(1, 1, 2),), 2).item(), 4)  # 0.16256 (0.5 ln 10)^2
            0.2155
        """
        if not isinstance(predicted, Tensor) and not 0 <= predicted < math.inf:
            raise ValueError(f"EntropyPenalty: predicted must be from 0, got {predicted!r}")
        return self._in_loss(layers, predicted)[1]

    def join(
        self, outputs: Any, arguments: Mapping[str, Any], calls: Sequence[AttentionCall]
    ) -> Any:
        """Adds the weighted penalty to ``outputs.loss``; the old value becomes ``lm_loss``.

        As in `AeroForCausalLM`, ``entropy_loss`` is divided by the same number as ``lm_loss``, and
        both are 0 where that is.

        Args:
            outputs: of a training call with entropies for attentions.
            arguments: of that call, by name.
            calls: as of `beside_loss`.
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
        penalty, term = self.beside_loss(layers, arguments, calls)
        divisor = arguments.get("num_items_in_batch")
        divisor = torch.as_tensor(_predicted(arguments) if divisor is None else divisor)
        # Where nothing counts, models of transformers have NaN, which would stay in a sum.
        lm_loss = torch.where(divisor.to(outputs.loss.device) == 0, 0.0, outputs.loss)
        output_class: Any = type(outputs)
        joined = _output_with_parts(output_class)
        parts = {"lm_loss": lm_loss, "entropy_loss": penalty, "penalty_nats": term}
        return joined(**{**outputs, **parts, "loss": lm_loss + term})

    def beside_loss(
        self,
        layers: tuple[Tensor, ...],
        arguments: Mapping[str, Any],
        calls: Sequence[AttentionCall],
    ) -> tuple[Tensor, Tensor]:
        """Returns the penalty before its weight, and the term that joins the loss, 0-D each.

        Args:
            layers: L tensors [B, H, T], nats.
            arguments: of the model's call, by name; labels or shift_labels among them.
            calls: what the attention of each layer got, as `recorded_calls` has it.
        """
        mask = arguments.get("attention_mask")
        keys = keys_by_layer("with_entropy_penalty", calls, layers, mask)
        count = arguments.get("num_items_in_batch")
        return self._in_loss(layers, _predicted(arguments), count, keys)

    def _in_loss(
        self,
        layers: Sequence[Tensor],
        predicted: int | Tensor,
        num_items_in_batch: int | Tensor | None = None,
        visible_keys: Sequence[Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        return penalty_in_loss(
            layers,
            self.threshold_bias,
            predicted,
            num_items_in_batch,
            weight=self.weight,
            tokens=self.tokens,
            strength_bias=self.strength_bias,
            **self._rule(visible_keys),
        )

    def _rule(self, visible_keys: Sequence[Tensor] | None) -> dict[str, Any]:
        by_context = self.max_entropy == "log_context"
        return {
            "margin": self.margin,
            "max_entropy": self.max_entropy,
            "visible_keys": visible_keys,
            "context_length": self.context_length if by_context else None,
            "reduction": self.reduction,
        }

    def settings(self) -> dict[str, Any]:
        """Returns the settings by name, as `aero.with_entropy_penalty` takes them."""
        names = (*_NUMBERS, *_CHOICES, "context_length")
        strengths = "equal" if self.strength_bias is None else "learned"
        return {**{name: getattr(self, name) for name in names}, "strengths": strengths}

    def extra_repr(self) -> str:
        """Shows the settings."""
        return ", ".join(f"{name}={value!r}" for name, value in self.settings().items())


def _checked_thresholds(thresholds: Tensor) -> Tensor:
    is_fit = isinstance(thresholds, Tensor) and thresholds.is_floating_point()
    if not is_fit or thresholds.dim() != 2 or not thresholds.isfinite().all():
        got = (
            list(thresholds.shape) if isinstance(thresholds, Tensor) else type(thresholds).__name__
        )
        raise ValueError(
            f"with_entropy_penalty: thresholds must be a tensor [L, H] of finite numbers, got {got}"
        )
    return thresholds


def _predicted(arguments: Mapping[str, Any]) -> Tensor:
    """How many predicted tokens a call's loss counts, 0-D."""
    targets = arguments.get("shift_labels")
    if targets is None:
        targets = arguments["labels"][..., 1:]
    count: Tensor = targets.ne(IGNORED).sum()
    return count


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
    names = ("lm_loss", "entropy_loss", "penalty_nats")
    fields = [(name, Tensor | None, None) for name in names]
    members = {"__reduce__": lambda output: (_rebuilt, (output_class, vars(output)))}
    return make_dataclass(output_class.__name__, fields, bases=(output_class,), namespace=members)


def _rebuilt(output_class: Any, values: dict[str, Any]) -> Any:
    """Outputs from pickle, which finds no class that lies in no module."""
    return _output_with_parts(output_class)(**values)
