"""Networks as files that need none of this library: for private inference and for others' Python.

`export_weights` writes plain matrices with a description, `aero.network.numpy_reader` computes
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

from aero.internals.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
