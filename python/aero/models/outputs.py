"""The outputs of the models."""

from __future__ import annotations

from dataclasses import dataclass, fields

from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

# transformers 5.24 renames the field. `past_key_values` still reads it there.
_NAMES = {field.name for field in fields(CausalLMOutputWithPast)}
CACHE_FIELD = "cache" if "cache" in _NAMES else "past_key_values"


@dataclass
class AeroModelOutput(BaseModelOutputWithPast):
    """What `AeroModel` returns.

    Attributes:
        last_hidden_state: [B, T, C], after the final norm where there is one.
        past_key_values: the cache, when one is used; `cache` from transformers 5.24 on.
        hidden_states: L + 1 tensors [B, T, C] on request: the embeddings and every layer's output,
            the last of them `last_hidden_state`.
        attentions: the entropies again, when ``output_attentions=True`` asks for them.
        entropies: L tensors [B, H, T], nats, float32.
        visible_keys: on request, L tensors [B, T], how many keys each row sees, 0 in rows of
            padding; None where all rows are causal and none is padding.
    """

    entropies: tuple[Tensor, ...] | None = None
    visible_keys: tuple[Tensor, ...] | None = None


@dataclass
class AeroCausalLMOutput(CausalLMOutputWithPast):
    """Holds what `AeroForCausalLM` returns.

    Attributes:
        loss: to be minimized, 0-D; in training ``lm_loss + penalty_nats``, in evaluation `lm_loss`.
        logits: [B, T, V].
        past_key_values: as in `AeroModelOutput`.
        hidden_states: as in `AeroModelOutput`.
        attentions: as in `AeroModelOutput`.
        lm_loss: cross entropy, nats per predicted token (summed and divided by
            `num_items_in_batch` where that is given), 0-D.
        entropy_loss: the penalty before its weight, squared nats, 0-D, divided by the same number
            as `lm_loss`: with ``"position_sum"`` the sum over `entropy_tokens` predicted tokens;
            None for networks without it.
        entropies: as in `AeroModelOutput`.
        penalty_nats: the weighted penalty as it joins the loss, nats per predicted token, 0-D.

    Example:
        >>> from aero.models.outputs import AeroCausalLMOutput
        >>> import torch
        >>> output = AeroCausalLMOutput(logits=torch.zeros(1, 3, 9))
        >>> output.to_tuple()[0].shape, output.entropy_loss is None
        (torch.Size([1, 3, 9]), True)
    """

    lm_loss: Tensor | None = None
    entropy_loss: Tensor | None = None
    entropies: tuple[Tensor, ...] | None = None
    penalty_nats: Tensor | None = None
