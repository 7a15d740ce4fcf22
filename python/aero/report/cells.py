"""Cells of a report's tables that need more than one number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aero.report import text

__all__ = ["perplexity_cell", "quarters_cell"]


def perplexity_cell(entry: Mapping[str, Any], *, places: bool = True) -> str:
    """Returns perplexity with its spread, or how the runs ended, or that nothing was evaluated.

    Without `places`, layer and head of a NaN are left out.
    """
    endings = list(dict.fromkeys(run["ending"] for run in entry["runs"] if run["ending"]))
    if not places:
        endings = [ending.split(" (")[0] for ending in endings]
    if entry["perplexity"] is None:
        evaluated = any(run["evaluated"] for run in entry["runs"])
        return "; ".join(endings) or ("not finite" if evaluated else "not evaluated")
    cell = text.with_spread(entry["perplexity"])
    finished = len(entry["perplexity"]["values"])
    return cell + (
        f" ({finished} of {len(entry['runs'])}; {'; '.join(endings)})" if endings else ""
    )


def quarters_cell(entry: Mapping[str, Any], reference: str = "log_context") -> str:
    """Returns the shares of heads per entropy quarter in per cent, lowest first."""
    if not entry["entropy"]:
        return "-"
    shares = entry["entropy"]["quarters"][reference]
    return " / ".join(f"{100 * share:.0f}" for share in shares)
