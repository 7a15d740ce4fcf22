"""One step of a conversion: its changes to the configuration and to the weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from aero.conversion.weights import Weights, put_together, take_apart, with_spec
from aero.models import AeroConfig, AeroForCausalLM


def _leave(weights: Weights) -> None:
    """The change of a step that only adds parameters with a start of their own."""


@dataclass(frozen=True)
class Step:
    """A step of a conversion.

    Attributes:
        name: the function of `aero.conversion` that does it alone, or a word if there is none.
        is_exact: whether the logits stay the same, up to rounding.
        effect: the change, in one line.
        config: the network after the step.

    Example:
        >>> from aero import AeroConfig, AeroForCausalLM
        >>> from aero.conversion import convert
        >>> model = AeroForCausalLM(AeroConfig.from_label("SM+LN+G", model="tiny"))
        >>> (step,) = convert(model, "SM+LN+R", dry_run=True).steps
        >>> print(step)
        replace_activation (inexact): gelu becomes relu
    """

    name: str
    is_exact: bool
    effect: str
    config: AeroConfig
    change: Callable[[Weights], None] = field(default=_leave, repr=False, compare=False)

    def __str__(self) -> str:
        """``name (exact): effect``."""
        return f"{self.name} ({'exact' if self.is_exact else 'inexact'}): {self.effect}"


@torch.no_grad()
def take_steps(
    model: AeroForCausalLM, steps: Sequence[Step], *, config: AeroConfig | None = None
) -> AeroForCausalLM:
    """A new network after all steps; `model` is left unchanged.

    Args:
        model: the network.
        steps: each planned from the configuration that the one before leaves.
        config: of the result where there is no step; default: that of `model`.
    """
    weights = take_apart(model)
    for step in steps:
        step.change(weights)
    config = steps[-1].config if steps else model.config if config is None else config
    config = with_spec(config, config.spec)
    history = [*(model.config.conversion_steps or []), *map(str, steps)]
    config.conversion_steps = history or None
    return put_together(config, weights, model)
