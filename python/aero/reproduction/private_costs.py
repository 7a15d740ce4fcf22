"""The cost of one private forward pass of a network, in every way that the results compare."""

from __future__ import annotations

from dataclasses import dataclass

from aero import mpc
from aero.architecture import ArchitectureSpec

__all__ = ["PrivateCost", "private_costs", "ways_to_price"]


@dataclass(frozen=True)
class PrivateCost:
    """One network priced in one way.

    Attributes:
        gigabytes: sent by both parties, 1e9 bytes, set-up included.
        setup_gigabytes: the part for the set-up of a session, paid once for many passes.
        minutes: on the paper's two machines and their network, set-up included.
    """

    gigabytes: float
    setup_gigabytes: float
    minutes: float


def ways_to_price() -> list[str]:
    """Returns the three stacks as published, then the optimized stacks.

    Example:
        >>> from aero.reproduction.private_costs import ways_to_price
        >>> ways_to_price()[0], ways_to_price()[-1]
        ('spu-2024', 'aero-approximate')
    """
    return [*mpc.stack_names(), *mpc.optimized_stack_names()]


def private_costs(spec: ArchitectureSpec) -> dict[str, PrivateCost]:
    """Prices a network; nothing is trained.

    Args:
        spec: the network at its own sizes.

    Returns:
        `ways_to_price()` -> cost of one pass over T tokens. Those for generation compute the last
        token's logits only.

    Example:
        >>> from aero import ArchitectureSpec
        >>> from aero.reproduction.private_costs import private_costs
        >>> baseline = private_costs(ArchitectureSpec.from_label("SM+LN+G", model="mini"))
        >>> round(baseline["spu-2024"].gigabytes, 2)
        2.64
    """
    found = {}
    for way in ways_to_price():
        report = mpc.simulate(spec, stack=way)
        found[way] = PrivateCost(
            gigabytes=report.comm_bytes / 1e9,
            setup_gigabytes=report.by_kind["setup"].comm_bytes / 1e9,
            minutes=report.latency().minutes,
        )
    return found
