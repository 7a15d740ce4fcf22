"""Other people's networks as `AeroForCausalLM`."""

from __future__ import annotations

from torch import nn

from aero.models.causal_lm import AeroForCausalLM
from aero.models.foreign_networks import carried_over


def carry_over(model: nn.Module) -> AeroForCausalLM:
    """The same network as an `AeroForCausalLM`; one that is an `AeroForCausalLM` is itself.

    The carried network is compared with the model on a few tokens, so that a tree with GPT-2's
    names but another forward is refused, not misread.

    Args:
        model: a supported network; it is left unchanged. Dropout outside attention is left out.

    Returns:
        A new network with its own copy of the weights, in the device, dtype and mode of `model`.

    Raises:
        ValueError: a network of another kind, or with parts that AERO networks do not have; the
            message names it and the alternative.

    Example:
        >>> from aero.models.carrying_over import carry_over
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> config = GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=9, attn_pdrop=0.0)
        >>> carry_over(GPT2LMHeadModel(config)).config.spec.label
        'SM+LN+G'
    """
    return carried_over(model, AeroForCausalLM)
