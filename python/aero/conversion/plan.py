"""The steps of a conversion and their changes, before it is made."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from aero.architecture import ArchitectureSpec
from aero.conversion.dropout import carried_dropout
from aero.conversion.weights import Weights, put_together, take_apart, with_spec
from aero.models import AeroConfig, AeroForCausalLM
from aero.models.causal_lm import carry_over


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


def as_new_network(model: nn.Module) -> AeroForCausalLM:
    """`carry_over` for a network to be trained, with the model's dropout in its configuration.

    It warns of dropout that the new network cannot have.
    """
    network = carry_over(model)
    fields, lost = ({}, {}) if isinstance(model, AeroForCausalLM) else carried_dropout(model)
    for name, share in fields.items():
        setattr(network.config, name, share)
    if lost:
        (place, share), *others = lost.items()
        more = f" and {len(others)} more places" if others else ""
        warnings.warn(
            "aero.conversion: expected a model whose blocks drop the same share of what they add "
            f"to the stream, and of their attention weights, got {share:g} in {place}{more}; the "
            "new network drops nothing there",
            stacklevel=3,
        )
    return network


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


@dataclass(frozen=True)
class Size:
    """The size and the cost of a network.

    Attributes:
        label: its label.
        parameters: number of parameters, the entropy thresholds included.
        flops: of one forward pass over the whole context, the paper's count.
        nonlinear_operations: as the paper's tables print them.
        private_bytes: bytes of one private forward pass over the whole context on `spu-2024`.
    """

    label: str
    parameters: int
    flops: int
    nonlinear_operations: str
    private_bytes: int

    @classmethod
    def of(cls, spec: ArchitectureSpec) -> Size:
        """The size of a network."""
        from aero import mpc  # prices are not loaded to train a converted network

        return cls(
            label=spec.label,
            parameters=spec.parameter_count(training=True),
            flops=spec.flops().total,
            nonlinear_operations=str(spec.nonlinear_operations()),
            private_bytes=round(mpc.simulate(spec).comm_bytes),
        )


@dataclass(frozen=True, repr=False)
class ConversionPlan:
    """The steps of a conversion and the network after each; `print` shows them as a table.

    Attributes:
        source: class of the model.
        before: the network as it is, as an AERO network.
        steps: the steps, in order.

    Example:
        >>> from aero import AeroConfig
        >>> from aero.conversion import convert
        >>> from aero.models import AeroForCausalLM
        >>> model = AeroForCausalLM(AeroConfig.from_label("SM+LN+G", model="tiny"))
        >>> plan = convert(model, "SM+LN+FuFFN", dry_run=True)
        >>> for step in plan.steps:
        ...     print(step)
        replace_activation (inexact): gelu becomes the identity
        fuse_ffn (exact): W = W_in W_out, b = b_in W_out + b_out
        >>> plan.is_exact, [size.parameters for size in plan.sizes]
        (False, [34688, 34688, 20096])
    """

    source: str
    before: AeroConfig
    steps: tuple[Step, ...]

    @property
    def after(self) -> AeroConfig:
        """The network that the conversion makes."""
        return self.steps[-1].config if self.steps else self.before

    @property
    def is_exact(self) -> bool:
        """True if all steps leave the logits as they are, up to rounding."""
        return all(step.is_exact for step in self.steps)

    @property
    def sizes(self) -> tuple[Size, ...]:
        """The network before the first step and after each."""
        return tuple(Size.of(config.spec) for config in (self.before, *self._configs()))

    def _configs(self) -> list[AeroConfig]:
        return [step.config for step in self.steps]

    def to_text(self) -> str:
        """The plan as a table."""
        spec = self.before.spec
        title = (
            f"{self.source} {spec.label} (L {spec.num_layers}, d {spec.width}, H {spec.num_heads}, "
            f"T {spec.context_length}) to {self.after.spec.label}"
        )
        rows = [("step", "", "parameters", "GFLOPs", "GB in private", "nonlinear operations")]
        names = [("as it is", "")]
        names += [(step.name, "exact" if step.is_exact else "INEXACT") for step in self.steps]
        for (name, exact), size in zip(names, self.sizes, strict=True):
            counts = (f"{size.parameters:,}", f"{size.flops / 1e9:.3g}")
            cost = f"{size.private_bytes / 1e9:.3g}"
            rows.append((name, exact, *counts, cost, size.nonlinear_operations))
        widths = [max(len(row[column]) for row in rows) for column in range(6)]
        right = (2, 3, 4)
        lines = [
            "  ".join(
                cell.rjust(width) if column in right else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        effects = [f"- {step}" for step in self.steps] or ["- nothing to do"]
        return "\n".join([title, "", *lines, "", *effects])

    __repr__ = to_text
