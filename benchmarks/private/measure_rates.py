"""CPU seconds of SPU's primitives, and the rates that fit them: the profile `spu-epyc`.

    python benchmarks/private/measure_rates.py --output runs/private/rates [--results PAGE.md]

Needs the private environment (`make private`), and ten minutes of one core.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from comparison_tables import write_between_marks
from measured_grid import Cell, predicted_cost
from measurement import run_worker, set_up_key
from scipy.optimize import nnls

from aero.cli.errors import note, one_line_errors, say
from aero.mpc import compute_profile
from aero.reading import read_json
from aero.tables import markdown_table

# Products of shares, of many shapes, so that their two rates can be told apart.
CELLS = (
    *(
        Cell("matmul", shape)
        for shape in (
            (128, 64, 128), (128, 128, 64), (512, 256, 32), (1024, 64, 64), (128, 768, 64),
            (64, 8192, 64), (128, 768, 768),
        )
    ),
    Cell("product", (131072,)),
    Cell("relu", (65536,)),
    Cell("comparison", (131072,)),
)  # fmt: skip
# The first pays for the set-up of OTs, and what is compiled once.
RUNS = 4
RATES = (
    "ciphertext x plaintext product and encoding (as many of each: no timing tells them apart)",
    "automorphism",
    "elementwise ciphertext (encryption, evaluation, decryption)",
    "OT, at each party",
)
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def measure(
    output: Annotated[
        Path, typer.Option(help="Folder of the times; a stopped run continues there.")
    ],
    results: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write the tables there, at its <!-- rates -->."),
    ] = None,
) -> None:
    """Times ten operations, both parties in one process, and fits the four rates to them."""
    with one_line_errors(ValueError, OSError, RuntimeError):
        output.mkdir(parents=True, exist_ok=True)
        described = [
            {"key": cell.key, "name": cell.name, "operation": cell.operation,
             "sizes": cell.sizes, "repeats": 1, "runs": RUNS}
            for cell in CELLS
        ]  # fmt: skip
        job = {"settings": {}, "folder": str(output), "set_up": set_up_key({}), "cells": described}
        run_worker(job, output, None, note)
        machine = read_json(output / "environment.json")
        tables = rates_tables([read_json(output / f"{cell.key}.json") for cell in CELLS], machine)
        if results is not None:
            write_between_marks(results, "rates", tables)
        say(tables)


def rates_tables(measured: list[dict[str, Any]], machine: dict[str, str]) -> str:
    """The operations, and the rates that fit them beside the profile's.

    The fit is that of least squares of relative errors, none of the rates below 0.
    """
    counts = np.array([_counts(cell) for cell in CELLS])
    seconds = np.array([min(cell["cpu_seconds"][1:]) for cell in measured])
    rates, _ = nnls(counts / seconds[:, None], np.ones(len(seconds)))
    fitted = counts @ rates
    rows = [
        [
            cell.name,
            *(f"{count:,.0f}" if count else "" for count in each[:3]),
            f"{each[3] / 2e6:.3f}" if each[3] else "",
            f"{taken:.3f}",
            f"{told:.3f}",
            f"{told / taken:.2f}",
        ]
        for cell, each, taken, told in zip(CELLS, counts, seconds, fitted, strict=True)
    ]
    head = ("operation", "ct x pt products", "automorphisms", "elementwise ciphertexts",
            "OTs (1e6)", "CPU s", "from rates", "ratio")  # fmt: skip
    profile = compute_profile("spu-epyc")
    known = (profile.ct_pt_product_seconds, profile.automorphism_seconds,
             profile.elementwise_ciphertext_seconds, profile.ot_seconds)  # fmt: skip
    rate_rows = [
        [name, f"{rate:.3g}", f"{old:.3g}", f"{rate / old:.2f}"]
        for name, rate, old in zip(RATES, rates, known, strict=True)
    ]
    errors = np.abs(fitted / seconds - 1)
    return "\n\n".join(
        (
            f"{machine['processor']}; SPU {machine['spu']}, jax {machine['jax']}.",
            markdown_table(head, rows),
            markdown_table(("", "seconds of one thread", "profile `spu-epyc`", "ratio"), rate_rows),
            f"Mean error {100 * errors.mean():.0f} %, worst {100 * errors.max():.0f} %.",
        )
    )


def _counts(cell: Cell) -> list[float]:
    cost = predicted_cost(cell)
    assert cost.plaintext_encodings == cost.ct_pt_products
    return [
        cost.ct_pt_products,
        cost.automorphisms,
        cost.elementwise_ciphertexts,
        2 * cost.ots,
    ]


if __name__ == "__main__":
    app()
