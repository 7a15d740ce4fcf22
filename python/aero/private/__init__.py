"""Exported networks run privately: between two parties, under SecretFlow SPU with Cheetah.

What computes imports jax and spu, whose pins fit no environment with torch: it runs in one of its
own, which `make private` sets up, as a child process of the functions here. They need nothing but
NumPy. `aero private` is their command.

Example:
    >>> from aero import private
    >>> from aero.architecture import ArchitectureSpec
    >>> described = {"spec": ArchitectureSpec.from_label("SM+ScFuFFN", model="tiny").to_dict()}
    >>> both = private.PrivateSettings(), private.PrivateSettings(private_weights=True)
    >>> shared, known = (private.predicted_pieces(described, 16, each) for each in both)
    >>> sum(known["layer 0"]) < sum(shared["layer 0"])
    True
"""

from __future__ import annotations

import importlib
from typing import Any

# Public name -> module that defines it.
_EXPORTS = {
    "Call": "aero.private.parties",
    "Generated": "aero.private.job",
    "Party": "aero.private.parties",
    "PartyError": "aero.private.party_errors",
    "PartyJob": "aero.private.party",
    "PassReport": "aero.private.run_reports",
    "PrivateEnvironmentError": "aero.private.environment",
    "PrivateSettings": "aero.private.settings",
    "RunReport": "aero.private.run_reports",
    "TimeLimits": "aero.private.supervision",
    "Traffic": "aero.private.parties",
    "ask": "aero.private.party",
    "find_private_python": "aero.private.environment",
    "generate_over_tcp": "aero.private.two_processes",
    "generate_privately": "aero.private.job",
    "predicted_pieces": "aero.private.prediction",
    "run_report": "aero.private.run_reports",
    "serve": "aero.private.party",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'aero.private' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
