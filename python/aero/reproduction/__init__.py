"""The paper's tables and figures about training, retrained and judged claim by claim.

A target (`table2`, `figure18`, ...) is data: rows of networks, what is shown of them, the paper's
numbers and its claims. A scale (`mini`, `small`, `paper`) says at which size. Both together give
cells, one training run per network and seed, each in a folder named by its configuration, so that
targets share cells and an interrupted command goes on.

    plan = plan_target("table2", "mini")
    run_cells(plan.cells, output="runs/reproduction", cache_dir="runs/corpora", jobs=2)
    write_target(plan, "runs/reproduction")

Everything loads on first use, so that listing and planning do not import torch.

Example:
    >>> from aero import reproduction
    >>> [row.name for row in reproduction.load_target("figure4").rows]
    ['SM+LR(layer)', 'SM+LR(global)']
"""

from __future__ import annotations

import importlib
from typing import Any

# Public name -> module that defines it.
_EXPORTS = {
    "Cell": "aero.reproduction.cells",
    "Claim": "aero.reproduction.claims",
    "Row": "aero.reproduction.targets",
    "Scale": "aero.reproduction.scales",
    "Target": "aero.reproduction.targets",
    "TargetPlan": "aero.reproduction.cells",
    "collect_target": "aero.reproduction.outcome",
    "judge": "aero.reproduction.verdicts",
    "load_scale": "aero.reproduction.scales",
    "load_target": "aero.reproduction.targets",
    "plan_target": "aero.reproduction.cells",
    "run_cells": "aero.reproduction.running",
    "scale_names": "aero.reproduction.scales",
    "statistic_names": "aero.reproduction.statistics",
    "target_names": "aero.reproduction.targets",
    "write_target": "aero.reproduction.outcome",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'aero.reproduction' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
