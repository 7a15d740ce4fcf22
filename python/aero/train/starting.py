"""The start of a run: what the Trainer is told, source, teacher, spread of the first scores.

With q and k weights of deviation w, inputs of deviation s, width C and temperature t, an element of
q or k has the deviation ``w s sqrt(C)``, so that a score ``q k / (sqrt(D) t)`` has
``C w^2 s^2 / t``, whatever D is. LayerNorm makes s = 1; embeddings of 0.02 on positions of 0.02
make s = 0.028, and scores 1,250 times as close.

Scores of deviation d << 1 lower the entropy of a row of n keys from ``log n`` to
``log n - d^2 / 2``: the deviation is read from entropies, which every network has.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from aero.architecture import ArchitectureSpec, size_names
from aero.internals.errors import TrainingError, extra
from aero.models import AeroForCausalLM
from aero.nn.linear import in_mode
from aero.reading import parse_json
from aero.saved.loading import load_saved_network
from aero.saved.tokenizer import load_tokenizer
from aero.train.distillation import Distillation
from aero.train.recipes.recipe import Recipe
from aero.train.runs.origins import Origin
from aero.train.runs.planning import PlannedRun

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

with extra("train"):
    from transformers import TrainingArguments


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
        "entropy_thresholds": regularization.thresholds,
        "threshold_init": regularization.threshold_init,
        "trainable_scales": recipe.model.trainable_scales,
        "embedding_dropout": recipe.model.embedding_dropout,
    }


def training_arguments(run: PlannedRun) -> TrainingArguments:
    """Returns the Trainer's part of a planned run; `RunCallback` writes the records.

    Raises:
        TrainingError: the windows of a step cannot be shared evenly among the processes, or
            float16 is asked for without a GPU.
    """
    recipe = run.recipe
    _require_gpu_for_float16(recipe)
    micro_batch, accumulation = batch_split(recipe, int(os.environ.get("WORLD_SIZE", "1")))
    on_gpu = torch.cuda.is_available()
    cosine = recipe.schedule.shape == "cosine"
    arguments = TrainingArguments(
        output_dir=str(run.folder.checkpoints),
        max_steps=recipe.steps,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=accumulation,
        optim="adamw_torch_fused",
        learning_rate=recipe.optimizer.learning_rate,
        adam_beta1=recipe.optimizer.beta1,
        adam_beta2=recipe.optimizer.beta2,
        adam_epsilon=recipe.optimizer.epsilon,
        weight_decay=recipe.optimizer.weight_decay,
        # 0 is the Trainer's word for no clipping.
        max_grad_norm=recipe.optimizer.clip_norm or 0.0,
        lr_scheduler_type="cosine_with_min_lr" if cosine else "linear",
        lr_scheduler_kwargs={"min_lr": recipe.schedule.final_learning_rate} if cosine else {},
        warmup_steps=recipe.warmup_steps,
        seed=run.seed,
        use_cpu=not on_gpu,
        bf16=recipe.training.precision == "bfloat16",
        fp16=recipe.training.precision == "float16",
        # RunCallback decides when to write, evaluate and save.
        logging_strategy="no",
        eval_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_nan_inf_filter=False,
        remove_unused_columns=False,
        dataloader_pin_memory=on_gpu,
        ddp_find_unused_parameters=False,
        log_level="error",
    )
    if recipe.training.precision == "float32":
        # Else the Trainer would autocast where ACCELERATE_MIXED_PRECISION says so.
        arguments.mixed_precision = "no"
    return arguments


def _require_gpu_for_float16(recipe: Recipe) -> None:
    """The Trainer scales losses on GPUs alone; elsewhere it would train in float32 unsaid."""
    if recipe.training.precision == "float16" and not torch.cuda.is_available():
        raise TrainingError(
            "train: training.precision must be float32 or bfloat16 on a machine without a GPU, "
            "got float16"
        )


def batch_split(recipe: Recipe, processes: int) -> tuple[int, int]:
    """Returns windows per micro-batch and process, and micro-batches per optimizer step.

    Raises:
        TrainingError: the windows of a step cannot be shared evenly.
    """
    windows = recipe.windows_per_step
    if windows % processes:
        raise TrainingError(
            f"train: training.tokens_per_step must be a multiple of {processes} processes x "
            f"{recipe.model.context_length} tokens, got {recipe.training.tokens_per_step}"
        )
    share = windows // processes
    limit = recipe.training.micro_batch_tokens
    most = share if limit is None else max(1, limit // recipe.model.context_length)
    micro_batch = max(size for size in range(1, min(share, most) + 1) if share % size == 0)
    return micro_batch, share // micro_batch


def starting_network(run: PlannedRun, **token_ids: int | None) -> AeroForCausalLM:
    """Returns the network of a planned run with the weights of its source.

    Raises:
        TrainingError: the source cannot become the run's network, or has other sizes.
    """
    # A training from nothing converts nothing, and does not load it.
    from aero.conversion import convert
    from aero.conversion.annealing import begin_annealing

    assert run.source is not None
    fields = training_fields(run.recipe)
    trained = load_network(run.source, "--from")
    if isinstance(trained, AeroForCausalLM) and trained.config.spec.entropy_regularized:
        del fields["threshold_init"]  # it has thresholds
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
        setattr(network.generation_config, name, value)
    return network


def _is_annealed(source: ArchitectureSpec, run: PlannedRun) -> bool:
    names = ("norm", "final_norm", "ffn", "num_pruned_ffns")
    differs = any(getattr(source, name) != getattr(run.spec, name) for name in names)
    return differs and run.recipe.annealing.schedule != "none"


def _require_sizes(source: ArchitectureSpec, wanted: ArchitectureSpec, origin: Origin) -> None:
    # A label leaves them open; a run that starts from a network has the network's. Those that
    # follow from others come last.
    for name in sorted(size_names(), key=lambda name: name in ("head_dim", "hidden_width")):
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


# Below it q and k weights must grow more than tenfold, 1 / sqrt(deviation), until scores differ by
# 1 and attention prefers one key to another. A step of Adam adds the learning rate at most.
DEGENERATE = 0.01


def score_deviations(model: AeroForCausalLM, ids: Tensor) -> list[float]:
    """Returns the deviation of the scores of each layer, read from row entropies.

    The network computes as in a training step, since foldable norms have no running statistics
    before it. Weights, statistics, mode and random state stay as they are.

    Args:
        model: the network.
        ids: [B, T] tokens, T > 1.

    Returns:
        L values, root mean squares over windows, heads and rows. An estimate below 1, a lower bound
        above; float32 entropies tell nothing below 0.001. NaN where a network gives NaN.
    """
    before = [buffer.clone() for buffer in model.buffers()]
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.no_grad(), in_mode(model, training=True):
        try:
            layers = model.transformer(input_ids=ids, use_cache=False).entropies
        finally:
            for buffer, value in zip(model.buffers(), before, strict=True):
                buffer.copy_(value)
    largest = torch.arange(2, ids.shape[1] + 1, device=ids.device, dtype=torch.float64).log()
    gaps = [float((largest - layer[..., 1:].double()).mean()) for layer in layers]
    return [math.sqrt(max(2 * gap, 0.0)) for gap in gaps]


def first_scores_warning(model: AeroForCausalLM, deviations: list[float]) -> str | None:
    """Returns a sentence on degenerate first scores and the setting that mends them, or None."""
    config, spec = model.config, model.config.spec
    close = [deviation for deviation in deviations if deviation < DEGENERATE]
    # Shaped attention starts uniform on purpose: its heads start as the identity.
    if not close or spec.shaped_attention:
        return None
    weights, stream = config.initializer_range, config.embedding_scale * config.initializer_range
    temperature = config.temperature_init if spec.temperature != "none" else 1.0
    expected = spec.width * weights**2 / temperature  # with inputs of deviation 1
    # DyT and Derf keep a small stream small, and of one of deviation 1 only a fifth of its square.
    dynamic = spec.norm.startswith("dynamic")
    if (spec.norm == "none" and expected >= DEGENERATE) or (dynamic and stream < 0.99):
        cause = f"no norm enlarges embeddings of deviation {stream:.2g}"
        setting = "model.embedding_scale=unit"
    elif expected * temperature >= DEGENERATE and not (dynamic and temperature <= 1):
        cause = f"temperatures start at {temperature:g}"
        setting = "regularization.temperature_init=1"
    else:
        cause = f"weights start at a deviation of {weights:g}"
        setting = f"model.initializer_range={1 / math.sqrt(spec.width):.2g}"
    return (
        f"attention starts uniform and learns late: scores of deviation {_shown(min(close))}, "
        f"below {DEGENERATE}, because {cause}; --set {setting} mends it"
    )


def _shown(deviation: float) -> str:
    return f"{deviation:.2g}" if deviation >= 0.001 else "under 0.001"
