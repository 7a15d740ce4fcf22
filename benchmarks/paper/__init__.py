"""The paper's tables and figures about training, retrained and judged claim by claim.

A target (`table2`, `figure18`, ...) is data: rows of networks, their shown values, the paper's
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

from aero._lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
