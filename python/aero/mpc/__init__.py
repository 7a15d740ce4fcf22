"""What one private forward pass costs, operation by operation; importable without torch.

Two parties, semi-honest: SecretFlow SPU with the Cheetah protocol, or OpenBumbleBee. Matrix
products and elementwise products run under RLWE encryption, comparisons and truncations by
oblivious transfer. The formulas, each with its source, are in `csrc/mpc`. No byte is fitted; the
five rates behind the minutes of `paper-testbed` are.

Example:
    >>> from aero import mpc
    >>> report = mpc.simulate("SM+ScFuFFN")
    >>> round(report.comm_bytes / 1e9, 2), report.flights
    (6.34, 8502)
"""

from __future__ import annotations

from aero.mpc.cost_report import Cost, CostReport, Operation
from aero.mpc.latency import Duration, Latency
from aero.mpc.paper import PaperComparison, compare_with_paper, comparison_markdown, paper_tables
from aero.mpc.paper_findings import Finding
from aero.mpc.profiles import (
    ComputeProfile,
    NetworkProfile,
    compute_names,
    compute_profile,
    network_names,
    network_profile,
)
from aero.mpc.reproduction import ReproducedRow, Reproduction, SavingStep, reproduce
from aero.mpc.schedule import Schedule, ScheduledOperation
from aero.mpc.simulation import (
    operation_cost,
    option_set_names,
    simulate,
    stack_fields,
    stack_names,
)

__all__ = [
    "ComputeProfile",
    "Cost",
    "CostReport",
    "Duration",
    "Finding",
    "Latency",
    "NetworkProfile",
    "Operation",
    "PaperComparison",
    "ReproducedRow",
    "Reproduction",
    "SavingStep",
    "Schedule",
    "ScheduledOperation",
    "compare_with_paper",
    "comparison_markdown",
    "compute_names",
    "compute_profile",
    "network_names",
    "network_profile",
    "operation_cost",
    "option_set_names",
    "paper_tables",
    "reproduce",
    "simulate",
    "stack_fields",
    "stack_names",
]
