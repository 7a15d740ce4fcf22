"""Measures cells in the private environment, one JSON file each.

A cell that has its file is not measured again: a run that was killed goes on where it was.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from measured_grid import Cell, NetworkCell, predicted_cost

from aero.internals.atomic_files import write_json_atomically
from aero.mpc.cost import Cost
from aero.mpc.simulation import described_spec
from aero.private.environment import private_command
from aero.private.prediction import predicted_costs, resolution, total_cost
from aero.private.settings import PrivateSettings

__all__ = [
    "QUICK_RESOLUTION",
    "RESOLUTION",
    "SET_UP",
    "measure",
    "run_worker",
    "runs_for",
    "set_up_key",
]

# The result of the first thing that a group does.
SET_UP = "set-up"

# Resolution to which operations are repeated, see `aero.private.prediction`.
RESOLUTION, QUICK_RESOLUTION = 0.004, 0.01
# Further runs would only show the chance of an extension.
_MOST_RUNS = 32
# So many copies of an operation make one program.
_COPIES = 16
# Passes of a network are averaged up to so many, to this resolution.
_PASSES, _NETWORK_RESOLUTION = 3, 0.0015


def measure(
    cells: Iterable[Cell],
    networks: Iterable[NetworkCell],
    folder: Path,
    export: Callable[[NetworkCell, Path], None],
    *,
    wanted: float = RESOLUTION,
    python: Path | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> None:
    """Measures the cells without a result in the folder.

    Args:
        cells: operations.
        networks: whole networks.
        folder: of the results, one JSON file per cell.
        export: writes a network with random weights to a folder, as `aero export` does.
        wanted: resolution of an operation's average.
        python: of the private environment; default: the one that is found.
        progress: called with each cell's name when it is measured.

    Raises:
        PrivateEnvironmentError: there is no private environment.
        RuntimeError: a measurement failed; says how.
    """
    folder.mkdir(parents=True, exist_ok=True)
    groups: dict[str, dict[str, Any]] = {}
    both: list[Cell | NetworkCell] = [*cells, *networks]
    for cell in both:
        if (folder / f"{cell.key}.json").exists():
            continue
        group = groups.setdefault(
            json.dumps(cell.settings, sort_keys=True),
            {
                "settings": cell.settings,
                "folder": str(folder),
                "set_up": set_up_key(cell.settings),
                "cells": [],
            },
        )
        group["cells"].append(_described(cell, folder, wanted))
    for group in groups.values():
        for network in networks:
            wanted_now = network.settings == group["settings"]
            if wanted_now and not _exported(network, folder).exists():
                export(network, _exported(network, folder))
        run_worker(group, folder, python, progress)


def runs_for(cost: Cost, wanted: float) -> int:
    """How many runs bring the resolution to `wanted`, 32 at most.

    Powers of two, and four at least below 10 MB: then triples for 1,024 products and multiples of
    them are whole refills.
    """
    count = 4 if cost.comm_bytes < 1e7 else 1
    while count < _MOST_RUNS and resolution(cost, count) > wanted:
        count *= 2
    return count


def set_up_key(settings: dict[str, Any]) -> str:
    """The name of the file with the set-up under these settings."""
    return "-".join([SET_UP, *(f"{name}{value}".lower() for name, value in settings.items())])


def _described(cell: Cell | NetworkCell, folder: Path, wanted: float) -> dict[str, Any]:
    if isinstance(cell, NetworkCell):
        settings = PrivateSettings.from_dict(cell.settings)
        costs = predicted_costs(described_spec(cell.spec), cell.tokens, settings)
        whole = total_cost(cost for name, cost in costs.items() if name != SET_UP)
        runs = min(_PASSES, runs_for(whole, _NETWORK_RESOLUTION))
        return {
            "key": cell.key, "name": cell.name, "export": str(_exported(cell, folder)),
            "tokens": cell.tokens, "runs": runs,
        }  # fmt: skip
    count = runs_for(predicted_cost(cell), wanted)
    repeats = min(count, _COPIES)
    return {
        "key": cell.key, "name": cell.name, "operation": cell.operation, "sizes": cell.sizes,
        "repeats": repeats, "runs": min(8, math.ceil(count / repeats)),
    }  # fmt: skip


def _exported(cell: NetworkCell, folder: Path) -> Path:
    plain = NetworkCell(cell.label, cell.model, cell.sizes, cell.tokens)
    return folder / "networks" / plain.key


def run_worker(
    group: dict[str, Any], folder: Path, python: Path | None, progress: Callable[[str], None]
) -> None:
    """Has `measure_worker.py` measure the cells of one job."""
    job = folder / "job.json"
    write_json_atomically(job, group)
    command = [
        *private_command(str(Path(__file__).with_name("measure_worker.py")), python),
        str(job),
    ]
    with (folder / "worker.log").open("w+") as log:
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert worker.stdout is not None
        try:
            for line in worker.stdout:
                progress(line.rstrip("\n"))
            if worker.wait() != 0:
                log.seek(0)
                last = (log.read().strip().splitlines() or ["no message"])[-1]
                raise RuntimeError(f"private: measuring failed ({worker.returncode}): {last}")
        finally:
            worker.kill()
            worker.wait()
    job.unlink()
