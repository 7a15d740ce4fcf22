"""Shares of a training step's time, by kind of work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

#: Kinds of work and the beginnings of the names that torch's profiler has for them.
KINDS = {
    "products": ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "mkldnn::"),
    "casts and copies": ("aten::copy_", "aten::clone", "aten::cat", "aten::contiguous"),
    "cross-entropy": (
        "aten::_log_softmax",
        "aten::_softmax",
        "aten::exp_",
        "aten::nll",
        "aten::scatter_add_",
        "_CrossEntropy",
        "aero::cross_entropy",
        "_BlockwiseLoss",
    ),
    "optimizer and clipping": (
        "aten::_fused_adamw_",
        "aten::linalg_",
        "aten::_foreach",
        "aten::mul_",
    ),
    "attention": ("aero::attention", "aten::_scaled_dot"),
    "scaled_ffn": ("aero::scaled_ffn",),
}
PROFILED_STEPS = 3
#: Arguments of `aero::scaled_ffn`; torch names the forward of either operator `Differentiable`.
FFN_ARGUMENTS = 5


def kind_of(event: Any) -> str:
    """The kind of work of an event of the profiler."""
    if event.key == "Differentiable":
        return "scaled_ffn" if len(event.input_shapes) == FFN_ARGUMENTS else "attention"
    kinds = [kind for kind, names in KINDS.items() if event.key.startswith(names)]
    return kinds[0] if kinds else "everything else"


def shares(step: Callable[[], None]) -> dict[str, float]:
    """Share of a step's time by kind of work, operators without those they call; one thread.

    The first profile is thrown away: while the memory of the process still grows, the operators
    that touch new pages first, casts and copies among them, take up to ten times as long.
    """
    torch.set_num_threads(1)
    for _ in range(2):
        step()
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
            for _ in range(PROFILED_STEPS):
                step()
    times = dict.fromkeys([*KINDS, "everything else"], 0.0)
    for event in profiler.key_averages(group_by_input_shape=True):
        times[kind_of(event)] += event.self_cpu_time_total
    return {kind: spent / sum(times.values()) for kind, spent in times.items()}
