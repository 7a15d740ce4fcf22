"""What fixed-point arithmetic costs in accuracy: function by function, and in trained networks.

    python benchmarks/fixed_point.py runs/demo/*-seed1 [--max-tokens 8192] [--output table.md]

Each function against exact arithmetic on a stated range; then, for every run folder, what
`aero evaluate RUN --fixed-point STACK --set exp_squarings=N` measures: perplexity; the largest
difference of a logit; the share of positions whose most likely token changes. f = 18, truncations
round down unless said otherwise.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from timer import machine, markdown_table, publish

from aero import fixed_point as fp
from aero.train.fixed_point_evaluation import FixedPointEvaluation, evaluate_run_in_fixed_point

Reals = NDArray[np.float64]
SQUARINGS = (8, 5, 3)
STACKS = ("spu-2024", "spu-0.9.5", "openbumblebee")


def gelu(x: Reals) -> Reals:
    """GELU by its definition, in float64."""
    return np.asarray(torch.nn.functional.gelu(torch.from_numpy(x)))


def softmax(x: Reals) -> Reals:
    """Softmax of each row."""
    powers = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def function_rows() -> Iterator[list[str]]:
    """Name, range, largest absolute and relative error of every function."""
    negative, symmetric = np.linspace(-14, 0, 200_001), np.linspace(-8, 8, 200_001)
    positive = np.geomspace(2**-6, 2**10, 200_001)
    # Ring elements exactly, so that what is left is the truncation.
    grid = np.arange(-(2**21), 2**21, 7) * 2.0**-18
    scores = np.random.default_rng(0).standard_normal((12 * 128, 128))

    def row(
        name: str, about: str, x: Reals, found: Callable[[Any], Any], exact: Reals
    ) -> list[str]:
        error = np.abs(fp.decode(found(fp.encode(x))) - exact)
        # Relative where the function is not about 0, or the last bit would be everything.
        large = np.abs(exact) > 2**-6
        relative = error[large] / np.abs(exact[large])
        return [name, about, f"{error.max():.1e}", f"{relative.max():.1e}"]

    rounding: tuple[Literal["floor", "nearest", "shares"], ...] = ("floor", "nearest", "shares")
    for how in rounding:
        arithmetic = fp.Arithmetic(truncation=how)
        yield row(
            f"x * x, truncation: {how}",
            "[-8, 8], steps of 2^-18",
            grid,
            lambda x, arithmetic=arithmetic: fp.product(x, x, arithmetic=arithmetic),
            grid**2,
        )
    for t in SQUARINGS:
        yield row(
            f"exp, {t} squarings",
            "[-14, 0]",
            negative,
            lambda x, t=t: fp.exponential(x, squarings=t),
            np.exp(negative),
        )
    yield row("1 / x", "[1/64, 1024]", positive, fp.reciprocal, 1 / positive)
    root = fp.reciprocal_square_root
    yield row("1 / sqrt(x)", "[1/64, 1024]", positive, root, positive**-0.5)
    yield row("tanh", "[-8, 8]", symmetric, fp.hyperbolic_tangent, np.tanh(symmetric))
    kinds: tuple[fp.functions.GeluKind, ...] = ("tanh", "segment", "piecewise")
    for kind in kinds:
        yield row(
            f"GELU, {kind}",
            "[-8, 8]",
            symmetric,
            lambda x, kind=kind: fp.gelu(x, kind=kind),
            gelu(symmetric),
        )
    for t in SQUARINGS:
        yield row(
            f"softmax, {t} squarings",
            "1,536 rows of 128 scores from N(0, 1)",
            scores,
            lambda x, t=t: fp.softmax(x, squarings=t),
            softmax(scores),
        )
    normed = (scores - scores.mean(-1, keepdims=True)) / np.sqrt(scores.var(-1)[:, None] + 1e-5)
    one, zero = fp.encode(np.ones(128)), fp.encode(np.zeros(128))
    yield row(
        "LayerNorm",
        "the same rows",
        scores,
        lambda x: fp.layer_norm(x, one, zero, epsilon=1e-5),
        normed,
    )


def network_rows(runs: list[Path], max_tokens: int) -> Iterator[list[str]]:
    """Every run with every number of squarings, a row per stack whose results differ."""
    for run in runs:
        stacks: dict[tuple[str, ...], list[str]] = {}
        for stack in STACKS:
            found = [
                evaluate_run_in_fixed_point(
                    run, stack, [f"exp_squarings={t}"], max_tokens=max_tokens, show_progress=False
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
    header = ["function", "on", "largest error", "largest relative error of values above 1/64"]
    parts = [machine(), markdown_table(header, list(function_rows()))]
    if given.runs:
        header = ["run", "stack", "floating point", *(f"{t} squarings" for t in SQUARINGS)]
        parts.append(markdown_table(header, list(network_rows(given.runs, given.max_tokens))))
    publish("\n\n".join(parts), given.output)


if __name__ == "__main__":
    main()
