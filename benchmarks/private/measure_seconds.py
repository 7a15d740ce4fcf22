"""Seconds of six private networks over loopback, next to those that a calibration predicts.

    python benchmarks/private/measure_seconds.py --output runs/private/seconds --results PAGE.md

Needs the private environment (`make private`) and an idle machine, for eight minutes. Writes
machine.json, of the calibration, and seconds.json. Interrupted, the command goes on with the same
calibration.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from comparison import Cell, compare_networks
from comparison_tables import write_between_marks

from aero.cli.errors import note, one_line_errors, say
from aero.cli.private_calibration import export_random
from aero.internals.atomic_files import write_json_atomically
from aero.private.environment import find_private_python
from aero.private.measuring.calibration import NetworkCell, calibrate
from aero.private.party_errors import PartyError
from aero.tables import markdown_table

# They differ from the calibrated ones in layers, labels, widths, vocabularies and lengths.
NETWORKS = tuple(
    NetworkCell(
        label,
        "mini",
        {"num_layers": layers, "width": width, "num_heads": 4, "vocab_size": vocabulary},
        tokens,
    )
    for label, layers, width, vocabulary, tokens in (
        ("SM+LN+G", 2, 128, 1024, 32),
        ("SM+FN+R", 2, 128, 1024, 32),
        ("SM+LN+R", 2, 128, 512, 48),
        ("SM+FN+G", 1, 256, 1024, 40),
        ("EReg(SM(t)+ScFuFFN)", 4, 192, 256, 24),
        ("SM+ScFuFFN", 3, 96, 2000, 20),
    )
)
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def measure(
    output: Annotated[Path, typer.Option(help="Folder of machine.json and seconds.json.")],
    results: Annotated[
        Path, typer.Option(help="Page whose <!-- seconds --> gets the table; made if missing.")
    ],
) -> None:
    """Calibrates, measures the networks, and writes the table."""
    with one_line_errors(ValueError, OSError, PartyError), tempfile.TemporaryDirectory() as folder:
        python = find_private_python()
        output.mkdir(parents=True, exist_ok=True)
        machine = output / "machine.json"
        if not machine.exists():
            found = calibrate(export_random, note, python)
            if not found.quiet:
                others = found.processors_taken_by_others
                raise ValueError(f"private: the machine must be idle, others kept {others} busy")
            write_json_atomically(machine, found.to_dict())
        cells = []
        for number, network in enumerate(NETWORKS):
            place = Path(folder) / str(number)
            export_random(network, place)
            cells.append(Cell(place, network.tokens, "tcp", {}))
        measured = compare_networks(
            cells, output / "seconds.json", note, python, machine=str(machine)
        )
        table = seconds_table(measured)
        write_between_marks(results, "seconds", table)
        say(table)


def seconds_table(cells: list[dict[str, Any]]) -> str:
    """A row per network."""
    rows = [
        [
            cell["cell"]["label"],
            *(
                f"{cell['cell'][name]:,}"
                for name in ("num_layers", "width", "vocab_size", "length")
            ),
            f"{cell['seconds']:.1f}",
            f"{cell['predicted_seconds']:.1f}",
            f"{cell['predicted_seconds'] / cell['seconds']:.2f}",
            *(f"{cell['cpu_seconds'][party]:.1f}" for party in ("client", "server")),
            f"{cell['load_before']:.0f} to {cell['load_after']:.0f}",
        ]
        for cell in cells
    ]
    head = (
        "network, layers, width, vocabulary, tokens, measured, predicted, ratio, client's processor"
    )
    return markdown_table([*head.split(", "), "server's", "load"], rows)


if __name__ == "__main__":
    app()
