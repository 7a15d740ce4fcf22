"""A training that chooses parts of its network by their private bytes.

A training without `selection.byte_weight` loads neither this nor prices.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from aero.conversion.selecting import GatedPrice, selected, with_gates
from aero.internals.errors import TrainingError
from aero.internals.run_files import SelectionRecord
from aero.models import AeroForCausalLM
from aero.models.configuration import gate_obstacle
from aero.nn.gates import Gates
from aero.train.runs.planning import PlannedRun


def gated_parts(run: PlannedRun) -> list[str]:
    """The parts of a run that have gates, each by its name."""
    return run.recipe.selection.parts.split("+")


def price_of_parts(run: PlannedRun) -> GatedPrice:
    """The price of a run's network as a function of its gates.

    Raises:
        TrainingError: the network cannot have these gates, or there is no such stack.
    """
    _check_parts(run)
    try:
        return GatedPrice(run.spec, gated_parts(run), run.recipe.selection.stack)
    except ValueError as error:
        raise TrainingError(f"train: selection.stack: {error}") from error


def _check_parts(run: PlannedRun) -> None:
    reason = gate_obstacle(run.spec, gated_parts(run))
    if reason is not None:
        raise TrainingError(
            f"train: selection.parts {run.recipe.selection.parts} need {reason}, got {run.label}; "
            "name other parts or another label"
        )


def with_gates_of(run: PlannedRun, model: AeroForCausalLM) -> AeroForCausalLM:
    """The run's network with its gates.

    Raises:
        TrainingError: the network cannot have these gates, or it is annealed.
    """
    _check_parts(run)
    if model.config.annealed_from is not None:
        raise TrainingError(
            f"train: selection and annealing: {run.name} can have one of both; set "
            "annealing.schedule=none, or anneal first and continue from that run"
        )
    return with_gates(model, gated_parts(run))


def byte_penalty(run: PlannedRun, model: AeroForCausalLM) -> BytePenalty:
    """The callback of a planned run that chooses parts; its `loss` is a term of every step's."""
    price, gates, section = price_of_parts(run), model.transformer.gates, run.recipe.selection
    assert gates is not None
    ends = section.start_fraction, section.end_fraction
    return BytePenalty(price, gates, section.byte_weight, *ends)


def gate_rates(run: PlannedRun) -> dict[str, float]:
    """Learning rates of the gates, as factors by the ends of their names."""
    return {f".gates.{part}": run.recipe.selection.gate_rate for part in gated_parts(run)}


def what_is_left(run: PlannedRun, model: AeroForCausalLM, *, writes: bool) -> AeroForCausalLM:
    """The network without the parts that were not chosen.

    Args:
        run: whose `run.json` gets the label and sizes of what is left.
        model: as trained to the end.
        writes: whether this process writes the run's files.
    """
    left = selected(model)
    if writes:
        spec = left.config.spec
        origin = SelectionRecord(label=run.label, num_heads=run.spec.num_heads)
        run.folder.update(label=spec.label, spec=spec.to_dict(), selected_from=origin)
    return left


class BytePenalty(TrainerCallback):
    """The weighted price in the loss, and the gates' way over the steps.

    Gates stand at 1 before `start_fraction` of the steps. Then they learn within [0, 1], and after
    `end_fraction`, or in the last step, they are 0 below a half, else 1, and stay so: of heads at
    least the largest stays.

    Args:
        price: of the network.
        gates: of the network.
        weight: of the bytes of the whole network, in nats per token.
        start_fraction: share of the steps before the gates learn.
        end_fraction: share of the steps after which they are 0 or 1.
    """

    def __init__(
        self,
        price: GatedPrice,
        gates: Gates,
        weight: float,
        start_fraction: float,
        end_fraction: float,
    ) -> None:
        self._price, self._gates, self._weight = price, gates.by_name(), weight
        self._fractions = start_fraction, end_fraction
        self._learns = True

    def loss(self) -> Tensor:
        """The term of the loss, 0-D, nats per token.

        It has no gradient in a step in which the gates do not learn: that would be clipped together
        with the network's.
        """
        share = self._price.share(self._gates)
        return self._weight * (share if self._learns else share.detach())

    def on_step_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Sees whether the gates learn in this step."""
        begin, end = (fraction * state.max_steps for fraction in self._fractions)
        self._learns = begin < state.global_step + 1 <= end

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Leaves the gates out of a step in which they do not learn."""
        if not self._learns:
            for gate in self._gates.values():
                gate.grad = None

    def on_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Keeps the gates within [0, 1], and at an end of it once they have learned."""
        step, end = state.global_step + 1, self._fractions[1] * state.max_steps
        is_over = step + 1 > end or step >= state.max_steps
        with torch.no_grad():
            for name, gate in self._gates.items():
                gate.clamp_(0.0, 1.0)
                if is_over:
                    largest = gate.argmax()
                    gate.copy_(gate >= 0.5)
                    if name == "heads":
                        gate[largest] = 1.0
