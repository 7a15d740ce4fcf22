"""The cost of one private forward pass, operation by operation; importable without torch.

Two parties, semi-honest: SecretFlow SPU with the Cheetah protocol, or OpenBumbleBee. Matrix
products and elementwise products run under RLWE encryption, comparisons and truncations by
oblivious transfer. The formulas, each with its source, are in `csrc/mpc`. No byte is fitted; the
five rates behind the minutes of `paper-testbed` are.

Example:
    >>> from aero import mpc
    >>> report = mpc.simulate("SM+ScFuFFN")
    >>> round(report.comm_bytes / 1e9, 2), report.rounds
    (6.34, 8502)
"""

from __future__ import annotations

from aero.internals.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
