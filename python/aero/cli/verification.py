"""`aero verify`: whether the files of run folders are unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aero.cli.errors import one_line_errors, say


def verify(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders with some.")
    ],
) -> None:
    """Compares checkpoints, network, settings and records with their checksums.

    One line per problem; ends with 1 if there is any, with 0 if all is whole.
    """
    with one_line_errors():
        from aero.reading import printable
        from aero.train.verifying import run_problems, runs_below

        damaged = False
        for run in runs_below(runs):
            problems = run_problems(run)
            damaged = damaged or bool(problems)
            for line in problems or [f"{printable(str(run))}: whole"]:
                say(line)
        if damaged:
            raise typer.Exit(1)
