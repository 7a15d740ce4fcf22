"""From any supported network to the network a label names, and back into the model it came from."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Literal, cast, overload

import torch
from torch import nn
from transformers import GPTNeoXForCausalLM, PreTrainedModel
from transformers.utils import output_capturing

from aero.architecture import ArchitectureSpec
from aero.conversion.attention_parts import (
    context_step,
    temperature_step,
    threshold_step,
    untying_step,
)
from aero.conversion.feed_forwards import (
    activation_step,
    fusing_step,
    normalizing_step,
    pruning_step_to,
    scaling_step,
)
from aero.conversion.folding import folding_step
from aero.conversion.layer_norms import layer_norm_steps
from aero.conversion.plan import ConversionPlan, Step, take_steps
from aero.models import AeroConfig, AeroForCausalLM
from aero.models.causal_lm import carry_over
from aero.models.foreign_networks import read_network
from aero.nn import Block, CausalSelfAttention, DropInBlock
from aero.nn.drop_in import Host

# Fields of AeroConfig about the training of a network, not about its outputs.
_TRAINING_FIELDS = (
    "entropy_weight", "entropy_tokens", "tolerance_margin", "max_entropy", "entropy_reduction",
    "entropy_strengths", "threshold_init", "temperature_init", "temperature_parametrization",
    "trainable_scales", "leaky_slope_init", "norm_statistics", "initializer_range",
    "embedding_dropout",
)  # fmt: skip
_SIZE_FIELDS = (
    "family", "num_layers", "num_heads", "head_dim", "width", "hidden_width", "context_length",
    "vocab_size", "tied_embeddings", "rotary_fraction", "parallel_residual",
)  # fmt: skip
_CHANGEABLE = ("context_length", "tied_embeddings", "final_norm")
_LINEAR = ("linear", "weight_norm", "spectral_norm")


@overload
def convert(
    model: nn.Module, label: str, *, inplace: bool = ..., dry_run: Literal[True], **options: Any
) -> ConversionPlan: ...
@overload
def convert(
    model: nn.Module,
    label: str,
    *,
    inplace: Literal[True],
    dry_run: Literal[False] = ...,
    **options: Any,
) -> nn.Module: ...
@overload
def convert(
    model: nn.Module,
    label: str,
    *,
    inplace: Literal[False] = ...,
    dry_run: Literal[False] = ...,
    **options: Any,
) -> AeroForCausalLM: ...
def convert(
    model: nn.Module, label: str, *, inplace: bool = False, dry_run: bool = False, **options: Any
) -> AeroForCausalLM | ConversionPlan | nn.Module:
    """The network of a label with the weights of a model.

    The steps are those of `aero.conversion`; which are exact is in the plan and, afterwards, in
    `config.conversion_steps`. After an inexact one the network wants retraining. Added parameters
    start neutral (alpha, beta and temperatures at 1), so adding them is exact.

    Args:
        model: a `GPT2LMHeadModel`, a `GPTNeoXForCausalLM` (Pythia), an `AeroForCausalLM` or a
            module tree with GPT-2's names such as nanoGPT's, random or trained.
        label: the network to make, such as ``"EReg(SM(t)+ScFuFFN_i6)"``. Sizes, residual scheme and
            positions are the model's.
        inplace: replace the blocks and the final norm within `model`, so that its own forward,
            `generate` and training script go on working. Embeddings and head change where a step
            changes them. A `transformers` model then computes attention as ``"aero"`` and gives row
            entropies for attention weights, so `aero.entropies` and `aero.with_entropy_penalty`
            serve it. Convert it once more, without `inplace`, to save it as an `AeroForCausalLM`.
        dry_run: return the plan and change nothing.
        **options: `context_length`, shorter than the model's; ``tied_embeddings=False``, which
            makes the head a matrix of its own; `final_norm`, ``"none"``, ``"layer"`` or
            ``"foldable"``, by default as it is where the label keeps the norms of the blocks, else
            of their kind; and fields of `AeroConfig` that say how a network is trained
            (`entropy_weight`, `temperature_init`, ...).

    Returns:
        A new `AeroForCausalLM`; `model` itself with ``inplace=True``; a `ConversionPlan` with
        ``dry_run=True``. Dropout outside attention is left out.

    Raises:
        ValueError: a model that cannot be converted, a label that cannot be reached from it, or an
            unknown option; the message names the alternative.

    Example:
        >>> from aero import convert
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> config = GPT2Config(n_layer=2, n_embd=32, n_head=2, n_positions=64, attn_pdrop=0.0)
        >>> model = GPT2LMHeadModel(config)
        >>> aero_model = convert(model, "EReg(SM(t)+ScFuFFN_i1)", entropy_weight=1e-4)
        >>> aero_model.config.spec.label
        'EReg(SM(t)+ScFuFFN_i1)'
        >>> [step.name for step in convert(model, "SM+LN+R", dry_run=True).steps]
        ['replace_activation']
    """
    if dry_run:
        is_ours = isinstance(model, AeroForCausalLM)
        config = carry_over(model).config if is_ours else read_network(model)[0]
        steps = plan_steps(config, label, **options)
        return ConversionPlan(type(model).__name__, config, tuple(steps))
    if inplace and not isinstance(model, AeroForCausalLM):
        for name in ("context_length", "tied_embeddings"):
            if options.get(name) is not None:
                raise ValueError(
                    f"convert: in place the embeddings stay the model's; leave out {name}, or "
                    "convert without inplace"
                )
    network = carry_over(model)
    config = _with_training_fields(network.config, options)
    steps = plan_steps(network.config, label, **options)
    converted = take_steps(network, steps, config=config)
    return replace_in_place(model, converted) if inplace else converted


def plan_steps(config: AeroConfig, label: str, **options: Any) -> list[Step]:
    """The steps from a network to a label; arguments as of `convert`."""
    target = _target(config.spec, label, options)
    config = _with_training_fields(config, options)
    if config.spec.temperature == "none" and "temperature_init" not in options:
        config.temperature_init = 1.0
    planner = _Planner(config)
    if target.context_length != config.spec.context_length:
        planner.add(context_step, target.context_length)
    if config.spec.tied_embeddings and not target.tied_embeddings:
        planner.add(untying_step)
    planner.plan_activation(target)
    planner.plan_norms(target)
    planner.plan_feed_forwards(target)
    if planner.spec.num_pruned_ffns != target.num_pruned_ffns:
        planner.add(pruning_step_to, target.num_pruned_ffns)
    if planner.spec.temperature != target.temperature:
        planner.add(temperature_step, target.temperature)
    if planner.spec.entropy_regularized != target.entropy_regularized:
        planner.add(threshold_step, target.entropy_regularized)
    return planner.steps


def _target(spec: ArchitectureSpec, label: str, options: dict[str, Any]) -> ArchitectureSpec:
    """The spec of the label at the network's sizes."""
    sizes = {name: getattr(spec, name) for name in _SIZE_FIELDS}
    changes = {name: options[name] for name in _CHANGEABLE if options.get(name) is not None}
    for name in options:
        if name in _CHANGEABLE or name in _TRAINING_FIELDS:
            continue
        if name in _SIZE_FIELDS:
            raise ValueError(
                f"convert: {name} is the model's, {getattr(spec, name)}, and cannot be "
                f"{options[name]!r}: weights of another size cannot be carried over; leave it out"
            )
        known = ", ".join((*_CHANGEABLE, *_TRAINING_FIELDS))
        raise ValueError(f"convert: there is no option {name!r}; there are {known}")
    if changes.get("tied_embeddings") and not spec.tied_embeddings:
        raise ValueError(
            "convert: tied_embeddings must be False or left out, since the model's head is a "
            "matrix of its own; tie the model (model.tie_weights()) and retrain it first"
        )
    named = _checked_label(spec, label)
    if named.norm == spec.norm:  # then the last norm is not the label's to change
        changes.setdefault("final_norm", spec.final_norm)
    return ArchitectureSpec.from_label(label, model="tiny", **{**sizes, **changes})


def _checked_label(spec: ArchitectureSpec, label: str) -> ArchitectureSpec:
    """The label's network at other sizes, if it can be reached at all."""
    try:
        named = ArchitectureSpec.from_label(label, model="tiny", num_layers=spec.num_layers)
    except ValueError as error:
        if "num_pruned_ffns" in str(error):
            raise ValueError(
                f"convert: {label} prunes more FFNs than the {spec.num_layers} layers of the model "
                f"have; end the label with _i{spec.num_layers} or less"
            ) from error
        raise
    if named.shaped_attention != spec.shaped_attention:
        raise ValueError(
            f"convert: {spec.label} cannot become {named.label}: shaped attention (SOTA labels) "
            "has other weights; train it again, AeroForCausalLM(AeroConfig.from_label(...))"
        )
    return named


def _with_training_fields(config: AeroConfig, options: dict[str, Any]) -> AeroConfig:
    fields = {name: options[name] for name in _TRAINING_FIELDS if name in options}
    AeroConfig(**fields)  # checks the values
    has_temperature = config.spec.temperature != "none"
    if has_temperature and "temperature_parametrization" in fields:
        raise ValueError(
            "convert: temperature_parametrization must be left out, since the model's temperatures "
            f"are stored as {config.temperature_parametrization!r}"
        )
    changed = copy.deepcopy(config)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


class _Planner:
    """Collects steps, each from the configuration that the one before left."""

    def __init__(self, config: AeroConfig) -> None:
        self.config = config
        self.steps: list[Step] = []

    @property
    def spec(self) -> ArchitectureSpec:
        return self.config.spec

    def add(self, make_steps: Callable[..., Step | list[Step]], *arguments: Any) -> None:
        made = make_steps(self.config, *arguments)
        self.steps += made if isinstance(made, list) else [made]
        self.config = self.steps[-1].config

    def plan_activation(self, target: ArchitectureSpec) -> None:
        if _activation(self.spec.ffn) != _activation(target.ffn):
            self.add(activation_step, _activation(target.ffn))

    def plan_norms(self, target: ArchitectureSpec) -> None:
        before = (self.spec.norm, self.spec.final_norm)
        after = (target.norm, target.final_norm)
        if before == after:
            return
        folds = [
            b.startswith("foldable") and a == "none" for b, a in zip(before, after, strict=True)
        ]
        keeps = [b == a for b, a in zip(before, after, strict=True)]
        if any(folds) and all(f or k for f, k in zip(folds, keeps, strict=True)):
            self.add(folding_step)
        elif all(
            b == a or (b == "layer" and not a.startswith("dynamic"))
            for b, a in zip(before, after, strict=True)
        ):
            self.add(layer_norm_steps, *after)
        if (self.spec.norm, self.spec.final_norm) != after:
            raise ValueError(
                f"convert: norms {before} of {self.spec.label} (in blocks, at the end) cannot "
                f"become {after}: a LayerNorm can be replaced or removed and a foldable norm "
                "folded, all of them, but none can be added, and DyT and Derf are trained from "
                "scratch; state final_norm=... to keep the last"
            )

    def plan_feed_forwards(self, target: ArchitectureSpec) -> None:
        if self.spec.ffn == target.ffn and self.spec.normalized_layers == target.normalized_layers:
            return
        for word in ("fused", "scaled"):
            if word in self.spec.ffn and word not in target.ffn:
                raise ValueError(
                    f"convert: {self.spec.label} cannot become {target.label}: its FFNs are "
                    f"{word}, which cannot be undone; keep that in the label, or start from an "
                    "earlier network"
                )
        if "fused" in target.ffn and "fused" not in self.spec.ffn:
            self.add(fusing_step)
        if "scaled" in target.ffn and "scaled" not in self.spec.ffn:
            self.add(scaling_step)
        if target.ffn in _LINEAR:
            self.add(normalizing_step, target.ffn, target.normalized_layers)


def _activation(ffn: str) -> str:
    has_activation = ffn in ("gelu", "relu", "leaky_relu_layer", "leaky_relu_global")
    return ffn if has_activation else "linear"


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
        if isinstance(model, PreTrainedModel):
            model.config.tie_word_embeddings = False
    for ours, theirs in (("wte", "embed_in" if is_neox else "wte"), ("wpe", "wpe")):
        embedding = getattr(converted.transformer, ours, None)
        if embedding is not None:
            getattr(tree, theirs).weight.copy_(embedding.weight)
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
