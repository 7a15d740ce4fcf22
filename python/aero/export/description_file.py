"""`network.json` of an export, read and checked, as it may come from a stranger.

Needs neither torch nor NumPy, as the file itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aero.reading import UnreadableFileError, checked, read_json, shown

_AFFINE = ({"weight": str, "bias": str | None}, None)
_LAYER_NORM = {"kind": str, "weight": str, "bias": str | None, "epsilon": float}
_DYNAMIC = {"kind": str, "weight": str, "bias": str | None, "alpha": str, "shift": str | None}
_NORM = (_LAYER_NORM, {"kind": str, "scale": str}, _DYNAMIC, None)
_ATTENTION = {
    "num_heads": int,
    "head_dim": int,
    "score_scale": float,
    "inverse_temperature": str | None,
    **dict.fromkeys(("query", "key", "value", "output"), _AFFINE),
    "shape_factors": ({"identity": str, "softmax": str, "uniform": str}, None),
}
_FEED_FORWARD = {
    "activation": str | None,
    "negative_slope": float | None,
    "stream_factor": float,
    "output_factor": float,
    "matrices": [_AFFINE],
}
_NETWORK = {
    "label": str,
    "spec": {"context_length": int, "vocab_size": int, "width": int, "num_heads": int},
    "token_embedding": str,
    "embedding_scale": float,
    "position_embedding": str | None,
    "rotary": ({"channels": int, "base": float}, None),
    "layers": [
        {
            "residual": str,
            "norm_1": _NORM,
            "attention": _ATTENTION,
            "norm_2": _NORM,
            "feed_forward": (_FEED_FORWARD, None),
        }
    ],
    "final_norm": _NORM,
    "head": {"weight": str, "transposed": bool, "bias": str | None},
    "tensors": dict,
    "weights?": {"file": str, "sha256": str},
}
# The texts of a description that name no tensor.
_WORDS = {"kind", "residual", "activation"}


def read_description(folder: str | Path) -> dict[str, Any]:
    """Reads the `network.json` of a folder.

    Args:
        folder: from `aero.export_weights` or `aero private publish`.

    Returns:
        Its content; every tensor that a part names is described.

    Raises:
        UnreadableFileError: it is missing, damaged, or of another format or version.
    """
    path = Path(folder) / "network.json"
    described: dict[str, Any] = read_json(path)
    found = (described.get("format"), described.get("version"))
    if found != ("aero-network", 1):
        raise UnreadableFileError(f"{path}: expected an aero-network 1, got {shown(found)}")
    checked(described, _NETWORK, str(path))
    tensors = described["tensors"]
    for name, tensor in tensors.items():
        sizes = checked(tensor, {"shape": [int]}, f"{path}: tensor {shown(name)}")["shape"]
        if any(size < 0 for size in sizes):
            raise UnreadableFileError(f"{path}: expected sizes >= 0 of {shown(name)}, got {sizes}")
    named = (described[part] for part in ("token_embedding", "position_embedding", "final_norm"))
    for name in _texts([*named, described["layers"], described["head"]]):
        if name not in tensors:
            raise UnreadableFileError(f"{path}: expected a tensor {shown(name)}, got none")
    file = described.get("weights", {}).get("file", "weights")
    if Path(file).name != file:
        raise UnreadableFileError(f"{path}: weights.file: expected a plain name, got {shown(file)}")
    return described


def _texts(value: Any, key: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, entry in value.items():
            yield from _texts(entry, name)
    elif isinstance(value, list):
        for entry in value:
            yield from _texts(entry, key)
    elif isinstance(value, str) and key not in _WORDS:
        yield value
