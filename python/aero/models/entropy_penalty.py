"""The entropy penalty in the loss of models as `transformers` ships them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import make_dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from aero import ops
from aero.models.causal_lm import AeroForCausalLM
from aero.models.loss import IGNORED
from aero.models.row_entropies import entropies
from aero.ops.entropy_regularization import MaxEntropy, Reduction

_ATTRIBUTE = "entropy_penalty"


class EntropyPenalty(nn.Module):
    """Penalty on the attention entropies of a model, `aero.ops.entropy_regularization`.

    Args:
        thresholds: [L, H], where they start, as fractions of the maximal entropy.
        weight: lambda, of the penalty in the loss.
        margin: gamma, half width of the band without penalty, a fraction of the maximum.
        reduction: ``"position_sum"`` or ``"query_mean"``.
        max_entropy: ``"log_context"`` or ``"log_visible"``.
        context_length: of ``"log_context"``; None for the length of each batch.

    Attributes:
        threshold_bias: the thresholds, [L, H], learned. `Trainer` spares parameters with "bias" in
            their names from weight decay, which would pull thresholds to zero.
    """

    def __init__(
        self,
        thresholds: Tensor,
        *,
        weight: float = 1e-5,
        margin: float = 0.1,
        reduction: Reduction = "position_sum",
        max_entropy: MaxEntropy = "log_context",
        context_length: int | None = None,
    ) -> None:
        super().__init__()
        if not weight >= 0:
            raise ValueError(f"with_entropy_penalty: weight must be a number from 0, got {weight}")
        if reduction not in ("position_sum", "query_mean"):
            raise ValueError(
                "with_entropy_penalty: reduction must be 'position_sum' or 'query_mean', got "
                f"{reduction!r}"
            )
        if max_entropy not in ("log_context", "log_visible"):
            raise ValueError(
                "with_entropy_penalty: max_entropy must be 'log_context' or 'log_visible', got "
                f"{max_entropy!r}"
            )
        self.threshold_bias = nn.Parameter(thresholds.clone())
        self.weight = weight
        self.margin = margin
        self.reduction: Reduction = reduction
        self.max_entropy: MaxEntropy = max_entropy
        self.context_length = context_length

    def forward(self, layers: tuple[Tensor, ...], attention_mask: Tensor | None = None) -> Tensor:
        """Returns the penalty before its weight, 0-D.

        Args:
            layers: L tensors [B, H, T], nats.
            attention_mask: [B, T], 0 for padding, whose rows do not count.
        """
        row_mask = visible_keys = None
        if attention_mask is not None and attention_mask.dim() == 2:
            row_mask = attention_mask.bool()
            visible_keys = attention_mask.long().cumsum(dim=-1)
        by_context = self.max_entropy == "log_context"
        return ops.entropy_regularization(
            layers,
            self.threshold_bias,
            margin=self.margin,
            max_entropy=self.max_entropy,
            visible_keys=None if by_context else visible_keys,
            row_mask=row_mask,
            context_length=self.context_length if by_context else None,
            reduction=self.reduction,
        )

    def join(self, outputs: Any, arguments: Mapping[str, Any]) -> Any:
        """Adds the weighted penalty to ``outputs.loss`` and stores it as ``entropy_loss``.

        As in `AeroForCausalLM`, a sum over positions enters an optimizer step with weight 1, and a
        mean with this call's share of the step's predicted tokens.

        Args:
            outputs: of a training call with entropies for attentions.
            arguments: of that call, by name.
        """
        layers = getattr(outputs, "attentions", None)
        if not layers or any(layer is None or layer.dim() != 3 for layer in layers):
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
        penalty = self(layers, arguments.get("attention_mask"))
        loss = outputs.loss + self.weight * _share(self.reduction, arguments) * penalty
        output_class: Any = type(outputs)
        joined = _output_with_entropy_loss(output_class)
        return joined(**{**outputs, "loss": loss, "entropy_loss": penalty})

    def extra_repr(self) -> str:
        """The settings."""
        return f"weight={self.weight}, margin={self.margin}, reduction={self.reduction!r}"


def with_entropy_penalty(
    model: nn.Module, *, threshold: float | Tensor = 0.5, **settings: Any
) -> Any:
    """Lets a `transformers` model train with the entropy penalty; one line in any script.

    The model itself is changed and returned. In training its `loss` has the weighted penalty in it
    and `entropy_loss` is the penalty; in evaluation nothing differs. Gradients are identical for
    every split of an optimizer step over micro-batches and processes, as `Trainer` makes them: with
    ``"position_sum"`` always, with ``"query_mean"`` for equal numbers of labels. Thresholds are
    learned and saved with the model as ``entropy_penalty.threshold_bias``, [L, H]; what the model
    computes does not depend on them.

    Args:
        model: a decoder with a language-model head as for `aero.entropies`, without attention
            dropout. Networks of `AeroForCausalLM` bring their own penalty: ``"EReg(...)"``.
        threshold: start of the thresholds, a fraction of the maximal entropy or [L, H] of them.
        **settings: of the penalty, as in `EntropyPenalty`.

    Returns:
        The model.

    Raises:
        ValueError: the model has attention dropout, gives no entropies, is one of ours, or has the
            penalty already, with what to do instead.

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> config = GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=9, attn_pdrop=0.0)
        >>> model = with_entropy_penalty(GPT2LMHeadModel(config), weight=1e-4).train()
        >>> tokens = torch.tensor([[1, 2, 3, 4]])
        >>> output = model(tokens, labels=tokens)
        >>> output.loss.dim(), output.entropy_loss.dim(), model.entropy_penalty.threshold_bias.shape
        (0, 0, torch.Size([2, 2]))
    """
    if isinstance(model, AeroForCausalLM):
        raise ValueError(
            "with_entropy_penalty: an AeroForCausalLM has its own penalty; give it a label such as "
            "'EReg(SM+LN+G)' and set entropy_weight in its configuration"
        )
    if hasattr(model, _ATTRIBUTE):
        raise ValueError(
            "with_entropy_penalty: the model has a penalty; take it away with "
            "aero.models.without_entropy_penalty first"
        )
    _refuse_attention_dropout(model)
    changed = cast(Any, model)
    # One token through the network says whether it gives entropies, of how many layers and heads.
    found = entropies(model, torch.zeros(1, 1, dtype=torch.long)).layers
    shape = (len(found), found[0].shape[1])
    start = torch.as_tensor(threshold, dtype=torch.float32).expand(shape)
    penalty = EntropyPenalty(start.to(found[0].device), **settings)
    changed.set_attn_implementation("aero_entropy")
    changed.entropy_penalty = penalty
    changed.__class__ = _penalized(changed.__class__)
    return changed


def without_entropy_penalty(model: nn.Module) -> Any:
    """Undoes `with_entropy_penalty`, such as before saving; the attention stays `aero_entropy`.

    Args:
        model: a model with the penalty; it is changed and returned.

    Raises:
        ValueError: it has none.

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> from aero.models import with_entropy_penalty, without_entropy_penalty
        >>> config = GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=9, attn_pdrop=0.0)
        >>> model = GPT2LMHeadModel(config)
        >>> names = set(model.state_dict())
        >>> len(set(with_entropy_penalty(model).state_dict()) - names)
        1
        >>> set(without_entropy_penalty(model).state_dict()) == names
        True
    """
    if not hasattr(model, _ATTRIBUTE):
        raise ValueError(f"without_entropy_penalty: {type(model).__name__} has no entropy penalty")
    delattr(model, _ATTRIBUTE)
    model.__class__ = type(model).__bases__[0]
    return model


def _refuse_attention_dropout(model: nn.Module) -> None:
    for path, module in model.named_modules():
        for name in ("attn_dropout", "attention_dropout"):
            dropout = getattr(module, name, 0)
            share = dropout.p if isinstance(dropout, nn.Dropout) else dropout
            if isinstance(share, float) and share > 0:
                raise ValueError(
                    f"with_entropy_penalty: {path}.{name} is {share}, and the operator never forms "
                    "the attention weights it would drop; load the model with attn_pdrop=0.0 "
                    "(GPT-2) or attention_dropout=0.0 (others)"
                )


@functools.cache
def _penalized(model_class: Any) -> type:
    """The same class with the penalty in the loss.

    A class rather than hooks on the model: adapters such as those of PEFT call `forward` itself.
    """
    plain = model_class.forward
    names = tuple(inspect.signature(plain).parameters)[1:]

    @functools.wraps(plain)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.training:
            return plain(self, *args, **kwargs)
        arguments = {**dict(zip(names, args, strict=False)), **kwargs, "output_attentions": True}
        return self.entropy_penalty.join(plain(self, **arguments), arguments)

    # Name and module stay: they go into config.json and say where the source is.
    members = {"forward": forward, "__module__": model_class.__module__}
    return type(model_class.__name__, (model_class,), members)


@functools.cache
def _output_with_entropy_loss(output_class: Any) -> Any:
    # A field, not only a key: data parallelism takes outputs apart and builds them anew.
    field = ("entropy_loss", Tensor | None, None)
    return make_dataclass(output_class.__name__, [field], bases=(output_class,))


def _share(reduction: Reduction, arguments: Mapping[str, Any]) -> float | Tensor:
    """This call's share of the optimizer step, for penalties that are means."""
    predicted = arguments.get("num_items_in_batch")
    if predicted is None or reduction == "position_sum":
        return 1.0
    targets = arguments.get("shift_labels")
    if targets is None:
        targets = arguments["labels"][..., 1:]
    share: Tensor = targets.ne(IGNORED).sum() / predicted
    return share
