"""`aero private calibrate` and `compare`: rates of this machine, networks next to predictions."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aero.cli.arguments import decimal, settings, whole
from aero.cli.errors import end_on_termination, note, one_line_errors, say
from aero.cli.private import Machine, check_machine, exported

if TYPE_CHECKING:
    from aero.private.measuring.calibration import NetworkCell


def calibrate(
    output: Annotated[
        Path,
        typer.Option(
            metavar="FILE.json",
            help="For `aero private run` and `compare --machine`, and `aero cost --network` and "
            "`--compute`.",
        ),
    ],
    busy: Annotated[
        bool,
        typer.Option(
            "--busy",
            help="Write the file even if other work keeps the processors busy: from processor "
            "seconds alone, without waiting.",
        ),
    ] = False,
) -> None:
    """Measures two networks between two processes, a minute on an idle machine.

    Their times and the simulator's counts give the rates of this machine. The file notes the
    machine, its load, and the error of the rates.
    """
    from aero.private.party_errors import PartyError

    with one_line_errors(ValueError, OSError, PartyError):
        from aero.atomic_files import write_json_atomically
        from aero.private.environment import find_private_python
        from aero.private.measuring.calibration import QUIET_PROCESSORS, calibrate

        if output.suffix != ".json":
            raise ValueError(f"private: --output must end with .json, got {output}")
        end_on_termination()
        found = calibrate(export_random, note, find_private_python())
        others, processors = found["processors_taken_by_others"], found["processors"]
        load = f"others kept {others:.2f} of {processors} processors busy"
        if not (found["quiet"] or busy):
            raise ValueError(
                f"private: calibrate needs a quiet machine, at most {QUIET_PROCESSORS:g} "
                f"processors busy with other work, but {load}; wait, or give --busy to use "
                "processor seconds alone"
            )
        output.parent.mkdir(parents=True, exist_ok=True)
        write_json_atomically(output, found)
        say(
            f"{found['source']}; {load}\n"
            f"rates explain the processor seconds of the networks within "
            f"{100 * found['mean_miss']:.0f} % on average"
        )


def export_random(cell: NetworkCell, folder: Path) -> None:
    """A network with random weights, as `aero export` writes it."""
    import torch

    from aero.export import export_weights
    from aero.models import AeroConfig, AeroForCausalLM

    torch.manual_seed(0)
    config = AeroConfig.from_label(cell.label, model=cell.model, **cell.sizes)
    export_weights(AeroForCausalLM(config), folder)


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
    tokens: Annotated[
        int, typer.Option(help="Length of the prompt.", callback=whole(1, 1 << 24))
    ] = 32,
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
    threads: Annotated[int, typer.Option(help="Of each party.", callback=whole(1, 4096))] = 1,
    max_load: Annotated[
        float | None,
        typer.Option(
            help="Repeat measurements that were made at a higher load of the machine.",
            callback=decimal(0, 1e6),
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
    from aero.private.party_errors import PartyError

    with one_line_errors(ValueError, OSError, PartyError), contextlib.ExitStack() as stack:
        from aero.private.environment import find_private_python
        from aero.private.measuring.comparison import Cell, compare_networks
        from aero.private.measuring.comparison_tables import comparison_tables, write_between_marks

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
