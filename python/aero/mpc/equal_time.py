"""Networks that take about equally long, compared by perplexity: the paper's Figure 1."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from aero.mpc.network_sweep import SweepResult


@dataclass(frozen=True)
class TimedNetwork:
    """A network with its time and quality.

    Attributes:
        label: The network.
        where: Its differences from others of that label: sizes, stack, optimizations.
        seconds: Of one private forward pass.
        perplexity: Measured; of several runs their mean.
        runs: How many.
    """

    label: str
    where: str
    seconds: float
    perplexity: float
    runs: int = 1

    @property
    def name(self) -> str:
        """The label and its differences from others."""
        return " ".join(filter(None, (self.label, self.where)))


@dataclass(frozen=True)
class EqualTime:
    """A network next to the best other one that takes about as long.

    Attributes:
        network: The one compared.
        best: Of the other labels within the bounds the one with the lowest perplexity; None where
            there is none.
    """

    network: TimedNetwork
    best: TimedNetwork | None

    @property
    def perplexity_change(self) -> float | None:
        """Of `best` against `network`, as a fraction; negative is better."""
        return self.best.perplexity / self.network.perplexity - 1 if self.best else None

    @property
    def time_ratio(self) -> float | None:
        """Seconds of `best` over seconds of `network`."""
        return self.best.seconds / self.network.seconds if self.best else None

    def to_dict(self) -> dict[str, object]:
        """As JSON-ready values."""
        return {
            "network": asdict(self.network),
            "best": None if self.best is None else asdict(self.best),
            "time_ratio": self.time_ratio,
            "perplexity_change": self.perplexity_change,
        }

    def cells(self) -> dict[str, str]:
        """A row of a table."""
        network, best = self.network, self.best
        cells = {
            "network": network.name,
            "minutes": f"{network.seconds / 60:.2f}",
            "perplexity": f"{network.perplexity:.2f}",
            "best that takes as long": "none" if best is None else best.name,
        }
        if best is None:
            return cells
        return cells | {
            "its minutes": f"{best.seconds / 60:.2f}",
            "its perplexity": f"{best.perplexity:.2f}",
            "change": f"{100 * (self.perplexity_change or 0.0):+.1f} %",
        }


def compare_at_equal_time(
    networks: Iterable[TimedNetwork], *, within: float = 0.1
) -> tuple[EqualTime, ...]:
    """Every network next to the best of the others that take about as long.

    Args:
        networks: Such as from `timed_rows`.
        within: How much more or less time counts as equal, as a fraction.

    Raises:
        ValueError: If `within` is not a number from 0 to 1.
    """
    if not 0 <= within <= 1:
        raise ValueError(f"equal time: within must be a number from 0 to 1, got {within}")
    everyone = list(networks)
    return tuple(EqualTime(network, _best(network, everyone, within)) for network in everyone)


def timed_rows(found: SweepResult, network: str) -> list[TimedNetwork]:
    """The rows of a sweep that have a perplexity; runs of one network become their mean.

    Raises:
        ValueError: If the sweep was not timed on this network, or no row has a perplexity.
    """
    rows = [row for row in found.rows if row.perplexity is not None]
    if not rows:
        raise ValueError("equal time: the sweep must have runs with a perplexity, got none")
    if network not in rows[0].seconds:
        known = ", ".join(rows[0].seconds) or "none"
        raise ValueError(f"equal time: network must be one of the sweep's ({known}), got {network}")
    varying = [name for name in rows[0].values if len({row.values.get(name) for row in rows}) > 1]
    members: dict[tuple[str, str, float], list[float]] = {}
    for row in rows:
        where = ", ".join(f"{name}={row.values[name]}" for name in varying)
        key = (row.label, where, row.seconds[network])
        members.setdefault(key, []).append(row.perplexity or math.nan)
    return [
        TimedNetwork(label, where, seconds, math.fsum(values) / len(values), len(values))
        for (label, where, seconds), values in members.items()
    ]


def _best(
    network: TimedNetwork, others: Iterable[TimedNetwork], within: float
) -> TimedNetwork | None:
    near = (
        other
        for other in others
        if other.label != network.label
        and abs(other.seconds - network.seconds) <= within * network.seconds
    )
    return min(near, key=lambda other: other.perplexity, default=None)
