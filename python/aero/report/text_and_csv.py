"""`to_text` and `to_csv` of every result of `aero.mpc`, for the terminal and for files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import singledispatch
from typing import TYPE_CHECKING, Any

from aero.report.cost_texts import CSVS, TEXTS, Compute, Network

if TYPE_CHECKING:
    from functools import _SingleDispatchCallable


@singledispatch
def to_text(found: Any, network: Network = None, compute: Compute = None) -> str:
    """Returns a result of `aero.mpc` as tables for the terminal.

    Args:
        found: A `CostReport`, `CostComparison`, `GenerationReport`, `SweepResult`,
            `OptimizationTable`, `Latency` or `Schedule`.
        network: Adds the time on it to the first three; a profile, a name, or a name with changes,
            as of `CostReport.latency`.
        compute: The machines behind that time; default as of `CostReport.latency`.

    Raises:
        TypeError: For anything else.

    Example:
        >>> from aero import mpc, report
        >>> report.to_text(mpc.simulate("SM", model="tiny").latency()).partition(" on ")[0]
        '0.34 minutes'
    """
    return _known(to_text, "to_text", found)(found, network, compute)


@singledispatch
def to_csv(found: Any, network: Network = None, compute: Compute = None) -> str:
    """Returns a result of `aero.mpc` as CSV with one header.

    A line per operation of a `CostReport`, per part of a `CostComparison`, per token of a
    `GenerationReport`, per row of a `SweepResult`, and per table, measure and size of an
    `OptimizationTable`, whose savings are fractions.

    Args:
        found: One of these.
        network: Adds seconds on it to the first three, as of `CostReport.latency`.
        compute: The machines behind that time; default as of `CostReport.latency`.

    Raises:
        TypeError: For anything else.

    Example:
        >>> from aero import mpc, report
        >>> report.to_csv(mpc.simulate("SM", model="tiny")).splitlines()[0].split(",")[:3]
        ['name', 'layer', 'kind']
    """
    return _known(to_csv, "to_csv", found)(found, network, compute)


def _known(function: _SingleDispatchCallable[str], name: str, found: object) -> Callable[..., str]:
    """The function for a plan: those load when the first one comes."""
    from aero.report import plan_texts

    _register(plan_texts.TEXTS, plan_texts.CSVS)
    known = function.dispatch(type(found))
    if known is function.dispatch(object):
        raise TypeError(f"{name}: found must be a result of aero.mpc, got {type(found).__name__}")
    return known


def _register(*tables: Mapping[type, Callable[..., str]]) -> None:
    for function, table in zip((to_text, to_csv), tables, strict=True):
        for kind, shown in table.items():
            function.register(kind, shown)


_register(TEXTS, CSVS)
