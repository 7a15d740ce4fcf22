"""`aero private compare`: networks side by side, measured and predicted."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from aero.cli.cost_arguments import settings
from aero.cli.errors import end_on_termination, note, one_line_errors
from aero.cli.private import exported


def compare(
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="RUN_OR_EXPORT...", help="Run folders or exports, baseline first."),
    ],
    output: Annotated[
        Path, typer.Option(help="JSON file; what it holds is not measured again.")
    ] = Path("runs/private/comparison.json"),
    tokens: Annotated[int, typer.Option(help="Length of the prompt.")] = 32,
    link: Annotated[
        list[str] | None,
        typer.Option(help="memory, tcp or a network, see `aero private run`; may be repeated."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUE[,...]",
            help="Measure with these settings too; may be repeated. See `aero private run --set`.",
        ),
    ] = None,
    threads: Annotated[int, typer.Option(help="Of each party.")] = 1,
    results: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the tables to this file.")
    ] = None,
) -> None:
    """Measures bytes and seconds of one forward pass per network, link and option.

    Interrupted, the same command continues. The tables have every cell of the file.
    """
    from aero.private.party_errors import PartyError

    with one_line_errors(ValueError, OSError, PartyError), contextlib.ExitStack() as stack:
        from aero.atomic_files import write_bytes_atomically
        from aero.private.comparison import Cell, compare_networks
        from aero.private.comparison_tables import comparison_tables
        from aero.private.environment import find_private_python

        end_on_termination()
        folders = [stack.enter_context(exported(source)) for source in sources]
        cells = [
            Cell(folder, tokens, each, changes, threads)
            for each in link or ["tcp"]
            for changes in [{}, *(settings(given.split(",")) for given in option or [])]
            for folder in folders
        ]
        measured = compare_networks(cells, output, note, find_private_python())
        tables = comparison_tables(measured)
        if results is not None:
            write_bytes_atomically(results, tables.encode())
        typer.echo(tables)
