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

from aero.mpc.comparison import CostComparison
from aero.mpc.cost_report import Cost, CostReport, Operation
from aero.mpc.described_stacks import (
    StackDescription,
    described_stack_names,
    load_stack,
    stack_description,
)
from aero.mpc.equal_time import (
    EqualTime,
    TimedNetwork,
    compare_at_equal_time,
    timed_rows,
    timed_steps,
)
from aero.mpc.generation import GenerationReport, simulate_generation
from aero.mpc.generation_pages import generation_page
from aero.mpc.latency import Duration, Latency
from aero.mpc.measure_tables import OptionRow, OptionSet, OptionTable, option_table
from aero.mpc.measures import Option, options
from aero.mpc.network_sweep import SweepResult, SweepRow, sweep
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
from aero.mpc.sweep_pages import sweep_page

__all__ = [
    "ComputeProfile",
    "Cost",
    "CostComparison",
    "CostReport",
    "Duration",
    "EqualTime",
    "Finding",
    "GenerationReport",
    "Latency",
    "NetworkProfile",
    "Operation",
    "Option",
    "OptionRow",
    "OptionSet",
    "OptionTable",
    "PaperComparison",
    "ReproducedRow",
    "Reproduction",
    "SavingStep",
    "Schedule",
    "ScheduledOperation",
    "StackDescription",
    "SweepResult",
    "SweepRow",
    "TimedNetwork",
    "compare_at_equal_time",
    "compare_with_paper",
    "comparison_markdown",
    "compute_names",
    "compute_profile",
    "described_stack_names",
    "generation_page",
    "load_stack",
    "network_names",
    "network_profile",
    "operation_cost",
    "option_set_names",
    "option_table",
    "options",
    "paper_tables",
    "reproduce",
    "simulate",
    "simulate_generation",
    "stack_description",
    "stack_fields",
    "stack_names",
    "sweep",
    "sweep_page",
    "timed_rows",
    "timed_steps",
]
