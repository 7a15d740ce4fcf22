"""Turns any supported network into the network that a label names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, overload

from torch import nn

from aero.architecture import ArchitectureSpec
from aero.conversion.attention_parts import (
    context_step,
    temperature_step,
    threshold_step,
    untying_step,
)
from aero.conversion.dropout import carried_dropout
from aero.conversion.feed_forwards import (
    activation_step,
    fusing_step,
    normalizing_step,
    pruning_step_to,
    scaling_step,
)
from aero.conversion.folding import folding_step
from aero.conversion.in_place import check_in_place, replace_in_place
from aero.conversion.layer_norms import layer_norm_steps
from aero.conversion.parts import SIZE_FIELDS, adding_steps
from aero.conversion.plan import ConversionPlan, Step, as_new_network, take_steps
from aero.conversion.training_fields import TRAINING_FIELDS, with_training_fields
from aero.models import AeroConfig, AeroForCausalLM
from aero.models.causal_lm import carry_over
from aero.models.foreign_networks import read_network
from aero.models.foreign_reader import check_finite

_CHANGEABLE = ("context_length", "tied_embeddings", "final_norm")
_LINEAR = ("linear", "weight_norm", "spectral_norm")
# Of any network: none of a label has more pruned FFNs.
_MOST_LAYERS = 4096


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
    """Returns the network of a label with the weights of a model.

    The steps are those of `aero.conversion`; which are exact is in the plan and, afterwards, in
    `config.conversion_steps`. After an inexact one the network wants retraining. Added parameters
    start neutral (alpha, beta and temperatures at 1), so adding them is exact.

    Args:
        model: a `GPT2LMHeadModel`, a `GPTNeoXForCausalLM` (Pythia), an `AeroForCausalLM` or a
            module tree with GPT-2's names such as nanoGPT's, random or trained.
        label: the network to make, such as ``"EReg(SM(t)+ScFuFFN_i6)"``. Sizes, residual scheme and
            positions are the model's.
        inplace: replace the blocks and the final norm within `model`, so that its own forward,
            `generate` and training script go on working, dropout included. Embeddings and
            head change where a step changes them. A `transformers` model then gives row entropies
            for attention weights, has the penalty of ``EReg(...)`` in its loss as by
            `aero.with_entropy_penalty`, and is saved as the `AeroForCausalLM` that it computes.
        dry_run: return the plan and change nothing.
        **options: `context_length`, shorter than the model's; ``tied_embeddings=False``, which
            makes the head a matrix of its own; `final_norm`, ``"none"``, ``"layer"`` or
            ``"foldable"``, by default as it is where the label keeps the norms of the blocks, else
            of their kind; and fields of `AeroConfig` that say how a network is trained
            (`entropy_weight`, `temperature_init`, ...).

    Returns:
        A new `AeroForCausalLM` with the dropout of `model`, and a warning where it cannot have it;
        `model` itself with ``inplace=True``; a `ConversionPlan` with ``dry_run=True``.

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
        for name, share in ({} if is_ours else carried_dropout(model)[0]).items():
            setattr(config, name, share)
        steps = plan_steps(config, label, **options)
        return ConversionPlan(type(model).__name__, config, tuple(steps))
    network = carry_over(model) if inplace else as_new_network(model)
    check_finite(network)
    config = with_training_fields("convert", network.config, options)
    steps = plan_steps(network.config, label, **options)
    if inplace and not isinstance(model, AeroForCausalLM):
        has_penalty = (steps[-1].config if steps else config).spec.entropy_regularized
        check_in_place(model, label, options, has_penalty=has_penalty)
    converted = take_steps(network, steps, config=config)
    return replace_in_place(model, converted) if inplace else converted


def plan_steps(config: AeroConfig, label: str, **options: Any) -> list[Step]:
    """The steps from a network to a label; arguments as of `convert`."""
    target = _target(config.spec, label, options)
    config = with_training_fields("convert", config, options)
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
    planner.add(adding_steps, target)
    if planner.spec.num_pruned_ffns != target.num_pruned_ffns:
        planner.add(pruning_step_to, target.num_pruned_ffns)
    if planner.spec.temperature != target.temperature:
        planner.add(temperature_step, target.temperature)
    if planner.spec.entropy_regularized != target.entropy_regularized:
        planner.add(threshold_step, target.entropy_regularized)
    return planner.steps


def _target(spec: ArchitectureSpec, label: str, options: dict[str, Any]) -> ArchitectureSpec:
    """The spec of the label at the network's sizes."""
    sizes = {name: getattr(spec, name) for name in SIZE_FIELDS}
    changes = {name: options[name] for name in _CHANGEABLE if options.get(name) is not None}
    for name in options:
        if name in _CHANGEABLE or name in TRAINING_FIELDS:
            continue
        if name in SIZE_FIELDS:
            raise ValueError(
                f"convert: {name} is the model's, {getattr(spec, name)}, and cannot be "
                f"{options[name]!r}: weights of another size cannot be carried over; leave it out"
            )
        known = ", ".join((*_CHANGEABLE, *TRAINING_FIELDS))
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
    deepest = ArchitectureSpec.from_label(label, model="tiny", num_layers=_MOST_LAYERS)
    if deepest.num_pruned_ffns > spec.num_layers:
        raise ValueError(
            f"convert: {label} prunes more FFNs than the {spec.num_layers} layers of the model "
            f"have; end the label with _i{spec.num_layers} or less"
        )
    named = deepest.replace(num_layers=spec.num_layers)
    if named.shaped_attention != spec.shaped_attention:
        raise ValueError(
            f"convert: {spec.label} cannot become {named.label}: shaped attention (SOTA labels) "
            "has other weights; train it again, AeroForCausalLM(AeroConfig.from_label(...))"
        )
    return named


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
        if self.steps:
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
