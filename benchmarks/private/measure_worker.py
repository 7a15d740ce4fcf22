"""The program of the private environment for `measure_bytes.py`.

Takes a file with the cells of one group of settings, both parties in this process, and writes a
file for each cell as soon as it is measured; cells that have one are passed over.
"""

from __future__ import annotations

import itertools
import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aero.internals.atomic_files import write_json_atomically
from aero.internals.machine import processor
from aero.network.files import read_network
from aero.network.numpy_reader import forward
from aero.private.compute.calls import Call, Party, Value
from aero.private.compute.in_process import InProcessParties
from aero.private.compute.inference import PrivateNetwork, set_up
from aero.private.settings import PrivateSettings
from aero.reading import read_json

# The private environment starts programs without their folder.
sys.path.insert(0, str(Path(__file__).parent))
from measured_functions import Measured, measured_operation

__all__ = ["main", "measure_network", "measure_operation"]


def main(job_file: str) -> None:
    """Does what the job says; the first thing is the set-up, once for all cells."""
    job = read_json(job_file)
    folder = Path(job["folder"])
    cells = [cell for cell in job["cells"] if not (folder / f"{cell['key']}.json").exists()]
    if not cells:
        return
    write_json_atomically(folder / "environment.json", _environment())
    # Its results are compared with exact ones.
    parties = InProcessParties(PrivateSettings.from_dict(job["settings"] | {"reveal": "all"}))
    try:
        set_up(parties)
        keys = folder / f"{job['set_up']}.json"
        if not keys.exists():
            write_json_atomically(keys, {"parts": {"set-up": _counts(parties.calls[-1:])}})
        _warm_up(parties)
        for cell in cells:
            measure = measure_network if "export" in cell else measure_operation
            write_json_atomically(folder / f"{cell['key']}.json", measure(parties, cell))
            print(cell["name"], flush=True)
    finally:
        parties.close()


def measure_operation(parties: InProcessParties, cell: dict[str, Any]) -> dict[str, Any]:
    """Bytes and CPU seconds of each run, and the distance from plain JAX.

    Small operations run `repeats` times in one program, on arguments of their own each.
    """
    sizes, repeats = tuple(cell["sizes"]), cell["repeats"]
    copies = [
        measured_operation(cell["operation"], sizes, parties.settings, seed)
        for seed in range(repeats)
    ]
    function = _repeated(copies[0].function)
    arguments = [[jnp.asarray(argument.array) for argument in copy.arguments] for copy in copies]
    values = [_put(parties, copy) for copy in copies]
    before = len(parties.calls)
    cpu_seconds = []
    for _ in range(cell["runs"]):
        start = time.process_time()
        results = parties.run(cell["operation"], function, values)
        cpu_seconds.append(time.process_time() - start)
        opened = [np.asarray(parties.reveal(r)) for r in jax.tree_util.tree_leaves(results)]
        parties.discard(results)
    expected = [np.asarray(r) for r in jax.tree_util.tree_leaves(function(arguments))]
    parties.discard(*itertools.chain(*values))
    calls = [call for call in parties.calls[before:] if call.name == cell["operation"]]
    return {
        "parts": {cell["operation"]: _counts(calls)},
        "cpu_seconds": cpu_seconds,
        "repeats": repeats,
        "largest_difference": _largest(opened, expected),
    }


def measure_network(parties: InProcessParties, cell: dict[str, Any]) -> dict[str, Any]:
    """Bytes of each piece of each forward pass."""
    network = read_network(cell["export"])
    computed = PrivateNetwork(parties, network)
    vocabulary = network.description["vocab_size"]
    tokens = np.random.default_rng(0).integers(0, vocabulary, cell["tokens"]).astype(np.int32)
    parts: dict[str, list[Call]] = {}
    for _ in range(cell["runs"]):
        found = computed.run(tokens[None])
        for call in found.calls:
            parts.setdefault(call.name, []).append(call)
    assert found.logits is not None
    exact = forward(network, tokens[None])[0]
    [logits] = found.logits
    return {
        "parts": {name: _counts(calls) for name, calls in parts.items()},
        "repeats": 1,
        "largest_difference": _largest([logits], [exact[-len(logits) :]]),
    }


def _warm_up(parties: InProcessParties) -> None:
    """Takes the first OTs in both directions, each of which makes an extension at once."""
    vector = parties.put("warm-up", np.ones(128, np.float32), Party.CLIENT)
    parties.discard(vector, parties.run("warm-up", lambda x: x > 0, vector))


def _environment() -> dict[str, str]:
    """The machine and the software of the measurement."""
    packages = {name: version(name) for name in ("spu", "jax", "numpy")}
    return {"python": platform.python_version(), **packages, "processor": processor()}


def _repeated(function: Callable[..., Any]) -> Callable[[Any], list[Any]]:
    return lambda copies: [function(*arguments) for arguments in copies]


def _put(parties: InProcessParties, measured: Measured) -> list[Value]:
    return [
        parties.put("argument", argument.array, argument.owner, private=argument.private)
        for argument in measured.arguments
    ]


def _counts(calls: list[Call]) -> dict[str, list[float]]:
    """Counts of each run."""
    return {
        "client_bytes": [call.traffic.client_bytes for call in calls],
        "server_bytes": [call.traffic.server_bytes for call in calls],
        "client_messages": [call.traffic.client_messages for call in calls],
        "server_messages": [call.traffic.server_messages for call in calls],
        "seconds": [call.seconds for call in calls],
    }


def _largest(found: list[Any], expected: list[Any]) -> float:
    """The largest difference of any element; booleans and integers differ by 0 or more."""
    return max(
        float(np.max(np.abs(np.asarray(f, np.float64) - np.asarray(e, np.float64))))
        for f, e in zip(found, expected, strict=True)
    )


if __name__ == "__main__":
    main(sys.argv[1])
