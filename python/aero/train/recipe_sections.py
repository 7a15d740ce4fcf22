"""The sections of a recipe as frozen dataclasses, units in the names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "TOLERANCE_MARGINS",
    "AnnealingSection",
    "DataSection",
    "DistillationSection",
    "EvaluationSection",
    "LoggingSection",
    "ModelSection",
    "OptimizerSection",
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
        temperature_rate: the learning rate of temperatures over `learning_rate`.
        threshold_rate: the learning rate of the penalty's thresholds over `learning_rate`.
    """

    learning_rate: float = _setting(1e-3, above=0.0)
    beta1: float = _setting(0.9, at_least=0.0, at_most=1.0)
    beta2: float = _setting(0.999, at_least=0.0, at_most=1.0)
    epsilon: float = _setting(1e-8, above=0.0)
    weight_decay: float = _setting(0.1, at_least=0.0)
    clip_norm: float | None = _setting(1.0, above=0.0)
    temperature_rate: float = _setting(1.0, at_least=0.0)
    threshold_rate: float = _setting(1.0, at_least=0.0)


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
        penalty_schedule: lambda over the steps: `constant`, `falling` to 0 or `rising` from 0.
        tolerance_margin: gamma, as a share of the maximum entropy, or `listing` (0.10) or
            `authors_code` (0.20), the two published values.
        temperature_init: where every temperature starts.
        temperature_parametrization: `identity`, or `log` (cannot cross zero).
        threshold_init: where every head threshold starts, as a share of the maximum entropy.
        max_entropy: `log_context` (log T) or `log_visible` (log of the keys a row can see).
        reduction: `position_sum` or `query_mean`.
    """

    entropy_weight: float = _setting(1e-5, at_least=0.0)
    penalty_schedule: str = _setting("constant", choices=("constant", "falling", "rising"))
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
class AnnealingSection:
    """How a run that starts from a trained network (`--from`) becomes the network of its label.

    With a, which rises from 0 to 1 over a part of the steps, a LayerNorm becomes
    (1 - a) LN(x) + a FN(x) and a GELU (1 - a) gelu(x) + a x; see `aero.conversion.begin_annealing`.

    Attributes:
        schedule: how a rises: `linear` or `cosine` (slow at both ends); `none` cuts the parts out
            before the first step.
        start_fraction: share of the steps before a rises.
        end_fraction: share of the steps after which a is 1; the rest trains the network as it is
            at the end.
    """

    schedule: str = _setting("linear", choices=("none", "linear", "cosine"))
    start_fraction: float = _setting(0.0, at_least=0.0, at_most=1.0)
    end_fraction: float = _setting(0.3, above=0.0, at_most=1.0)


@dataclass(frozen=True)
class DistillationSection:
    """How a run learns from a teacher (`--distill-from`).

    The loss is (1 - weight) * cross entropy + weight * temperature^2 * KL(teacher || student), with
    both distributions softened by the temperature (Hinton et al., arXiv 1503.02531).

    Attributes:
        temperature: what logits of both are divided by.
        weight: share of the teacher; at 1 the text itself no longer counts.
    """

    temperature: float = _setting(2.0, above=0.0)
    weight: float = _setting(0.5, at_least=0.0, at_most=1.0)


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
