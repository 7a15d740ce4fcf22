"""The sections of a recipe as frozen dataclasses, units in the names.

Every number has bounds, every word of a kind its choices, where it is declared; `Recipe` checks
both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from aero.internals.errors import TrainingError
from aero.reading import shown

# The two published tolerance margins: the paper's PyTorch listing and the authors' training script.
TOLERANCE_MARGINS = {"listing": 0.10, "authors_code": 0.20}


@dataclass(frozen=True)
class Bounds:
    """A range of numbers with two ends; NaN and infinity lie in none.

    Attributes:
        least: its smallest number.
        most: its largest.
        above: whether `least` itself lies outside.
        below: whether `most` itself lies outside.
    """

    least: float
    most: float
    above: bool = False
    below: bool = False

    def complaint(self, value: float) -> str | None:
        """Returns the fault of a number in words; None if it lies inside."""
        # Every comparison with NaN fails.
        if not (value > self.least if self.above else value >= self.least):
            return f"must be {'>' if self.above else '>='} {_shown(self.least)}, got {shown(value)}"
        if not (value < self.most if self.below else value <= self.most):
            return f"must be {'<' if self.below else '<='} {_shown(self.most)}, got {shown(value)}"
        return None

    def check(self, name: str, value: float) -> None:
        """Raises `TrainingError`, which begins with a name, for a number that lies outside."""
        complaint = self.complaint(value)
        if complaint is not None:
            raise TrainingError(f"{name} {complaint}")


def _shown(bound: float) -> str:
    short = f"{bound:g}"
    return short if float(short) == bound else f"{bound:,}"


def _number(
    default: Any, unit: str, least: float, most: float, *, above: bool = False, below: bool = False
) -> Any:
    bounds = Bounds(least, most, above, below)
    return field(default=default, metadata={"unit": unit, "bounds": bounds})


def _word(default: Any, *choices: str) -> Any:
    return field(default=default, metadata={"choices": choices})


# Far more than anybody has trained on or for; a product of two still is a 64-bit integer.
_MOST_TOKENS = 10**15
_MOST_STEPS = 10**12
# Of a step or a batch, which must fit into memory.
_MOST_TOKENS_AT_ONCE = 10**10
# What may have gates, one or more at once.
_PARTS = ("heads", "ffns", "activation", "windows")
_GATED = [some for n in range(len(_PARTS)) for some in combinations(_PARTS, n + 1)]
# The values that ArchitectureSpec accepts.
_MOST_LAYERS, _MOST_HEADS, _MOST_WIDTH, _MOST_VOCABULARY = 4096, 1 << 16, 1 << 24, 1 << 28


@dataclass(frozen=True)
class DataSection:
    """The source of the tokens.

    Attributes:
        source: `stdlib`, a folder, a .txt, .py or .jsonl file, or the name of a hub dataset; empty
            in a recipe without a corpus of its own.
        vocabulary: tokens in the byte-level BPE vocabulary.
        tokenizer: `train` trains one on the training split; else a folder or a hub name.
        tokenizer_bytes: at most this much training text is used to train the tokenizer.
        validation_fraction: share of the text held out for validation.
        split_by: what is held out whole: a `document` (a file, a line of a .jsonl file), or a
            `folder`, the first below the source's, such as a package.
    """

    source: str = "stdlib"
    vocabulary: int = _number(4096, "tokens", 257, _MOST_VOCABULARY)
    tokenizer: str = "train"
    tokenizer_bytes: int = _number(32_000_000, "bytes", 1, 10**12)
    validation_fraction: float = _number(0.05, "share", 0.0, 0.5, above=True)
    split_by: str = _word("document", "document", "folder")


@dataclass(frozen=True)
class ModelSection:
    """The size of the network and how its weights start; null keeps the values of preset and label.

    Attributes:
        preset: the sizes by name: `gpt2`, `gpt2-18l`, `gpt2-medium`, `gpt2-large`, `gpt2-xl`,
            `pythia-70m` to `pythia-12b`, `mini` or `tiny`.
        context_length: T, the tokens of a window.
        num_layers: L, the layers of the network.
        num_heads: H, the heads of a layer.
        head_dim: d_k, the width of a head.
        width: d, the width of the stream.
        hidden_width: F, the inner width of an FFN of two layers.
        tied_embeddings: whether the head shares the embedding matrix.
        window: how many tokens a query sees, itself and those before it; 0: all.
        final_norm: the normalization before the head.
        initializer_range: standard deviation of weights, over sqrt(2 L) in residual projections.
        embedding_scale: the factor of the token embeddings: `none` for 1, `sqrt_width` for sqrt(d),
            or `unit` for 1 / initializer_range, which gives them the variance 1 that LayerNorm
            would.
        position_start: how learned positions start: as `weights` do, or as large as the scaled
            token `embeddings`. The factor itself is for tokens alone.
        embedding_dropout: share of the embedded stream that training drops.
        trainable_scales: which scalars of a scaled FFN learn.
    """

    preset: str = "mini"
    context_length: int = _number(128, "tokens", 2, 1 << 24)
    num_layers: int | None = _number(None, "layers", 1, _MOST_LAYERS)
    num_heads: int | None = _number(None, "heads", 1, _MOST_HEADS)
    head_dim: int | None = _number(None, "channels", 1, _MOST_WIDTH)
    width: int | None = _number(None, "channels", 1, _MOST_WIDTH)
    hidden_width: int | None = _number(None, "channels", 1, _MOST_WIDTH)
    tied_embeddings: bool | None = None
    window: int | None = _number(None, "tokens", 0, 1 << 24)
    final_norm: str | None = _word(None, "none", "layer", "foldable", "dynamic_tanh", "dynamic_erf")
    initializer_range: float = _number(0.02, "standard deviation", 0.0, 100.0, above=True)
    embedding_scale: str = _word("none", "none", "sqrt_width", "unit")
    position_start: str = _word("weights", "weights", "embeddings")
    embedding_dropout: float = _number(0.0, "share", 0.0, 1.0, below=True)
    trainable_scales: str = _word("alpha+beta", "alpha+beta", "alpha", "beta", "none")


@dataclass(frozen=True)
class OptimizerSection:
    """AdamW; Adam is AdamW with `weight_decay: 0`.

    Attributes:
        learning_rate: the rate at the end of the warm-up.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        epsilon: the number added to the denominator.
        weight_decay: decoupled weight decay; never on biases, norms, gains, temperatures,
            thresholds, alpha or beta.
        clip_norm: gradients are scaled down to this norm; null does not clip.
        temperature_rate: the learning rate of temperatures over `learning_rate`.
        threshold_rate: the learning rate of the penalty's thresholds over `learning_rate`.
    """

    learning_rate: float = _number(1e-3, "per step", 0.0, 1e6, above=True)
    beta1: float = _number(0.9, "factor per step", 0.0, 1.0, below=True)
    beta2: float = _number(0.999, "factor per step", 0.0, 1.0, below=True)
    epsilon: float = _number(1e-8, "gradient", 0.0, 1.0, above=True)
    weight_decay: float = _number(0.1, "factor of the learning rate", 0.0, 100.0)
    clip_norm: float | None = _number(1.0, "gradient norm", 0.0, 1e6, above=True)
    temperature_rate: float = _number(1.0, "factor", 0.0, 1e6)
    threshold_rate: float = _number(1.0, "factor", 0.0, 1e6)


@dataclass(frozen=True)
class ScheduleSection:
    """The learning rate over the steps.

    Attributes:
        shape: how the rate falls: `linear` falls to 0, `cosine` to `final_learning_rate`.
        warmup_fraction: share of the steps over which the rate rises from 0.
        warmup_steps: the warm-up as a number of steps; wins over the fraction.
        final_learning_rate: the rate at which `cosine` ends.
    """

    shape: str = _word("linear", "linear", "cosine")
    warmup_fraction: float = _number(0.05, "share of the steps", 0.0, 1.0)
    warmup_steps: int | None = _number(None, "steps", 0, _MOST_STEPS)
    final_learning_rate: float = _number(0.0, "per step", 0.0, 1e6)


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
        thresholds: of their own `layer`, or the first layer's, `shared` as in arXiv 2501.03489.
        threshold_init: where every head threshold starts, as a share of the maximum entropy.
        max_entropy: `log_context` (log T) or `log_visible` (log of the keys a row can see).
        reduction: `position_sum`, as the paper's listing, or `query_mean`, as its Algorithm 1.
        head_strengths: how strongly each head is held: `equal`, or `learned` strengths of mean 1.
    """

    entropy_weight: float = _number(1e-5, "loss per squared nat", 0.0, 1e6)
    penalty_schedule: str = _word("constant", "constant", "falling", "rising")
    tolerance_margin: float | str = _number(0.10, "share of the maximum entropy", 0.0, 1.0)
    temperature_init: float = _number(1e-2, "factor", 1e-30, 1e6)
    temperature_parametrization: str = _word("identity", "identity", "log")
    thresholds: str = _word("layer", "layer", "shared")
    threshold_init: float = _number(0.5, "share of the maximum entropy", 0.0, 1.0)
    max_entropy: str = _word("log_context", "log_context", "log_visible")
    reduction: str = _word("position_sum", "position_sum", "query_mean")
    head_strengths: str = _word("equal", "equal", "learned")

    @property
    def margin(self) -> float:
        """Gamma as a number."""
        value = self.tolerance_margin
        return TOLERANCE_MARGINS[value] if isinstance(value, str) else value


@dataclass(frozen=True)
class TrainingSection:
    """The length, the portions, and the answer to errors.

    Attributes:
        tokens: the budget of the whole run; the number of steps is tokens / tokens_per_step.
        tokens_per_step: tokens of a step over all processes and micro-batches; a multiple of the
            context length.
        micro_batch_tokens: the most that a process takes through the network at once; null: any.
        precision: `float32`, or autocast in `bfloat16`, or on a GPU in `float16` with loss scaling,
            which leaves out and counts steps that overflow. The last evaluation is in float32.
        nan_policy: after a non-finite loss or gradient: `stop`, `skip` the step, or `continue`.
        checkpoint_every_steps: steps between two checkpoints; 0 saves none but the one at an
            interrupt.
        keep_checkpoints: how many stay; older ones are deleted, except the last finite one; of a
            run under way two are kept at least, so that a damaged one has one before it.
        threads: CPU threads per process; null takes the available cores.
    """

    tokens: int = _number(1_000_000, "tokens", 1, _MOST_TOKENS)
    tokens_per_step: int = _number(4096, "tokens", 1, _MOST_TOKENS_AT_ONCE)
    micro_batch_tokens: int | None = _number(None, "tokens", 1, _MOST_TOKENS_AT_ONCE)
    precision: str = _word("float32", "float32", "bfloat16", "float16")
    nan_policy: str = _word("stop", "stop", "skip", "continue")
    checkpoint_every_steps: int = _number(100, "steps", 0, _MOST_STEPS)
    keep_checkpoints: int = _number(2, "checkpoints", 1, 10**6)
    threads: int | None = _number(None, "threads", 1, 4096)


@dataclass(frozen=True)
class AnnealingSection:
    """How a run that starts from a trained network (`--from`) becomes the network of its label.

    With a, which rises from 0 to 1 over a part of the steps, a LayerNorm becomes
    (1 - a) LN(x) + a FN(x) and a GELU (1 - a) gelu(x) + a x; see `aero.conversion.begin_annealing`.

    Attributes:
        schedule: the way a rises: `linear` or `cosine` (slow at both ends); `none` cuts the parts
            out before the first step.
        start_fraction: share of the steps before a rises.
        end_fraction: share of the steps after which a is 1; the rest trains the final network.
    """

    schedule: str = _word("linear", "none", "linear", "cosine")
    start_fraction: float = _number(0.0, "share of the steps", 0.0, 1.0)
    end_fraction: float = _number(0.3, "share of the steps", 0.0, 1.0, above=True)


@dataclass(frozen=True)
class SelectionSection:
    """How a run chooses parts of its network by their private bytes.

    Every part has a gate from 0 to 1, and the loss has byte_weight times the private bytes of what
    the gates keep, over those of the whole network, as Selective Network Linearization has its
    count of ReLUs (arXiv 2202.02340). At the end of the run the parts at 0 are gone: the run has
    the label and sizes of the network that is left.

    Attributes:
        byte_weight: of the private bytes of the whole network, in the loss; 0 chooses nothing.
        parts: what has gates: `heads` (those of one number in all layers together), `ffns` (each
            layer's own), the one `activation`, the `windows`, or some of them in this order.
        stack: the stack whose bytes count, as `aero cost` names them.
        gate_rate: the learning rate of gates over `learning_rate`.
        start_fraction: share of the steps before gates learn; they are 1 until then.
        end_fraction: share of the steps after which gates below a half are 0 and the others 1; the
            rest trains the network that is left.
    """

    byte_weight: float = _number(0.0, "nats per token", 0.0, 1e6)
    parts: str = _word("heads+ffns", *map("+".join, _GATED))
    stack: str = "spu-2024"
    gate_rate: float = _number(10.0, "factor", 0.0, 1e6)
    start_fraction: float = _number(0.2, "share of the steps", 0.0, 1.0)
    end_fraction: float = _number(0.5, "share of the steps", 0.0, 1.0, above=True)


@dataclass(frozen=True)
class DistillationSection:
    """How a run learns from a teacher (`--distill-from`).

    The loss is (1 - weight) * cross entropy + weight * temperature^2 * KL(teacher || student), with
    both distributions softened by the temperature (Hinton et al., arXiv 1503.02531).

    Attributes:
        temperature: the logits of both are divided by it.
        weight: share of the teacher; at 1 the text itself no longer counts.
    """

    temperature: float = _number(2.0, "factor", 0.0, 1e6, above=True)
    weight: float = _number(0.5, "share of the loss", 0.0, 1.0)


@dataclass(frozen=True)
class EvaluationSection:
    """The validation loss during training, always in evaluation mode, on disjoint windows of T.

    Attributes:
        every_steps: steps between two evaluations; 0 evaluates at the end only.
        tokens: validation tokens of each evaluation, always the same ones.
        final_tokens: validation tokens of the evaluation after the last step; null takes all.
        batch_tokens: tokens in one forward pass.
    """

    every_steps: int = _number(50, "steps", 0, _MOST_STEPS)
    tokens: int = _number(32_768, "tokens", 1, _MOST_TOKENS)
    final_tokens: int | None = _number(None, "tokens", 1, _MOST_TOKENS)
    batch_tokens: int = _number(8192, "tokens", 1, _MOST_TOKENS_AT_ONCE)


@dataclass(frozen=True)
class LoggingSection:
    """The records of a run and how often they are written.

    Attributes:
        every_steps: steps averaged in one line of `metrics.jsonl`.
        entropy_every_steps: steps between two records of all head entropies; 0 records none.
        entropy_windows: validation windows those entropies are averaged over.
        tensorboard: whether TensorBoard files are written too.
    """

    every_steps: int = _number(10, "steps", 1, _MOST_STEPS)
    entropy_every_steps: int = _number(25, "steps", 0, _MOST_STEPS)
    entropy_windows: int = _number(8, "windows", 1, 10**9)
    tensorboard: bool = True
