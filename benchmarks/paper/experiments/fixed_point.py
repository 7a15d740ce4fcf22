"""The accuracy of fixed-point arithmetic: function by function, and in trained networks.

    python -m benchmarks.paper.experiments.fixed_point runs/demo/*-seed1 [--max-tokens 8192] \
        [--output table.md]

Each function against exact arithmetic, as `aero cost accuracy`; then, for every run folder, what
`aero evaluate RUN --fixed-point STACK --set exp_squarings=N --set secret_temperature=false`
measures: perplexity; the largest difference of a logit; the share of positions whose most likely
token changes. f = 18, truncations round down unless said otherwise.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aero.fixed_point import Approximations, function_errors
from aero.tables import markdown_table
from aero.train.runs.fixed_point_evaluation import FixedPointEvaluation, evaluate_run_in_fixed_point
from benchmarks.timer import machine, publish

SQUARINGS = (8, 5, 3)
STACKS = ("spu-2024", "spu-0.9.5", "openbumblebee")
VARIANTS: tuple[dict[str, Any], ...] = (
    {"exp_squarings": 5},
    {"exp_squarings": 3},
    {"exp_ring_bits": 32},
    {"gelu": "segment"},
    {"gelu": "piecewise"},
    {"truncation": "nearest"},
    {"truncation": "shares"},
)


def function_rows() -> Iterator[list[str]]:
    """Every function on `spu-2024`; then, for each change, those whose largest error it moves."""
    own = function_errors(Approximations())
    yield from ([e.name, "", *_numbers(e), e.points] for e in own)
    for fields in VARIANTS:
        change = ", ".join(f"{name}={value}" for name, value in fields.items())
        for before, after in zip(own, function_errors(Approximations(**fields)), strict=True):
            if _numbers(before) != _numbers(after):
                yield [after.name, change, *_numbers(after), after.points]


def _numbers(error: Any) -> list[str]:
    return [f"{error.largest:.1e}", f"{error.largest_relative:.1e}"]


def network_rows(runs: list[Path], max_tokens: int) -> Iterator[list[str]]:
    """Every run with every number of squarings, a row per stack whose results differ."""
    for run in runs:
        stacks: dict[tuple[str, ...], list[str]] = {}
        for stack in STACKS:
            found = [
                evaluate_run_in_fixed_point(
                    run,
                    stack,
                    {"exp_squarings": t, "secret_temperature": False},
                    max_tokens=max_tokens,
                    show_progress=False,
                )
                for t in SQUARINGS
            ]
            cells = (f"{found[0].exact.perplexity:.3f}", *map(_cell, found))
            stacks.setdefault(cells, []).append(stack)
        yield from ([run.name, ", ".join(names), *cells] for cells, names in stacks.items())


def _cell(found: FixedPointEvaluation) -> str:
    return (
        f"{found.fixed_point.perplexity:.3f}; {found.largest_logit_difference:.3f}; "
        f"{100 * found.changed_predictions:.1f} %"
    )


def main() -> None:
    """Measures and publishes."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("runs", type=Path, nargs="*", help="run folders")
    arguments.add_argument("--max-tokens", type=int, default=8192)
    arguments.add_argument("--output", type=Path, help="also write the tables to this file")
    given = arguments.parse_args()
    header = ["function", "changed", "largest error", "relative, beyond 1/64", "on"]
    parts = [machine(), markdown_table(header, list(function_rows()))]
    if given.runs:
        header = ["run", "stack", "floating point", *(f"{t} squarings" for t in SQUARINGS)]
        parts.append(markdown_table(header, list(network_rows(given.runs, given.max_tokens))))
    publish("\n\n".join(parts), given.output)


if __name__ == "__main__":
    main()
