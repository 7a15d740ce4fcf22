"""Networks as files that need none of this library: for private inference and for others' Python.

`export_weights` writes plain matrices with a description, `aero.export.numpy_forward` computes
logits from them without torch; `export_remote_code` writes a folder that `transformers` loads
without this package.

Example:
    >>> import tempfile
    >>> from pathlib import Path
    >>> import aero
    >>> config = aero.AeroConfig.from_label("SM+ScFuFFN", model="tiny")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = aero.export_weights(aero.AeroForCausalLM(config), folder)
    ...     sorted(path.name for path in Path(folder).iterdir())
    ['network.json', 'weights.safetensors']
"""

from __future__ import annotations

import importlib
from typing import Any

# Public name -> module that defines it.
_EXPORTS = {
    "export_remote_code": "aero.export.remote_code",
    "export_weights": "aero.export.weights_folder",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'aero.export' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
