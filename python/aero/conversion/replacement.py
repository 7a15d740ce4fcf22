"""A converted network put into the model it came from."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from transformers import GPTNeoXForCausalLM, PreTrainedModel
from transformers.utils import output_capturing

from aero.models import AeroForCausalLM
from aero.nn import Block, CausalSelfAttention, DropInBlock
from aero.nn.drop_in import Host


@torch.no_grad()
def replace_in_place(model: nn.Module, converted: AeroForCausalLM) -> nn.Module:
    """Gives `model` the blocks, the final norm and the head of `converted`; returns `model`.

    Whole blocks are replaced, because a scaled or pruned feed-forward changes what a block adds to
    the stream. Embeddings stay the model's own.
    """
    if isinstance(model, AeroForCausalLM):
        for name in ("config", "transformer", "lm_head", "is_entropy_regularized"):
            setattr(model, name, getattr(converted, name))
        return model
    host: Any = model
    is_neox = isinstance(model, GPTNeoXForCausalLM)
    tree, name = (host.gpt_neox, "layers") if is_neox else (host.transformer, "h")
    kind: Host = (
        "gpt_neox" if is_neox else "gpt2" if isinstance(model, PreTrainedModel) else "nanogpt"
    )
    blocks = [_dropped_in(block, kind) for block in converted.transformer.blocks()]
    for block in blocks:  # one slope for the whole network
        if converted.transformer.negative_slope is not None and block.mlp is not None:
            block.mlp.negative_slope = converted.transformer.negative_slope
    setattr(tree, name, nn.ModuleList(blocks).train(model.training))
    final = nn.Identity() if converted.transformer.ln_f is None else converted.transformer.ln_f
    setattr(tree, "final_layer_norm" if is_neox else "ln_f", final.train(model.training))
    if not converted.config.spec.tied_embeddings:
        _output_layer(host).weight = converted.lm_head.weight
    host.aero_config = converted.config  # with it `carry_over` reads the model again
    if isinstance(model, PreTrainedModel):
        # Masks become boolean, as the operator wants them.
        model.set_attn_implementation("aero")
        _record_outputs(blocks)
    return model


def _dropped_in(block: Block, host: Host) -> DropInBlock:
    attention = cast(CausalSelfAttention, block.attn)
    return DropInBlock(
        attention, block.mlp, block.ln_1, block.ln_2, residual=block.residual, host=host
    )


def _output_layer(host: Any) -> Any:
    is_hugging_face = isinstance(host, PreTrainedModel)
    return host.get_output_embeddings() if is_hugging_face else host.lm_head


def _record_outputs(blocks: list[DropInBlock]) -> None:
    """Lets `outputs.attentions` (row entropies) and `outputs.hidden_states` find these modules.

    `transformers` hooks modules by their class, which ours do not have.
    """
    for block in blocks:
        output_capturing.install_output_capuring_hook(block.attn, "attentions", 1)
        output_capturing.install_output_capuring_hook(block, "hidden_states", 0)
