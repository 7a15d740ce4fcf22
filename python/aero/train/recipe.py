"""What a training run does, as frozen dataclasses: one section per concern, units in the names.

The shipped values are in `recipes/*.yaml`; reading, merging and `--set` are in `recipe_files`.
Nothing here imports torch, so that a typing mistake is reported at once.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aero.train.errors import TrainingError

__all__ = [
    "TOLERANCE_MARGINS",
    "DataSection",
    "EvaluationSection",
    "LoggingSection",
    "ModelSection",
    "OptimizerSection",
    "Recipe",
    "RegularizationSection",
    "ScheduleSection",
    "TrainingSection",
]

# The two published tolerance margins: the paper's PyTorch listing and the authors' training script.
TOLERANCE_MARGINS = {"listing": 0.10, "authors_code": 0.20}


def _setting(
    default: Any,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    bounds = {"above": above, "at_least": at_least, "at_most": at_most, "choices": choices}
    return field(default=default, metadata=bounds)


@dataclass(frozen=True)
class DataSection:
    """Where the tokens come from.

    Attributes:
        source: `stdlib`, a folder, a .txt, .py or .jsonl file, or the name of a hub dataset; empty
            in a recipe without a corpus of its own.
        vocabulary: tokens in the byte-level BPE vocabulary.
        tokenizer: `train` trains one on the training split; else a folder or a hub name.
        tokenizer_bytes: at most this much training text is used to train the tokenizer.
        validation_fraction: share of the text, by file, held out for validation.
    """

    source: str = "stdlib"
    vocabulary: int = _setting(4096, at_least=257)
    tokenizer: str = "train"
    tokenizer_bytes: int = _setting(32_000_000, at_least=1)
    validation_fraction: float = _setting(0.05, above=0.0, at_most=0.5)


@dataclass(frozen=True)
class ModelSection:
    """The size of the network and how its weights start; None keeps what preset and label say.

    Attributes:
        preset: `gpt2`, `gpt2-18l`, `pythia-70m`, `mini` or `tiny`.
        context_length: T, tokens a window holds.
        num_layers: L.
        num_heads: H.
        head_dim: d_k.
        width: d.
        hidden_width: F.
        tied_embeddings: whether the head shares the embedding matrix.
        final_norm: `none`, `layer` or `foldable`.
        initializer_range: standard deviation of the weights; residual projections use
            initializer_range / sqrt(2 L).
        embedding_scale: `none`, or `sqrt_width` to multiply token embeddings by sqrt(d).
        trainable_scales: which scalars of a scaled FFN learn.
    """

    preset: str = "mini"
    context_length: int = _setting(128, at_least=2)
    num_layers: int | None = _setting(None, at_least=1)
    num_heads: int | None = _setting(None, at_least=1)
    head_dim: int | None = _setting(None, at_least=1)
    width: int | None = _setting(None, at_least=1)
    hidden_width: int | None = _setting(None, at_least=1)
    tied_embeddings: bool | None = None
    final_norm: str | None = _setting(None, choices=("none", "layer", "foldable"))
    initializer_range: float = _setting(0.02, above=0.0)
    embedding_scale: str = _setting("none", choices=("none", "sqrt_width"))
    trainable_scales: str = _setting("alpha+beta", choices=("alpha+beta", "alpha", "beta", "none"))


@dataclass(frozen=True)
class OptimizerSection:
    """AdamW; Adam is AdamW with `weight_decay: 0`.

    Attributes:
        learning_rate: at the end of the warm-up.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        epsilon: added to the denominator.
        weight_decay: decoupled; never on biases, norms, gains, temperatures, thresholds, alpha or
            beta.
        clip_norm: gradients are scaled down to this norm; None does not clip.
    """

    learning_rate: float = _setting(1e-3, above=0.0)
    beta1: float = _setting(0.9, at_least=0.0, at_most=1.0)
    beta2: float = _setting(0.999, at_least=0.0, at_most=1.0)
    epsilon: float = _setting(1e-8, above=0.0)
    weight_decay: float = _setting(0.1, at_least=0.0)
    clip_norm: float | None = _setting(1.0, above=0.0)


@dataclass(frozen=True)
class ScheduleSection:
    """The learning rate over the steps.

    Attributes:
        shape: `linear` falls to 0, `cosine` to `final_learning_rate`.
        warmup_fraction: share of the steps over which the rate rises from 0.
        warmup_steps: the same as a number of steps; wins over the fraction.
        final_learning_rate: where `cosine` ends.
    """

    shape: str = _setting("linear", choices=("linear", "cosine"))
    warmup_fraction: float = _setting(0.05, at_least=0.0, at_most=1.0)
    warmup_steps: int | None = _setting(None, at_least=0)
    final_learning_rate: float = _setting(0.0, at_least=0.0)


@dataclass(frozen=True)
class RegularizationSection:
    """Temperatures and the entropy penalty; used by the labels that have them.

    Attributes:
        entropy_weight: lambda. With `position_sum` the penalty is a sum over the windows of an
            optimizer step, so at k times the tokens per step lambda / k weighs the same.
        tolerance_margin: gamma, as a share of the maximum entropy, or `listing` (0.10) or
            `authors_code` (0.20), the two published values.
        temperature_init: where every temperature starts.
        temperature_parametrization: `identity`, or `log` (cannot cross zero).
        threshold_init: where every head threshold starts, as a share of the maximum entropy.
        max_entropy: `log_context` (log T) or `log_visible` (log of the keys a row can see).
        reduction: `position_sum` or `query_mean`.
    """

    entropy_weight: float = _setting(1e-5, at_least=0.0)
    tolerance_margin: float | str = 0.10
    temperature_init: float = _setting(1e-2, above=0.0)
    temperature_parametrization: str = _setting("identity", choices=("identity", "log"))
    threshold_init: float = 0.5
    max_entropy: str = _setting("log_context", choices=("log_context", "log_visible"))
    reduction: str = _setting("position_sum", choices=("position_sum", "query_mean"))

    @property
    def margin(self) -> float:
        """Gamma as a number."""
        value = self.tolerance_margin
        return TOLERANCE_MARGINS[value] if isinstance(value, str) else value


@dataclass(frozen=True)
class TrainingSection:
    """How long, in what portions, and what happens when something goes wrong.

    Attributes:
        tokens: the whole budget; the number of steps is tokens / tokens_per_step.
        tokens_per_step: over all processes and micro-batches; a multiple of the context length.
        micro_batch_tokens: the most that one process takes through the network at once; None is
            no limit.
        precision: `float32`, or `bfloat16` for autocast.
        nan_policy: what a non-finite loss or gradient does: `stop`, `skip` the step, or `continue`.
        checkpoint_every_steps: 0 saves none but the one at an interrupt.
        keep_checkpoints: older ones are deleted, except the last finite one.
        threads: CPU threads per process; None takes the available cores.
    """

    tokens: int = _setting(1_000_000, at_least=1)
    tokens_per_step: int = _setting(4096, at_least=1)
    micro_batch_tokens: int | None = _setting(None, at_least=1)
    precision: str = _setting("float32", choices=("float32", "bfloat16"))
    nan_policy: str = _setting("stop", choices=("stop", "skip", "continue"))
    checkpoint_every_steps: int = _setting(100, at_least=0)
    keep_checkpoints: int = _setting(2, at_least=1)
    threads: int | None = _setting(None, at_least=1)


@dataclass(frozen=True)
class EvaluationSection:
    """The validation loss during training, always in evaluation mode, on disjoint windows of T.

    Attributes:
        every_steps: 0 evaluates at the end only.
        tokens: validation tokens looked at each time, the same ones always.
        final_tokens: the same for the evaluation after the last step; None takes all.
        batch_tokens: tokens in one forward pass.
    """

    every_steps: int = _setting(50, at_least=0)
    tokens: int = _setting(32_768, at_least=1)
    final_tokens: int | None = _setting(None, at_least=1)
    batch_tokens: int = _setting(8192, at_least=1)


@dataclass(frozen=True)
class LoggingSection:
    """What is written down and how often.

    Attributes:
        every_steps: steps averaged in one line of `metrics.jsonl`.
        entropy_every_steps: steps between two records of all head entropies; 0 records none.
        entropy_windows: validation windows those entropies are averaged over.
        tensorboard: whether TensorBoard files are written too.
    """

    every_steps: int = _setting(10, at_least=1)
    entropy_every_steps: int = _setting(25, at_least=0)
    entropy_windows: int = _setting(8, at_least=1)
    tensorboard: bool = True


@dataclass(frozen=True)
class Recipe:
    """A whole recipe.

    Attributes:
        name: what it is called.
        data: corpus and tokenizer.
        model: size and start.
        optimizer: AdamW.
        schedule: learning rate over time.
        regularization: temperatures and entropy penalty.
        training: budget and portions.
        evaluation: validation.
        logging: records.
        per_label: settings of `regularization` that hold for one label only.

    Raises:
        TrainingError: a value has the wrong type or lies outside its range.

    Example:
        >>> recipe = Recipe(training=TrainingSection(tokens=100_000, tokens_per_step=4096))
        >>> recipe.steps, recipe.warmup_steps
        (24, 2)
    """

    name: str = "custom"
    data: DataSection = DataSection()
    model: ModelSection = ModelSection()
    optimizer: OptimizerSection = OptimizerSection()
    schedule: ScheduleSection = ScheduleSection()
    regularization: RegularizationSection = RegularizationSection()
    training: TrainingSection = TrainingSection()
    evaluation: EvaluationSection = EvaluationSection()
    logging: LoggingSection = LoggingSection()
    per_label: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for section in dataclasses.fields(self):
            value = getattr(self, section.name)
            if dataclasses.is_dataclass(value):
                _check_section(section.name, value)
        margin = self.regularization.tolerance_margin
        if isinstance(margin, str) and margin not in TOLERANCE_MARGINS:
            raise TrainingError(
                "train: regularization.tolerance_margin must be a number or one of "
                f"{', '.join(TOLERANCE_MARGINS)}, got {margin!r}"
            )
        tokens_per_step, context = self.training.tokens_per_step, self.model.context_length
        if tokens_per_step % context:
            raise TrainingError(
                "train: training.tokens_per_step must be a multiple of model.context_length = "
                f"{context}, got {tokens_per_step}"
            )

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        return max(1, self.training.tokens // self.training.tokens_per_step)

    @property
    def warmup_steps(self) -> int:
        """Steps over which the learning rate rises."""
        if self.schedule.warmup_steps is not None:
            return self.schedule.warmup_steps
        return math.ceil(self.schedule.warmup_fraction * self.steps)

    @property
    def windows_per_step(self) -> int:
        """Windows of T tokens in one optimizer step, over all processes."""
        return self.training.tokens_per_step // self.model.context_length

    def for_label(self, label: str) -> Recipe:
        """Returns the recipe with the settings of one label put in and `per_label` emptied.

        Args:
            label: the network's label; compared as written in the recipe, ignoring case.
        """
        changes: dict[str, Any] = {}
        for name, settings in self.per_label.items():
            if name.casefold() == label.casefold():
                changes.update(settings)
        regularization = dataclasses.replace(self.regularization, **changes)
        return dataclasses.replace(self, regularization=regularization, per_label={})


def _check_section(section: str, values: Any) -> None:
    hints = typing.get_type_hints(type(values))
    for entry in dataclasses.fields(values):
        value, key = getattr(values, entry.name), f"{section}.{entry.name}"
        if not _fits(value, hints[entry.name]):
            raise TrainingError(f"train: {key} must be {_words(hints[entry.name])}, got {value!r}")
        if value is not None:
            _check_bounds(key, value, entry.metadata)


def _check_bounds(key: str, value: Any, bounds: Mapping[str, Any]) -> None:
    if bounds.get("choices") and value not in bounds["choices"]:
        raise TrainingError(
            f"train: {key} must be one of {', '.join(bounds['choices'])}, got {value!r}"
        )
    tests: tuple[tuple[str, str, Callable[[Any, Any], bool]], ...] = (
        ("above", ">", operator.gt),
        ("at_least", ">=", operator.ge),
        ("at_most", "<=", operator.le),
    )
    for name, sign, holds in tests:
        bound = bounds.get(name)
        # A NaN fails every comparison, so it is refused here too.
        if bound is not None and not holds(value, bound):
            raise TrainingError(f"train: {key} must be {sign} {bound:g}, got {value!r}")


def _fits(value: Any, hint: Any) -> bool:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, tuple(kinds)) or (isinstance(value, int) and float in kinds)


def _words(hint: Any) -> str:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    names = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a word",
        types.NoneType: "null",
    }
    return " or ".join(names[kind] for kind in kinds)
