"""A trained network's perplexity in the arithmetic of private inference: `fixed_point.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from aero.fixed_point import Approximations
from aero.internals.errors import TrainingError
from aero.models import AeroForCausalLM, FixedPointForCausalLM
from aero.models.outputs import AeroCausalLMOutput
from aero.train.data.windows import validation_windows
from aero.train.runs.perplexity import HeldOutLoss, measure_loss, rank_and_world
from aero.train.runs.run_folder import RunFolder
from aero.train.runs.run_results import open_run, settings_of


@dataclass(frozen=True)
class FixedPointEvaluation:
    """A network in fixed point against itself in floating point, on the same windows.

    Attributes:
        stack: the name of the stack.
        approximations: its arithmetic.
        exact: the loss in floating point.
        fixed_point: the loss in fixed point.
        largest_logit_difference: over all positions and tokens of the vocabulary.
        mean_logit_difference: mean of the absolute differences.
        changed_predictions: fraction of positions whose most likely token is another one.
        fields: those of the stack that were changed.
    """

    stack: str
    approximations: Approximations
    exact: HeldOutLoss
    fixed_point: HeldOutLoss
    largest_logit_difference: float
    mean_logit_difference: float
    changed_predictions: float
    fields: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """The content of `fixed_point.json`."""
        return {
            "stack": self.stack,
            "approximations": asdict(self.approximations),
            "perplexity": self.fixed_point.perplexity,
            "exact_perplexity": self.exact.perplexity,
            "loss": self.fixed_point.loss,
            "exact_loss": self.exact.loss,
            "largest_logit_difference": self.largest_logit_difference,
            "mean_logit_difference": self.mean_logit_difference,
            "changed_predictions": self.changed_predictions,
            "tokens": self.exact.tokens,
        }

    def to_text(self) -> str:
        """One line for the terminal."""
        fields = "".join(f", {name}={value}" for name, value in self.fields.items())
        return (
            f"perplexity {self.fixed_point.perplexity:.3f} under {self.stack}{fields}, "
            f"{self.exact.perplexity:.3f} in floating point; largest logit difference "
            f"{self.largest_logit_difference:.2g}, mean {self.mean_logit_difference:.2g}; "
            f"{self.changed_predictions:.2%} of the predictions change, "
            f"on {self.exact.tokens:,} tokens"
        )


def evaluate_run_in_fixed_point(
    path: str | Path,
    stack: str,
    fields: Mapping[str, Any] | None = None,
    *,
    max_tokens: int | None = None,
    stride: int | None = None,
    show_progress: bool = True,
) -> FixedPointEvaluation:
    """Evaluates a finished run's network in a stack's arithmetic and writes `fixed_point.json`.

    About a thousand tokens a second on one core for the demo's networks.

    Args:
        path: the run folder.
        stack: a stack of `aero.mpc`, such as "spu-2024", or the path of a description.
        fields: changed ones of the stack, see `Approximations.of_stack`.
        max_tokens: at most this many validation tokens; None takes as many as the run's
            `evaluation.final_tokens`.
        stride: None for disjoint windows, else the distance between overlapping ones.
        show_progress: whether to draw a bar.

    Raises:
        TrainingError: no finished run, its corpus is gone, an unknown stack or field, or a
            process group of several processes, which would share the windows.
    """
    _, processes = rank_and_world()
    if processes > 1:
        raise TrainingError(
            f"fixed point: one process must evaluate, got a process group of {processes}"
        )
    try:
        approximations = Approximations.of_stack(stack, **(fields or {}))
    except ValueError as error:
        raise TrainingError(str(error)) from error
    folder = RunFolder(path)
    model, data = open_run(folder)
    model.train(False)
    context = model.config.spec.context_length
    if max_tokens is None:
        max_tokens = settings_of(folder).evaluation.final_tokens
    try:
        starts = validation_windows(data.validation, context, max_tokens=max_tokens, stride=stride)
    except ValueError as error:
        raise TrainingError(str(error)) from error

    def loss_of(network: nn.Module, *, shown: bool) -> HeldOutLoss:
        return measure_loss(
            network,
            data.validation,
            starts,
            token_bytes=data.token_bytes,
            context_length=context,
            batch_tokens=2048,
            stride=stride,
            show_progress=shown,
        )

    compared = _Compared(model, FixedPointForCausalLM(model, approximations))
    found = FixedPointEvaluation(
        stack=stack,
        approximations=approximations,
        exact=loss_of(model, shown=False),
        fixed_point=loss_of(compared, shown=show_progress),
        largest_logit_difference=compared.largest,
        mean_logit_difference=compared.total / compared.logits,
        changed_predictions=compared.changed / compared.positions,
        fields=fields or {},
    )
    folder.write_result("fixed_point.json", found.to_dict())
    return found


class _Compared(nn.Module):
    """Runs a network in both arithmetics, returns the fixed-point output and keeps differences."""

    def __init__(self, exact: AeroForCausalLM, fixed_point: FixedPointForCausalLM) -> None:
        super().__init__()
        self.exact = exact
        self.fixed_point = fixed_point
        self.largest = self.total = 0.0
        self.logits = self.changed = self.positions = 0

    def forward(self, input_ids: Tensor, use_cache: bool | None = None) -> AeroCausalLMOutput:
        exact = self.exact(input_ids=input_ids, use_cache=False).logits.double()
        output: AeroCausalLMOutput = self.fixed_point(input_ids)
        assert output.logits is not None
        difference = (output.logits - exact).abs()
        self.largest = max(self.largest, difference.max().item())
        self.total += difference.sum().item()
        self.logits += difference.numel()
        self.changed += int((output.logits.argmax(-1) != exact.argmax(-1)).sum())
        self.positions += input_ids.numel()
        return output
