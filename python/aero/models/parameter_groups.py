"""Which parameters weight decay acts on."""

from __future__ import annotations

from torch import nn

from aero.nn import Temperature

# Gains of weight norm: [out, 1], the scale of a weight and not a weight.
_WEIGHT_NORM_GAIN = "parametrizations.weight.original0"
# Of the entropy penalty: a number per head, [L, H].
_OF_PENALTY = ("threshold_bias", "strength_bias")


def decay_parameter_names(model: nn.Module) -> list[str]:
    """Names of the parameters to apply weight decay to: matrices and embeddings.

    Everything else has none: biases, norms, gains, temperatures, thresholds, strengths, alpha,
    beta, gamma and leaky slopes. `Trainer` on its own would decay most of these.

    Args:
        model: any module; for models that are not AERO's the rule is "matrices and embeddings" too.

    Returns:
        Names as in ``model.named_parameters()``, in that order.

    Example:
        >>> from aero.models.parameter_groups import decay_parameter_names
        >>> import torch
        >>> from aero.models import AeroConfig, AeroForCausalLM
        >>> model = AeroForCausalLM(AeroConfig.from_label("SM(t)+ScFuFFN", model="tiny"))
        >>> decayed = set(decay_parameter_names(model))
        >>> groups = [
        ...     {"params": [p for n, p in model.named_parameters() if n in decayed]},
        ...     {"params": [p for n, p in model.named_parameters() if n not in decayed],
        ...      "weight_decay": 0.0},
        ... ]
        >>> optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.1)
        >>> "transformer.h.0.attn.temperature.value" in decayed
        False
    """
    temperatures = {
        f"{prefix}.{name}"
        for prefix, module in model.named_modules()
        if isinstance(module, Temperature)
        for name, _ in module.named_parameters()
    }
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.dim() >= 2
        and name not in temperatures
        and not name.endswith((_WEIGHT_NORM_GAIN, *_OF_PENALTY))
    ]
