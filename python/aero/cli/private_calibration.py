"""`aero private calibrate`: the speed of this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aero.cli.errors import end_on_termination, note, one_line_errors, say

if TYPE_CHECKING:
    from aero.private.measuring.calibration import NetworkCell


def calibrate(
    output: Annotated[
        Path,
        typer.Option(
            metavar="FILE.json",
            help="For `aero private run --machine`, and `aero cost --network` and `--compute`.",
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
        from aero.internals.atomic_files import write_json_atomically
        from aero.private.environment import find_private_python
        from aero.private.measuring.calibration import calibrate, processors_taken_by_others

        if output.suffix != ".json":
            raise ValueError(f"private: --output must end with .json, got {output}")
        end_on_termination()
        if not busy:
            _check_quiet(processors_taken_by_others())
        found = calibrate(export_random, note, find_private_python())
        others = found.processors_taken_by_others
        if not busy:
            _check_quiet(others)
        output.parent.mkdir(parents=True, exist_ok=True)
        write_json_atomically(output, found.to_dict())
        say(
            f"{found.source}; {_load(others)}\n"
            f"rates explain the processor seconds of the networks within "
            f"{100 * found.mean_miss:.0f} % on average"
        )


def _load(others: float) -> str:
    return f"others kept {others:.2f} of {os.cpu_count()} processors busy"


def _check_quiet(others: float) -> None:
    from aero.private.measuring.calibration import QUIET_PROCESSORS

    if not others <= QUIET_PROCESSORS:
        raise ValueError(
            f"private: calibrate needs a quiet machine, at most {QUIET_PROCESSORS:g} processors "
            f"busy with other work, but {_load(others)}; wait, or give --busy to use processor "
            "seconds alone"
        )


def export_random(cell: NetworkCell, folder: Path) -> None:
    """A network with random weights, as `aero export` writes it."""
    import torch

    from aero.export import export_weights
    from aero.models import AeroConfig, AeroForCausalLM

    torch.manual_seed(0)
    config = AeroConfig.from_label(cell.label, model=cell.model, **cell.sizes)
    export_weights(AeroForCausalLM(config), folder)
