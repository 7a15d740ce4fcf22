"""Exported networks run privately: between two or three parties, under SecretFlow SPU.

The computing parts import jax and spu, whose pins fit no environment with torch. They run as a
child process of the functions here, in an environment of their own that `make private` sets up.
The functions need nothing but NumPy. `aero private` is their command.

Example:
    >>> from aero import private
    >>> from aero.architecture import ArchitectureSpec
    >>> from aero.mpc.simulation import described_spec
    >>> from aero.private.prediction import predicted_costs
    >>> described = described_spec(ArchitectureSpec.from_label("SM+ScFuFFN", model="tiny"))
    >>> both = private.PrivateSettings(), private.PrivateSettings(private_weights=True)
    >>> shared, known = (predicted_costs(described, 16, each) for each in both)
    >>> known["layer 0"].comm_bytes < shared["layer 0"].comm_bytes
    True
"""

from __future__ import annotations

from aero.internals.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
