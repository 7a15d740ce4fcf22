"""Generation as HTML: what prompts and later tokens cost, part by part and token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aero.mpc import drawing
from aero.mpc.report_tables import stack_text

if TYPE_CHECKING:
    from aero.mpc.generation import GenerationReport
    from aero.mpc.profiles import ComputeProfile, NetworkProfile

# More rows are for the CSV file.
_MOST_ROWS = 200


def generation_page(
    found: GenerationReport,
    network: str | NetworkProfile | None = None,
    compute: str | ComputeProfile = "paper-testbed",
) -> str:
    """A whole document: bars of prompts and later tokens, a row per token; maybe seconds.

    Args:
        found: What `aero.mpc.simulate_generation` returned.
        network: Adds the time of every token on it.
        compute: The machines behind that time.

    Example:
        >>> from aero import mpc
        >>> found = mpc.simulate_generation("SM", model="tiny", new_tokens=3)
        >>> mpc.generation_page(found).count("<tr")
        4
    """
    return drawing.page(f"Generation with {found.spec.label}", _body(found, network, compute))


def generation_fragment(found: GenerationReport) -> str:
    """The same for a notebook."""
    return drawing.fragment(_body(found, None, "paper-testbed"))


def _body(
    found: GenerationReport,
    network: str | NetworkProfile | None,
    compute: str | ComputeProfile,
) -> str:
    prompts = {kind: cost.comm_bytes / 1e9 for kind, cost in found.prefill.by_kind.items()}
    later = {
        kind: cost.comm_bytes / 1e9 - prompts.get(kind, 0.0) for kind, cost in found.by_kind.items()
    }
    bars = {"prompts, first token of each": prompts}
    if found.new_tokens > 1:
        bars[f"the other {found.new_tokens - 1:,} tokens of each"] = later
    about = (
        f"{found.new_tokens:,} new tokens for each of {found.batch:,} prompts of "
        f"{found.spec.context_length:,} tokens, stack {stack_text(found.prefill)}, "
        f"{found.sampling}: {found.comm_bytes / 1e9:,.3f} GB, {found.flights:,} flights"
    )
    parts = [
        drawing.paragraphs([about]),
        drawing.stacked_bars(bars, "GB"),
        drawing.legend(prompts, later),
    ]
    seconds = None if network is None else found.seconds_per_token(network, compute)
    if seconds is not None:
        timed = found.prefill.latency(network or "", compute)
        machines = f"network {timed.network.name}, compute {timed.compute.name}"
        minutes = f"{sum(seconds) / 60:,.2f} minutes on {machines}, one operation after the other"
        parts.append(drawing.paragraphs([minutes]))
    rows = []
    for token, cost in enumerate(found.per_token[:_MOST_ROWS]):
        row = {
            "token": str(token + 1),
            "keys": f"{found.spec.context_length + token:,}",
            "MB": f"{cost.comm_bytes / 1e6:,.2f}",
            "flights": f"{cost.flights:,}",
        }
        rows.append(row if seconds is None else row | {"seconds": f"{seconds[token]:,.1f}"})
    parts.append(drawing.table(rows))
    if found.new_tokens > _MOST_ROWS:
        parts.append(drawing.paragraphs([f"and {found.new_tokens - _MOST_ROWS:,} more"]))
    return "".join(parts)
