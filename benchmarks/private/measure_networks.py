"""Bytes and seconds of private networks over several links, next to the simulator's.

    python benchmarks/private/measure_networks.py RUN_OR_EXPORT... --output FILE.json

Needs the private environment (`make private`). `make private-bench` renews the committed tables.
"""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Annotated

import typer
from comparison import Cell, compare_networks
from comparison_tables import comparison_tables, write_between_marks

from aero.cli.arguments import no_nan, settings
from aero.cli.errors import end_on_termination, note, one_line_errors, say
from aero.cli.private import Machine, check_machine, exported
from aero.private.environment import find_private_python
from aero.private.party_errors import PartyError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def compare(
    sources: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN_OR_EXPORT...]",
            help="Run folders or exports, baseline first; none: nothing is measured, but predicted "
            "and written again.",
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option(help="JSON file; the command does not repeat its measurements.")
    ] = Path("runs/private/comparison.json"),
    tokens: Annotated[int, typer.Option(help="Length of the prompt.", min=1, max=1 << 24)] = 32,
    link: Annotated[
        list[str] | None,
        typer.Option(help="memory, tcp or a network, see `aero private run`; may be repeated."),
    ] = None,
    also_set: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUE[,...]",
            help="Measure with these settings too; may be repeated. See `aero private run --set`.",
        ),
    ] = None,
    threads: Annotated[int, typer.Option(help="Of each party.", min=1, max=4096)] = 1,
    max_load: Annotated[
        float | None,
        typer.Option(
            help="Repeat measurements that were made at a higher load of the machine.",
            min=0,
            max=1e6,
            callback=no_nan,
        ),
    ] = None,
    machine: Machine = None,
    results: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write the tables to this file, between its <!-- tables --> and <!-- end of "
            "tables -->.",
        ),
    ] = None,
) -> None:
    """Measures bytes and seconds of one forward pass per network, link and settings.

    Interrupted, the same command continues. The tables have every cell of the file.
    """
    with one_line_errors(ValueError, OSError, PartyError), contextlib.ExitStack() as stack:
        end_on_termination()
        for each in link or ["tcp"]:
            check_machine(machine, each)
        folders = [stack.enter_context(exported(source)) for source in sources or ()]
        cells = [
            Cell(folder, tokens, each, changes, threads)
            for each in link or ["tcp"]
            for changes in [
                {},
                *(settings(given.split(","), "--also-set") for given in also_set or []),
            ]
            for folder in folders
        ]
        if not cells and not output.exists():
            raise ValueError(
                f"private: compare needs networks, or an --output with measured cells; there is no "
                f"{output}"
            )
        python = find_private_python() if cells else None
        measured = compare_networks(
            cells,
            output,
            note,
            python,
            max_load=math.inf if max_load is None else max_load,
            machine=str(machine) if machine else None,
        )
        tables = comparison_tables(measured)
        if results is not None:
            write_between_marks(results, "tables", tables)
        say(tables)


if __name__ == "__main__":
    app()
