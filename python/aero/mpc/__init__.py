"""The cost of one private forward pass, operation by operation; importable without torch.

Two parties, semi-honest: SecretFlow SPU with the Cheetah protocol, or OpenBumbleBee. Matrix
products and elementwise products run under RLWE encryption, comparisons and truncations by
oblivious transfer. The formulas, each with its source, are in `csrc/mpc`. No byte is fitted; the
five rates behind the minutes of `paper-testbed` are.

Example:
    >>> from aero import mpc
    >>> report = mpc.simulate("SM+ScFuFFN")
    >>> round(report.comm_bytes / 1e9, 2), report.rounds
    (6.34, 8502)
"""

from __future__ import annotations

from aero.mpc.cost_report import CostReport
from aero.mpc.generation import simulate_generation
from aero.mpc.network_sweep import sweep
from aero.mpc.optimization import optimizations
from aero.mpc.profiles import (
    ComputeProfile,
    NetworkProfile,
    compute_profile,
    network_profile,
)
from aero.mpc.simulation import (
    operation_cost,
    simulate,
    stack_fields,
    stack_names,
)

__all__ = [
    "ComputeProfile",
    "CostReport",
    "NetworkProfile",
    "compute_profile",
    "network_profile",
    "operation_cost",
    "optimizations",
    "simulate",
    "simulate_generation",
    "stack_fields",
    "stack_names",
    "sweep",
]
