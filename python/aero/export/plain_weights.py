"""A network as plain matrices and a description of how they are joined, as files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from safetensors.numpy import save
from torch import nn

from aero.internals.atomic_files import (
    require_no_run,
    write_bytes_atomically,
    write_json_atomically,
)
from aero.models.foreign_writer import describe_model
from aero.network.description import DESCRIPTION_FILE, WEIGHTS_FILE, Network


def export_weights(model: nn.Module, folder: str | Path) -> Path:
    """Writes a network so that any program can compute its logits.

    ``weights.safetensors`` holds plain matrices [in, out]; ``network.json`` lists the operations
    that join them, and says in words what each computes (`meaning`). `aero.network.numpy_reader` is
    a reader of both in NumPy. Weight norms are multiplied out, foldable norms are one factor per
    channel from their running statistics (none left after `aero.fold_norm`), temperatures are
    inverted, one per head and position. The network is that of evaluation mode.

    Args:
        model: an `AeroForCausalLM`, a GPT-2, Pythia or nanoGPT network (see
            `aero.models.causal_lm.carry_over`), or a model of transformers of one of the families
            of `aero.models.foreign_writer.describe_model`, such as Llama.
        folder: made if missing. Files in it are replaced, the description last; it holds the
            weights' SHA-256, so that a reader never joins files of two exports.

    Returns:
        The folder.

    Raises:
        ValueError: a network of another kind.
        OSError: the folder cannot be written.

    Example:
        >>> from aero import export_weights
        >>> import tempfile
        >>> from aero.models import AeroConfig, AeroForCausalLM
        >>> model = AeroForCausalLM(AeroConfig.from_label("SM(t)+ScFuFFN", model="tiny"))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = export_weights(model, folder)
        ...     sorted(file.name for file in path.iterdir())
        ['network.json', 'weights.safetensors']
    """
    return write_network(describe_model(model), Path(folder))


def write_network(network: Network, folder: Path) -> Path:
    """Writes a described network; arguments, result and errors as of `export_weights`."""
    require_no_run(folder, "export")
    folder.mkdir(parents=True, exist_ok=True)
    weights = save(network.tensors)
    write_bytes_atomically(folder / WEIGHTS_FILE, weights)
    file = {"file": WEIGHTS_FILE, "sha256": hashlib.sha256(weights).hexdigest()}
    write_json_atomically(folder / DESCRIPTION_FILE, {**network.description, "weights": file})
    return folder
