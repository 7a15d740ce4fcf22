"""Whether a forward is running inside a backward, as gradient checkpointing does."""

from __future__ import annotations

import torch


def is_recomputing() -> bool:
    """True while the autograd engine runs a backward, hence for a checkpoint's second forward.

    State that moves once per forward (running statistics, power iterations) must not move again
    there, else the recomputed activations differ from the first ones. A compiled graph is traced
    outside any backward and recomputes without replaying buffer updates.
    """
    if torch.compiler.is_compiling():
        return False
    return torch._C._current_graph_task_id() != -1  # type: ignore[attr-defined,unused-ignore]
