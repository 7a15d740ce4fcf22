"""Step 1: another activation, or none."""

from __future__ import annotations

from typing import Literal

from torch import nn

from aero.conversion.steps import Step, take_steps
from aero.conversion.weights import Weights, with_spec
from aero.models import AeroConfig, AeroForCausalLM
from aero.models.carrying_over import carry_over

ActivationName = Literal["relu", "gelu", "identity"]

_FFN_OF = {"relu": "relu", "gelu": "gelu", "identity": "linear"}
_SLOPED = ("leaky_relu_layer", "leaky_relu_global")


def replace_activation(model: nn.Module, activation: ActivationName) -> AeroForCausalLM:
    """Another activation between the two layers of every FFN, with the same weights. Inexact.

    Args:
        model: a network that `aero.convert` takes; left unchanged.
        activation: ``"relu"``, ``"gelu"`` or ``"identity"`` (nothing in between: linear FFNs).

    Returns:
        A new network; its function differs from that of `model`, so it wants retraining.

    Raises:
        ValueError: an unknown activation, or FFNs with scales or of one fused layer, which are
            linear by definition.

    Example:
        >>> from aero import AeroForCausalLM, replace_activation
        >>> from aero.models import AeroConfig
        >>> model = AeroForCausalLM(AeroConfig.from_label("SM+LN+G", model="tiny"))
        >>> changed = replace_activation(model, "relu")
        >>> changed.config.spec.label, changed.config.conversion_steps
        ('SM+LN+R', ['replace_activation (inexact): gelu becomes relu'])
    """
    if activation not in _FFN_OF:
        raise ValueError(
            "replace_activation: activation must be 'relu', 'gelu' or 'identity', "
            f"got {activation!r}"
        )
    network = carry_over(model)
    return take_steps(network, [activation_step(network.config, _FFN_OF[activation])])


def activation_step(config: AeroConfig, ffn: str) -> Step:
    """The step to an FFN of two layers with the activation that `ffn` of the spec names."""
    spec = config.spec
    if "scaled" in spec.ffn or "fused" in spec.ffn:
        raise ValueError(
            f"replace_activation: the FFNs of {spec.label} are linear by definition; replace the "
            "activation before fusing and scaling"
        )
    before = "linear" if spec.ffn in ("weight_norm", "spectral_norm") else spec.ffn

    def change(weights: Weights) -> None:
        if before in _SLOPED:
            for name in [n for n in weights.tensors if n.endswith("negative_slope")]:
                weights.drop(name)

    return Step(
        "replace_activation",
        before == ffn,
        f"{_named(before)} becomes {_named(ffn)}",
        with_spec(config, spec.replace(ffn=ffn)),
        change,
    )


def _named(ffn: str) -> str:
    return "the identity" if ffn == "linear" else ffn.replace("_", " ")
