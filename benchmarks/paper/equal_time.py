"""Networks that take about equally long, compared by perplexity: the paper's Figure 1.

The figure is one of those that the study makes again, and no other module compares at equal time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class TimedNetwork:
    """A network with its time and quality.

    Attributes:
        label: The network.
        seconds: Of one private forward pass.
        perplexity: Measured.
    """

    label: str
    seconds: float
    perplexity: float


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
        """The change from `network` to `best`, as a fraction; negative is better."""
        return self.best.perplexity / self.network.perplexity - 1 if self.best else None

    @property
    def time_ratio(self) -> float | None:
        """Seconds of `best` over seconds of `network`."""
        return self.best.seconds / self.network.seconds if self.best else None

    def cells(self) -> dict[str, str]:
        """A row of a table."""
        network, best = self.network, self.best
        cells = {
            "network": network.label,
            "minutes": f"{network.seconds / 60:.2f}",
            "perplexity": f"{network.perplexity:.2f}",
            "best that takes as long": "none" if best is None else best.label,
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
        networks: With their times.
        within: How much more or less time counts as equal, as a fraction.

    Raises:
        ValueError: If `within` is not a number from 0 to 1.
    """
    if not 0 <= within <= 1:
        raise ValueError(f"equal time: within must be a number from 0 to 1, got {within}")
    everyone = list(networks)
    return tuple(EqualTime(network, _best(network, everyone, within)) for network in everyone)


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
