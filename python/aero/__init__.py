"""AERO: softmax-only language models with entropy-regularized attention.

Importing `aero` imports neither torch nor the native libraries; each part loads on first use, and
what `transformers` has to know is registered once both are imported.

Example:
    >>> import aero, torch
    >>> config = aero.AeroConfig.from_label("EReg(SM(t)+ScFuFFN)", model="tiny")
    >>> model = aero.AeroForCausalLM(config)
    >>> output = model(torch.tensor([[1, 2, 3, 4]]))
    >>> output.logits.shape, len(output.entropies), output.entropies[0].shape
    (torch.Size([1, 4, 256]), 2, torch.Size([1, 2, 4]))
    >>> round(aero.mpc.simulate("SM+ScFuFFN", model="gpt2").comm_bytes / 1e9, 2)
    6.34
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from aero._registration import register_with_transformers

if TYPE_CHECKING:
    from aero.architecture import ArchitectureSpec as ArchitectureSpec

__version__ = "0.1.0"

# Public name -> module that defines it. No submodule bears the name of an exported function.
_EXPORTS = {
    "AeroConfig": "aero.models",
    "AeroForCausalLM": "aero.models",
    "ArchitectureSpec": "aero.architecture",
    "absorb_ffn": "aero.conversion",
    "convert": "aero.conversion",
    "EntropyCallback": "aero.train",
    "entropies": "aero.models",
    "export_remote_code": "aero.export",
    "export_weights": "aero.export",
    "fold_layernorm": "aero.conversion",
    "fold_norm": "aero.conversion",
    "fuse_ffn": "aero.conversion",
    "prune_ffn": "aero.conversion",
    "remove_layernorm": "aero.conversion",
    "replace_activation": "aero.conversion",
    "with_entropy_penalty": "aero.models",
}
_SUBMODULES = (
    "analysis", "architecture", "conversion", "export", "fixed_point", "models", "mpc", "nn", "ops",
    "private", "report", "reproduction", "train",
)  # fmt: skip

__all__ = ["__version__", *sorted(_EXPORTS), *_SUBMODULES]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    if name in _SUBMODULES:
        return importlib.import_module(f"aero.{name}")
    raise AttributeError(f"module 'aero' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


register_with_transformers()
