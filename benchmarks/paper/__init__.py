"""`python -m benchmarks.paper`: the paper's tables and figures, retrained, judged claim by claim.

A target (`table2`, `figure18`, ...) is data: rows of networks, their shown values, the paper's
numbers and its claims. A scale (`mini`, `small`, `paper`) says at which size. Both together give
cells, one training run per network and seed, each in a folder named by its configuration, so that
targets share cells and an interrupted command goes on.

    plan = plan_target("table2", "mini")
    run_cells(plan.cells, output="runs/reproduction", cache_dir="runs/corpora", jobs=2)
    write_target(plan, "runs/reproduction")

Listing and planning do not import torch. `experiments` holds the programs beside the targets.

Example:
    >>> from benchmarks.paper.targets import load_target
    >>> [row.name for row in load_target("figure4").rows]
    ['SM+LR(layer)', 'SM+LR(global)']
"""
