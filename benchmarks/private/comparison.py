"""Networks run privately over several links: their bytes and seconds, next to the prediction.

One cell is one forward pass of one network over one link with one set of settings. Cells are kept
in a file of JSON, so that an interrupted comparison continues where it stopped.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aero import mpc
from aero.architecture import ArchitectureSpec
from aero.internals.atomic_files import write_json_atomically
from aero.internals.machine import processor
from aero.mpc.simulation import described_spec
from aero.network.description import layer_count
from aero.network.files import read_network
from aero.private.compute.calls import Party, Traffic
from aero.private.parties.job import Generated, check_runnable, check_tokens
from aero.private.parties.two_processes import generate_over
from aero.private.prediction import (
    machine_profiles,
    network_fields,
    pieces_of,
    predicted_durations,
    predicted_operations,
    total_cost,
)
from aero.private.settings import PrivateSettings
from aero.reading import UnreadableFileError, printable, read_json, shown
from aero.tables import in_units

# Of both parties' computing, one thread each; where the parties share processors it is an estimate.
COMPUTE = "spu-epyc"
# An average over a minute needs three to forget twenty busy processes.
_QUIET_SECONDS = 600.0

# A measured cell in the file; predictions are written again.
_KEPT: dict[str, Any] = {
    "cell": {
        **dict.fromkeys(("num_layers", "width", "num_heads", "vocab_size", "length"), int),
        **{"label": str, "link": str, "changes": dict, "threads": int, "gelu?": str},
    },
    "spec": dict,
    **dict.fromkeys(("client_bytes", "server_bytes", "processors"), int),
    **dict.fromkeys(("seconds", "load_before", "load_after"), float),
    "cpu_seconds": {"client?": float, "server?": float},
    "pieces": [{"name": str, "seconds": float}],
    **dict.fromkeys(("processor", "measured_at"), str),
}


@dataclass(frozen=True)
class Cell:
    """One forward pass to measure.

    Attributes:
        folder: of `export_weights`.
        length: T, tokens of the prompt.
        link: as `aero private run --link` names it.
        changes: settings other than the defaults.
        threads: of each party.
    """

    folder: Path
    length: int
    link: str
    changes: dict[str, Any]
    threads: int = 1

    @property
    def settings(self) -> PrivateSettings:
        """Settings of both parties."""
        return PrivateSettings.from_dict({"threads": self.threads, **self.changes})


def compare_networks(
    cells: Sequence[Cell],
    output: Path,
    say: Callable[[str], None],
    python: Path | None = None,
    *,
    max_load: float = math.inf,
    machine: str | None = None,
) -> list[dict[str, Any]]:
    """Measures the cells that the file does not hold yet.

    Args:
        cells: to be measured, in order; none: only the predictions become new.
        output: JSON file; measured cells of it are kept, new ones written as they come. What is
            predicted of its cells is always the simulator's present word.
        say: called with each beginning and its outcome.
        python: of the private environment.
        max_load: cells that were measured while the machine had more to do are measured again,
            after up to ten minutes of waiting until it has less.
        machine: file of `aero private calibrate` that the seconds are predicted with.

    Returns:
        Every cell of the file, as JSON values.

    Raises:
        PartyError: a run failed; the cells before it are in the file.
        ValueError: a network that cannot be run, or tokens that do not fit.
    """
    described = [_described(cell) for cell in cells]
    kept = _kept(output) if output.exists() else []
    for number, (cell, (identity, spec)) in enumerate(zip(cells, described, strict=True), 1):
        places = [place for place, found in enumerate(kept) if found["cell"] == identity]
        if any(_load(kept[place]) <= max_load for place in places):
            continue
        say(f"{number} of {len(cells)}: {_name(identity)}")
        _wait_for_quiet(max_load, say)
        found = {"cell": identity, "spec": spec, **_measured(cell, python)}
        say(f"{in_units(_sent(found), 'MB', 1)} MB, {found['seconds']:.1f} s")
        if places:
            kept[places[0]] = found
        else:
            kept.append(found)
        _write(output, kept)
    for found in kept:
        found |= predicted(found["spec"], found["cell"], machine)
    _write(output, kept)
    return kept


def predicted(
    spec: dict[str, Any], cell: dict[str, Any], machine: str | None = None
) -> dict[str, Any]:
    """The simulator's prediction of a cell, set-up and weights left out as in the measurement.

    Args:
        spec: of the network, fields of `ArchitectureSpec`.
        cell: as `compare_networks` describes one: length, link, changes, threads, and "gelu" where
            the network's is the exact one.
        machine: file of `aero private calibrate`; default: `COMPUTE`, and nothing of the loopback.
    """
    settings = PrivateSettings.from_dict({"threads": cell["threads"], **cell["changes"]})
    described = described_spec(
        ArchitectureSpec.from_dict(spec), exact_gelu=cell.get("gelu") == "erf"
    )
    operations = predicted_operations(described, cell["length"], settings)
    link = cell["link"]
    if machine is None or link == "memory":
        on_a_wire = link not in {"memory", "tcp"}
        network = mpc.network_profile(link if on_a_wire else "lan-1gbps")
        compute = mpc.compute_profile(machine or COMPUTE, threads=cell["threads"])
    else:
        on_a_wire = True
        network, compute = machine_profiles(machine, link, cell["threads"])
    durations = predicted_durations(operations, network, compute)
    rounds = dict.fromkeys(durations, 0.0)
    for piece, each in zip(pieces_of(operations), operations, strict=True):
        rounds[piece] += each.cost.rounds
    parts: dict[str, dict[str, float]] = {}
    for piece, duration in durations.items():
        part = parts.setdefault(part_of(piece), {"rounds": 0.0, "wire_seconds": 0.0})
        part["rounds"] += rounds[piece]
        part["wire_seconds"] += (duration.total_ns - duration.compute_ns) / 1e9 * on_a_wire
    whole = total_cost(each.cost for each in operations)
    computing = sum(each.compute_ns for each in durations.values()) / 1e9
    waiting = sum(each.total_ns - each.compute_ns for each in durations.values()) / 1e9
    return {
        "predicted_client_bytes": whole.client_bytes,
        "predicted_server_bytes": whole.server_bytes,
        "predicted_rounds": whole.rounds,
        "predicted_compute_seconds": computing,
        "predicted_seconds": computing + waiting * on_a_wire,
        "predicted_parts": parts,
    }


def part_of(piece: str) -> str:
    """The part of a network that a piece of a run belongs to; the likeliest count as the argmax.

    Example:
        >>> from comparison import part_of
        >>> part_of("layer 3"), part_of("head"), part_of("top-k")
        ('layers', 'head', 'argmax')
    """
    return "layers" if piece.startswith("layer ") else {"top-k": "argmax"}.get(piece, piece)


def _wait_for_quiet(max_load: float, say: Callable[[str], None]) -> None:
    end = time.monotonic() + _QUIET_SECONDS
    if os.getloadavg()[0] > max_load:
        say(f"waiting until the machine's load of {os.getloadavg()[0]:.1f} is {max_load:g}")
    while os.getloadavg()[0] > max_load and time.monotonic() < end:
        time.sleep(5)


def _load(found: dict[str, Any]) -> float:
    return float(max(found["load_before"], found["load_after"]))


def _sent(found: dict[str, Any]) -> int:
    return int(found["client_bytes"] + found["server_bytes"])


def _kept(output: Path) -> list[dict[str, Any]]:
    """The cells of the file."""
    cells: list[dict[str, Any]] = read_json(output, {"cells": [_KEPT]})["cells"]
    for place, found in enumerate(cells):
        least = min(_sent(found), found["seconds"])
        if least <= 0:
            raise UnreadableFileError(
                f"{printable(str(output))}: cells[{place}]: expected bytes and seconds above 0, "
                f"got {shown(least)}"
            )
    return cells


def _write(output: Path, cells: list[dict[str, Any]]) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    write_json_atomically(output, {"cells": cells})


def _described(cell: Cell) -> tuple[dict[str, Any], dict[str, Any]]:
    """The identity of a cell, and the network's specification."""
    description = read_network(cell.folder).description
    check_runnable(description)
    check_tokens(_prompt(cell), 1, description)
    spec = description["spec"]
    identity = {
        "label": description["label"],
        "num_layers": layer_count(description),
        "width": spec["width"],
        "num_heads": spec["num_heads"],
        "vocab_size": spec["vocab_size"],
        "length": cell.length,
        "link": cell.link,
        "changes": cell.changes,
        "threads": cell.threads,
        **network_fields(description),
    }
    return identity, spec


def _prompt(cell: Cell) -> list[int]:
    """Any values: costs do not depend on them."""
    return [index % 7 for index in range(cell.length)]


def network_name(described: dict[str, Any]) -> str:
    """The difference of a network of one size from the others.

    Example:
        >>> from comparison import network_name
        >>> network_name({"label": "SM+LN+G", "gelu": "erf"})
        'SM+LN+G, exact GELU'
    """
    exact = ", exact GELU" if described.get("gelu") == "erf" else ""
    return f"{described['label']}{exact}"


def _name(described: dict[str, Any]) -> str:
    changes = "".join(f", {key}={value}" for key, value in described["changes"].items())
    network = network_name(described)
    return f"{network}, {described['length']} tokens over {described['link']}{changes}"


def _measured(cell: Cell, python: Path | None) -> dict[str, Any]:
    before = os.getloadavg()[0]
    found: Generated = generate_over(
        cell.link, cell.folder, _prompt(cell), 1, cell.settings, lambda index, call: None, python
    )
    traffic = sum((call.traffic for call in found.calls[0]), Traffic())
    return {
        "client_bytes": traffic.client_bytes,
        "server_bytes": traffic.server_bytes,
        "client_messages": traffic.client_messages,
        "server_messages": traffic.server_messages,
        "seconds": sum(call.seconds for call in found.calls[0]),
        "cpu_seconds": {
            party.name.lower(): found.cpu_seconds[party][0]
            for party in Party
            if party in found.cpu_seconds
        },
        "preparation": {
            call.name: {"bytes": call.traffic.comm_bytes, "seconds": call.seconds}
            for call in found.preparation
        },
        "pieces": [
            {
                "name": call.name,
                "client_bytes": call.traffic.client_bytes,
                "server_bytes": call.traffic.server_bytes,
                "seconds": call.seconds,
            }
            for call in found.calls[0]
        ],
        "load_before": before,
        "load_after": os.getloadavg()[0],
        "processors": len(os.sched_getaffinity(0)),
        "processor": processor(),
        "measured_at": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
    }
