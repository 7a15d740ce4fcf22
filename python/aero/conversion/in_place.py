"""Converted blocks put into the model that they came from, and how that model is saved."""

from __future__ import annotations

import copy
import copyreg
import functools
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import GPTNeoXForCausalLM, PreTrainedModel

from aero.architecture import ArchitectureSpec
from aero.conversion.dropout import BlockDropout, tree_and_blocks
from aero.conversion.parts import refuse_parts
from aero.models import AeroForCausalLM, without_entropy_penalty
from aero.models.converted_in_place import read_converted, read_penalty, take_own_weights
from aero.models.foreign_reader import unsupported
from aero.models.penalized_models import with_entropy_penalty
from aero.models.recorded_outputs import RecordedOutput, set_state
from aero.nn import Block, CausalSelfAttention, DropInBlock
from aero.nn.drop_in import Host, mark_activation


def check_in_place(
    model: nn.Module, label: str, options: Mapping[str, Any], *, has_penalty: bool
) -> None:
    """Refuses what cannot be done within a model, before anything is changed.

    Args:
        model: of any class but ours.
        label: what it becomes.
        options: of `aero.convert`.
        has_penalty: whether the label has it.
    """
    refuse_parts("convert in place", ArchitectureSpec.from_label(label, num_layers=4096))
    for name in ("context_length", "tied_embeddings"):
        if options.get(name) is not None:
            raise ValueError(
                f"convert: in place the embeddings stay the model's; leave out {name}, or "
                "convert without inplace"
            )
    for name in ("residual_dropout", "attention_dropout", "embedding_dropout"):
        if options.get(name) is not None:
            raise ValueError(
                f"convert: in place dropout stays the model's; leave out {name}, or convert "
                "without inplace"
            )
    if has_penalty and options.get("entropy_thresholds") == "shared":
        raise ValueError(
            f"convert: in place every layer of {type(model).__name__} has thresholds of its own; "
            "leave out entropy_thresholds, or convert without inplace"
        )
    if has_penalty and not isinstance(model, PreTrainedModel):
        raise ValueError(
            f"convert: the loss of {type(model).__name__} is its own, so the penalty of {label} "
            "would be in none; leave EReg out in place and add "
            "aero.models.EntropyPenalty(thresholds).term(entropies, predicted) to the loss, or "
            "convert without inplace"
        )
    if hasattr(model, "entropy_penalty") and not has_penalty:
        raise ValueError(
            f"convert: {type(model).__name__} has an entropy penalty, which {label} leaves out; "
            f"convert it to EReg({label}), or call "
            "aero.models.without_entropy_penalty(model) first"
        )


@torch.no_grad()
def replace_in_place(model: nn.Module, converted: AeroForCausalLM) -> nn.Module:
    """Gives `model` the blocks, the final norm and the head of `converted`; returns `model`.

    Whole blocks are replaced, because a scaled or pruned feed-forward changes what a block adds to
    the stream. Embeddings stay the model's own, with the values of `converted`.
    """
    if isinstance(model, AeroForCausalLM):
        kept = ("config", "transformer", "lm_head", "is_entropy_regularized", "strength_bias")
        for name in kept:
            setattr(model, name, getattr(converted, name))
        return model
    host: Any = model
    is_neox = isinstance(model, GPTNeoXForCausalLM)
    tree, name = tree_and_blocks(host)
    dropouts = [BlockDropout.of(block) for block in getattr(tree, name)]
    rates = [(_residual_dropout(model, each), each.attention) for each in dropouts]
    if hasattr(model, "entropy_penalty"):
        without_entropy_penalty(model)
    kind: Host = (
        "gpt_neox" if is_neox else "gpt2" if isinstance(model, PreTrainedModel) else "nanogpt"
    )
    blocks = [
        _dropped_in(block, kind, *shares)
        for block, shares in zip(converted.transformer.blocks(), rates, strict=True)
    ]
    slope = converted.transformer.negative_slope
    changes = converted.config.conversion_steps or []
    for block in blocks:
        if block.mlp is not None and slope is not None:  # one for the whole network
            block.mlp.negative_slope = slope
        if any(change.startswith("replace_activation") for change in changes):
            mark_activation(block)
    setattr(tree, name, nn.ModuleList(blocks).train(model.training))
    final = nn.Identity() if converted.transformer.ln_f is None else converted.transformer.ln_f
    setattr(tree, "final_layer_norm" if is_neox else "ln_f", final.train(model.training))
    if not converted.config.spec.tied_embeddings:
        _output_layer(host).weight = converted.lm_head.weight
        if isinstance(model, PreTrainedModel):
            model.config.tie_word_embeddings = False
    for ours, theirs in (("wte", "embed_in" if is_neox else "wte"), ("wpe", "wpe")):
        embedding = getattr(converted.transformer, ours, None)
        if embedding is not None:
            getattr(tree, theirs).weight.copy_(embedding.weight)
    is_first = not hasattr(host, "aero_config")
    host.aero_config = converted.config  # with it `carry_over` reads the model again
    if isinstance(model, PreTrainedModel):
        # Masks become boolean, as the operator wants them.
        model.set_attn_implementation("aero")
        _record_outputs(blocks)
        if is_first:
            host.register_load_state_dict_pre_hook(take_own_weights)
            host.__class__ = _converted_class(cast(Any, type(host)))
        if converted.is_entropy_regularized:
            _penalize(model, converted, blocks)
    return model


def _residual_dropout(model: nn.Module, dropout: BlockDropout) -> float:
    """The share that a block of the host drops of what it adds to the stream.

    Raises:
        ValueError: it drops elsewhere, or several shares.
    """
    for name, share in dropout.elsewhere.items():
        raise unsupported(
            model,
            f"has dropout {share} in {name} of its blocks, where a converted one has none",
            "set it to 0, or convert without inplace, which leaves dropout out there",
        )
    if len(dropout.residual) > 1:
        raise unsupported(
            model,
            f"has several dropouts in a block, {', '.join(map(str, sorted(dropout.residual)))}",
            "give resid_dropout of its attention and dropout of its mlp the same share",
        )
    return max(dropout.residual, default=0.0)


def _dropped_in(block: Block, host: Host, dropout: float, attention_dropout: float) -> DropInBlock:
    attention = cast(CausalSelfAttention, block.attn)
    if attention_dropout:
        attention.attention_dropout = attention_dropout
    return DropInBlock(
        attention,
        block.mlp,
        block.ln_1,
        block.ln_2,
        residual=block.residual,
        dropout=dropout,
        host=host,
    )


def _penalize(model: Any, converted: AeroForCausalLM, blocks: list[DropInBlock]) -> None:
    """Puts the penalty of `converted` into the model's loss; thresholds are learned there alone."""
    config = converted.config
    thresholds = torch.stack([cast(Tensor, block.attn.entropy_threshold) for block in blocks])
    for block in blocks:
        block.attn.entropy_threshold = None
    with_entropy_penalty(
        model,
        threshold=thresholds.float(),
        weight=config.entropy_weight,
        tokens=config.entropy_tokens,
        margin=config.tolerance_margin,
        reduction=config.entropy_reduction,
        max_entropy=config.max_entropy,
        context_length=config.spec.context_length,
        strengths=config.entropy_strengths,
    )
    if converted.strength_bias is not None:
        model.entropy_penalty.strength_bias.copy_(converted.strength_bias)


def _output_layer(host: Any) -> Any:
    is_hugging_face = isinstance(host, PreTrainedModel)
    return host.get_output_embeddings() if is_hugging_face else host.lm_head


class _ConvertedClass(type):
    """The class of such classes, by which they are pickled."""


@functools.cache
def _converted_class(model_class: type) -> type:
    """The same class, but saved as an `AeroForCausalLM`, which it computes."""

    @functools.wraps(cast(Any, model_class).save_pretrained)
    def save_pretrained(
        self: Any,
        save_directory: Any,
        is_main_process: bool = True,
        state_dict: dict[str, Tensor] | None = None,
        **options: Any,
    ) -> Any:
        network = _saved_network(self, state_dict)
        return network.save_pretrained(save_directory, is_main_process=is_main_process, **options)

    members = {
        "save_pretrained": save_pretrained,
        "__setstate__": set_state,
        "__module__": model_class.__module__,
    }
    return _ConvertedClass(model_class.__name__, (model_class,), members)


def _reduced(converted: type) -> Any:
    """How pickle finds such a class again; a class made from it is not found by its name."""
    if converted is not _converted_class(cast(type, converted.__base__)):
        return converted.__qualname__
    return _converted_class, (converted.__base__,)


copyreg.pickle(_ConvertedClass, _reduced)


def _saved_network(model: Any, state: dict[str, Tensor] | None) -> AeroForCausalLM:
    config, weights = read_penalty(model, *read_converted(model, state), state)
    with torch.device("meta"):  # the weights are the model's own
        network = AeroForCausalLM(config)
    network.load_state_dict(weights, assign=True)
    network.tie_weights()
    network.generation_config = copy.deepcopy(model.generation_config)
    return network


def _record_outputs(blocks: list[DropInBlock]) -> None:
    """Lets `outputs.attentions` (row entropies) and `outputs.hidden_states` find these modules.

    `transformers` hooks modules by their class, which ours do not have.
    """
    for block in blocks:
        block.attn.register_forward_hook(RecordedOutput(key="attentions", index=1))
        block.register_forward_hook(RecordedOutput(key="hidden_states", index=0))
