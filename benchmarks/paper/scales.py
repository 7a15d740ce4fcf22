"""Scales: the paper's data sets and models at `mini`, `small` and `paper` size."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from aero.architecture import ArchitectureSpec
from aero.internals.errors import TrainingError
from aero.reading import parse_yaml

_PRUNED = re.compile(r"_i(\d+)")


@dataclass(frozen=True)
class Scale:
    """One size of all experiments.

    Attributes:
        name: `mini`, `small` or `paper`.
        seeds: how many seeds a command trains by default.
        recipes: data set -> {`recipe`: name, `settings`: {section.key: value}}.
        models: model -> settings of its sizes.
    """

    name: str
    seeds: int
    recipes: Mapping[str, Mapping[str, Any]]
    models: Mapping[str, Mapping[str, Any]]

    def label(self, label: str, model: str) -> str:
        """Returns a label of the paper with its pruning depth at this scale's number of layers.

        Args:
            label: such as `SM+ScFuFFN_i6`, at the paper's depth.
            model: as targets name it; it is the paper's preset.

        Example:
            >>> from benchmarks.paper.scales import load_scale
            >>> load_scale("mini").label("EReg(SM(t)+ScFuFFN_i6)", "gpt2")
            'EReg(SM(t)+ScFuFFN_i3)'
        """
        papers: int = ArchitectureSpec.from_label("SM", model=model).num_layers
        preset = self.models[model]["model.preset"]
        ours = self.models[model].get(
            "model.num_layers", ArchitectureSpec.from_label("SM", model=preset).num_layers
        )

        def scaled(found: re.Match[str]) -> str:
            # Half up; FFNs that the paper prunes are pruned here.
            return f"_i{max(1, int(int(found.group(1)) * ours / papers + 0.5))}"

        return _PRUNED.sub(scaled, label)


def scale_names() -> list[str]:
    """Returns the scales, smallest first."""
    return list(_scales())


def load_scale(name: str) -> Scale:
    """Returns a scale.

    Raises:
        TrainingError: no such scale.
    """
    if name not in _scales():
        raise TrainingError(
            f"reproduce: --scale must be one of {', '.join(scale_names())}, got {name!r}"
        )
    return Scale(name=name, **_scales()[name])


@cache
def _scales() -> dict[str, Any]:
    file = Path(__file__).parent / "data" / "scales.yaml"
    found: dict[str, Any] = parse_yaml(file.read_bytes(), "scales.yaml")
    return found
