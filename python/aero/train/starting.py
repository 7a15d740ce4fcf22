"""The networks that a run does not begin from nothing with: its start and its teacher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from aero.architecture import ArchitectureSpec
from aero.conversion import convert
from aero.conversion.annealing import begin_annealing
from aero.models import AeroForCausalLM
from aero.reading import parse_json
from aero.train.distillation import Distillation
from aero.train.errors import TrainingError
from aero.train.loading import load_saved_network
from aero.train.origins import Origin
from aero.train.planning import PlannedRun
from aero.train.recipe import Recipe
from aero.train.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Settings that a label leaves open; a run that starts from a network has the network's.
_SIZES = (
    "family", "num_layers", "width", "num_heads", "head_dim", "hidden_width", "context_length",
    "vocab_size", "tied_embeddings", "rotary_fraction", "parallel_residual",
)  # fmt: skip


def training_fields(recipe: Recipe) -> dict[str, Any]:
    """The fields of `AeroConfig` that say how a network is trained."""
    regularization = recipe.regularization
    return {
        "entropy_weight": regularization.entropy_weight,
        # The predicted tokens of a step, all but the first of each window: over them lambda is the
        # weight of the sum itself.
        "entropy_tokens": recipe.windows_per_step * (recipe.model.context_length - 1),
        "tolerance_margin": regularization.margin,
        "max_entropy": regularization.max_entropy,
        "entropy_reduction": regularization.reduction,
        "entropy_strengths": regularization.head_strengths,
        "threshold_init": regularization.threshold_init,
        "trainable_scales": recipe.model.trainable_scales,
        "embedding_dropout": recipe.model.embedding_dropout,
    }


def starting_network(run: PlannedRun, **token_ids: int | None) -> AeroForCausalLM:
    """Returns the network of a planned run with the weights of its source.

    Args:
        run: with a source.
        **token_ids: `bos_token_id` and the like.

    Raises:
        TrainingError: the source cannot become the run's network, or has other sizes.
    """
    assert run.source is not None
    fields = training_fields(run.recipe)
    trained = load_network(run.source, "--from")
    try:
        # An AERO network of its own label: the steps that follow go from it.
        own: AeroForCausalLM = convert(trained, run.source.label or "SM+LN+G", **fields)
        _require_sizes(own.config.spec, run.spec, run.source)
        if _is_annealed(own.config.spec, run):
            network = begin_annealing(own, run.label, final_norm=run.spec.final_norm, **fields)
        else:
            network = convert(own, run.label, final_norm=run.spec.final_norm, **fields)
    except ValueError as error:
        raise TrainingError(f"train: --from {run.source.path}: {error}") from error
    for name, value in token_ids.items():
        setattr(network.config, name, value)
    return network


def _is_annealed(source: ArchitectureSpec, run: PlannedRun) -> bool:
    names = ("norm", "final_norm", "ffn", "num_pruned_ffns")
    differs = any(getattr(source, name) != getattr(run.spec, name) for name in names)
    return differs and run.recipe.annealing.schedule != "none"


def _require_sizes(source: ArchitectureSpec, wanted: ArchitectureSpec, origin: Origin) -> None:
    for name in _SIZES:
        there, here = getattr(source, name), getattr(wanted, name)
        if there != here:
            setting = "data.vocabulary" if name == "vocab_size" else f"model.{name}"
            raise TrainingError(
                f"train: --from {origin.path} has {name} {there}, the recipe {here}; "
                f"use the same: --set {setting}={str(there).lower()}, or the preset it has"
            )


def teacher_of(run: PlannedRun, device: torch.device) -> Distillation | None:
    """Returns the teacher of a planned run on a device; None without one.

    Raises:
        TrainingError: it cannot be loaded, or its vocabulary or context is smaller.
    """
    if run.teacher is None:
        return None
    teacher = load_network(run.teacher, "--distill-from").to(device)
    config: Any = teacher.config
    if config.vocab_size != run.spec.vocab_size:
        raise TrainingError(
            f"train: --distill-from {run.teacher.path} has {config.vocab_size:,} logits per token, "
            f"the network {run.spec.vocab_size:,}; use a teacher of the same vocabulary"
        )
    if config.max_position_embeddings < run.spec.context_length:
        raise TrainingError(
            f"train: --distill-from {run.teacher.path} sees {config.max_position_embeddings} "
            f"tokens, fewer than model.context_length = {run.spec.context_length}"
        )
    section = run.recipe.distillation
    return Distillation(teacher, temperature=section.temperature, weight=section.weight)


def load_network(origin: Origin, option: str) -> nn.Module:
    """Loads the network of an origin in float32.

    Args:
        origin: where it is.
        option: the option that the user gave, for errors.

    Raises:
        TrainingError: it is no causal language model that can be loaded.
    """
    try:
        return load_saved_network(origin.weights, as_it_is=True, dtype=torch.float32)
    except TrainingError as error:
        raise TrainingError(
            f"train: {option} {origin.path} is no causal language model: {error}"
        ) from error


def require_tokenizer(origin: Origin, tokenizer: PreTrainedTokenizerFast, option: str) -> None:
    """Checks that a network was trained with the tokenizer of the corpus.

    Args:
        origin: the network.
        tokenizer: of the corpus.
        option: the option with which the user named the network, for errors.

    Raises:
        TrainingError: it has another tokenizer, or none that could be compared.
    """
    if not (origin.tokenizer / "tokenizer.json").is_file():
        raise TrainingError(
            f"train: {option} {origin.path} has no tokenizer.json in {origin.tokenizer}, so "
            "nothing says that its tokens are those of the corpus; save its tokenizer there"
        )
    theirs = load_tokenizer(origin.tokenizer)
    if _rules(theirs) == _rules(tokenizer):
        return
    sizes = f"{len(theirs):,} tokens there, {len(tokenizer):,} here"
    raise TrainingError(
        f"train: {option} {origin.path} has another tokenizer than the corpus ({sizes}); train on "
        f"its own with --set data.tokenizer={origin.tokenizer} and data.vocabulary={len(theirs)}"
    )


def _rules(tokenizer: PreTrainedTokenizerFast) -> Any:
    """The parts of a tokenizer that decide the tokens of a text."""
    whole = parse_json(tokenizer.backend_tokenizer.to_str(), "tokenizer")
    return [whole[name] for name in ("added_tokens", "normalizer", "pre_tokenizer", "model")]
