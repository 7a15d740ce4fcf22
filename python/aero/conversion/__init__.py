"""Turning trained networks into cheaper ones that compute the same."""

from aero.conversion.folding import fold_norm

__all__ = ["fold_norm"]
