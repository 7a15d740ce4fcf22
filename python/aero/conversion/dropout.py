"""The dropout of a model's blocks, where a new network can have it and where it cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import GPTNeoXForCausalLM

from aero.nn import DropInBlock

# Where hosts drop what a block adds to the stream.
_RESIDUAL = ("attn.resid_dropout", "mlp.dropout", "post_attention_dropout", "post_mlp_dropout")


@dataclass(frozen=True)
class BlockDropout:
    """The shares that a block of a host drops in training.

    Attributes:
        residual: of what attention and feed-forward add to the stream, each share once.
        attention: of the attention weights.
        elsewhere: by the name of the module.
    """

    residual: frozenset[float]
    attention: float
    elsewhere: dict[str, float]

    @classmethod
    def of(cls, block: Any) -> BlockDropout:
        """What a block has."""
        if isinstance(block, DropInBlock):
            attention = getattr(block.attn, "attention_dropout", 0.0)
            return cls(frozenset({block.dropout}), attention, {})
        shares = {
            name: module.p
            for name, module in block.named_modules()
            if isinstance(module, nn.Dropout)
        }
        for name in ("attn.resid_dropout", "mlp.dropout"):  # a number where a function drops
            part, _, attribute = name.partition(".")
            number = getattr(getattr(block, part, None), attribute, None)
            if isinstance(number, float):
                shares[name] = number
        shares.pop("attn.attn_dropout", None)  # of the weights
        residual = frozenset(shares.pop(name) for name in _RESIDUAL if name in shares)
        elsewhere = {name: share for name, share in shares.items() if share > 0}
        return cls(residual, _attention_dropout(block), elsewhere)


def tree_and_blocks(model: Any) -> tuple[Any, str]:
    """The module that has the blocks of a host, and their name in it."""
    is_neox = isinstance(model, GPTNeoXForCausalLM)
    return (model.gpt_neox, "layers") if is_neox else (model.transformer, "h")


def carried_dropout(model: nn.Module) -> tuple[dict[str, float], dict[str, float]]:
    """The fields of `AeroConfig` with a host's dropout, and the shares that have no field.

    A network has one share for all its blocks, below 1, so that of hosts with several is left out.
    """
    tree, name = tree_and_blocks(model)
    blocks = [BlockDropout.of(block) for block in getattr(tree, name)]
    found = {
        "residual_dropout": {share for block in blocks for share in block.residual},
        "attention_dropout": {block.attention for block in blocks},
        "embedding_dropout": {
            float(getattr(tree, each).p)
            for each in ("drop", "emb_dropout")
            if isinstance(getattr(tree, each, None), nn.Dropout)
        },
    }
    fields, lost = {}, {}
    for field, shares in found.items():
        if len(shares) == 1 and max(shares) < 1:
            fields[field] = shares.pop()
        elif any(shares):
            lost[f"the {field.removesuffix('_dropout')}s of its blocks"] = max(shares)
    for index, block in enumerate(blocks):
        lost |= {f"{name}.{index}.{place}": share for place, share in block.elsewhere.items()}
    return fields, lost


def _attention_dropout(block: Any) -> float:
    """The share of the attention weights that a block of the host drops."""
    attention = getattr(block, "attn", getattr(block, "attention", None))
    for name in ("attn_dropout", "attention_dropout", "dropout"):
        share = getattr(attention, name, None)
        if share is not None:
            return float(getattr(share, "p", share))
    return 0.0
