"""AERO: softmax-only language models with entropy-regularized attention.

Importing `aero` imports neither torch nor the native libraries; each part loads on first use, and
what `transformers` and a notebook have to know is registered with them.

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

from aero.internals.lazy_exports import lazy_exports
from aero.internals.registration import register_with_notebooks, register_with_transformers

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
__all__.append("__version__")

register_with_transformers("aero.models")
register_with_notebooks("aero.report.cost_pages")
