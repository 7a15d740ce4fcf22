"""Bytes between two parties, operation by operation, next to the simulator's.

    python benchmarks/private/measure_bytes.py --output runs/private/measured [--results PAGE.md]

Needs the private environment (`make private`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from comparison_tables import write_between_marks
from measured_grid import OPERATIONS, grid, network_grid
from measured_settings import setting_cells, settings_markdown
from measured_table import write_tables
from measurement import QUICK_RESOLUTION, RESOLUTION
from measurement import measure as measure_cells

from aero.cli.errors import note, one_line_errors, say
from aero.cli.private_calibration import export_random

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def measure(
    output: Annotated[
        Path, typer.Option(help="Folder of the results; a stopped run continues there.")
    ],
    operations: Annotated[
        list[str] | None,
        typer.Option(help="Only these, such as relu or softmax; may be repeated."),
    ] = None,
    networks: Annotated[
        bool, typer.Option("--networks/--no-networks", help="Whole networks too.")
    ] = True,
    settings: Annotated[
        bool,
        typer.Option(
            "--settings", help="Instead: each setting of SPU's configuration, one at a time."
        ),
    ] = False,
    results: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write the tables to this file, between its <!-- tables --> and <!-- end of "
            "tables -->; with --settings between <!-- settings --> and its end.",
        ),
    ] = None,
    quick: Annotated[bool, typer.Option(help="A few small ones: two minutes of one core.")] = False,
) -> None:
    """Measures the bytes of operations and networks under SPU, against `stack="spu-0.9.5"`.

    Writes a JSON file per measurement, and of all of them measured.md and measured.json. All of it
    takes about half an hour of one core, and up to 10 GB of memory for the widest networks.
    """
    with one_line_errors(ValueError, OSError, RuntimeError):
        for name in operations or []:
            if name not in OPERATIONS:
                raise ValueError(
                    f"private: --operations must be of {', '.join(OPERATIONS)}, got {name!r}"
                )
        if settings and (operations or quick):
            raise ValueError("private: --settings must stand without --operations and --quick")
        wanted = QUICK_RESOLUTION if quick or settings else RESOLUTION
        if settings:
            measure_cells(setting_cells(), [], output, export_random, wanted=wanted, progress=note)
            tables = settings_markdown(output)
        else:
            chosen = operations or OPERATIONS
            cells = [cell for cell in grid(quick=quick) if cell.operation in chosen]
            whole = network_grid(quick=quick) if networks and not operations else []
            measure_cells(cells, whole, output, export_random, wanted=wanted, progress=note)
            tables = write_tables(cells, whole, output)
        if results is not None:
            write_between_marks(results, "settings" if settings else "tables", tables)
        say(tables)


if __name__ == "__main__":
    app()
