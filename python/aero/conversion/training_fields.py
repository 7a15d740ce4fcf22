"""Settings of a network's training that its conversions may change."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from aero.models import AeroConfig

#: Fields of `AeroConfig` about the training of a network, not about its outputs.
TRAINING_FIELDS = (
    "entropy_weight", "entropy_tokens", "tolerance_margin", "max_entropy", "entropy_reduction",
    "entropy_strengths", "entropy_thresholds", "threshold_init", "temperature_init",
    "temperature_parametrization", "trainable_scales", "leaky_slope_init", "norm_statistics",
    "initializer_range", "position_start", "embedding_dropout", "residual_dropout",
    "attention_dropout",
)  # fmt: skip


def with_training_fields(where: str, config: AeroConfig, options: Mapping[str, Any]) -> AeroConfig:
    """A copy of a configuration with those of the options that are about training.

    Raises:
        ValueError: a value that is not allowed, or one of what the model has learned already.
    """
    fields = {name: options[name] for name in TRAINING_FIELDS if name in options}
    AeroConfig(**fields)  # checks the values
    spec = config.spec
    for name, has_it, kept in (
        ("temperature_parametrization", spec.temperature != "none", "temperatures"),
        ("temperature_init", spec.temperature != "none", "temperatures"),
        ("threshold_init", spec.entropy_regularized, "thresholds"),
    ):
        own = getattr(config, name)
        if has_it and fields.get(name, own) != own:
            raise ValueError(
                f"{where}: {name} must be left out or {own!r}, since the model keeps its {kept}, "
                f"got {fields[name]!r}"
            )
    changed = copy.deepcopy(config)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed
