"""Reads the files of a described network: `network.json` and its weights.

`read_description` needs neither torch nor NumPy.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from aero.network.checks import check_description
from aero.network.description import DESCRIPTION_FILE, FORMAT, VERSION, Description, Network
from aero.reading import (
    UnreadableFileError,
    checked,
    library_errors,
    read_bytes,
    read_json,
    shown,
)

# A file of more than a terabyte is no network's.
_MOST_BYTES = 2**40


def read_network(folder: str | Path) -> Network:
    """Reads a folder of `aero.export_weights`.

    Raises:
        ValueError: a missing or damaged file, another format or version, weights of another
            export, or numbers that are not finite.
    """
    import numpy as np
    import safetensors.numpy

    folder = Path(folder)
    description = read_description(folder)
    name = str(folder / DESCRIPTION_FILE)
    file = checked(description, {"weights": dict}, name)["weights"]
    content = read_bytes(folder / file["file"], _MOST_BYTES)
    if hashlib.sha256(content).hexdigest() != file["sha256"]:
        raise ValueError(
            f"read_network: {folder / file['file']} is not the file that network.json describes; "
            "export the network again"
        )
    with library_errors(folder / file["file"], "safetensors"):
        tensors = safetensors.numpy.load(content)
    described = {name: tensor["shape"] for name, tensor in description["tensors"].items()}
    found = {name: list(tensor.shape) for name, tensor in tensors.items()}
    if found != described:
        differing = sorted(k for k in {*found, *described} if found.get(k) != described.get(k))[0]
        raise UnreadableFileError(
            f"{name}: tensor {shown(differing)}: expected the shape of the weights' file, "
            f"{found.get(differing)}, got {described.get(differing)}"
        )
    network = Network(description, {k: v.astype(np.float64) for k, v in tensors.items()})
    _check_numbers(network, str(folder / file["file"]))
    return network


def _check_numbers(network: Network, where: str) -> None:
    import numpy as np

    for name, tensor in network.tensors.items():
        if not np.isfinite(tensor).all():
            raise UnreadableFileError(
                f"{where}: expected finite numbers in {shown(name)}, got others"
            )
    for one in network.operations():
        if one.op == "scores" and one["temperature"] and not one["per_position"]:
            name = one.weights["inverse_temperature"]
            if not np.all(network.tensors[name] == network.tensors[name][:, :1]):
                raise UnreadableFileError(
                    f"{where}: expected one temperature per head in {shown(name)}, got others"
                )


def read_description(folder: str | Path) -> dict[str, Any]:
    """Reads the `network.json` of a folder, which may come from a stranger.

    Args:
        folder: from `aero.export_weights` or `aero private publish`.

    Returns:
        Its content. Every operation is known and has its fields, every value is written before it
        is read, and every weight is described in the shape that its operation needs.

    Raises:
        UnreadableFileError: it is missing, damaged, or of another format or version.
    """
    path = Path(folder) / DESCRIPTION_FILE
    described: Description = read_json(path)
    found = (described.get("format"), described.get("version"))
    if found == (FORMAT, 1):
        raise UnreadableFileError(
            f"{path}: expected an {FORMAT} {VERSION}, got version 1, which an earlier release "
            "wrote; export the network again"
        )
    if found != (FORMAT, VERSION):
        raise UnreadableFileError(f"{path}: expected an {FORMAT} {VERSION}, got {shown(found)}")
    check_description(described, str(path))
    file = described.get("weights", {}).get("file", "weights")
    if Path(file).name != file or file in ("", ".."):
        raise UnreadableFileError(f"{path}: weights.file: expected a plain name, got {shown(file)}")
    return described
