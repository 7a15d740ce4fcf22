"""A change of a private pass with its price: seconds on a link, and memory of each party."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from aero import _core
from aero.mpc.changes import Change
from aero.mpc.cost import FieldValue
from aero.mpc.cost_report import CostReport
from aero.mpc.party_memory import memory_of, share_bytes
from aero.mpc.profiles import ComputeProfile, NetworkProfile
from aero.mpc.simulation import network_on


@dataclass(frozen=True)
class Advised:
    """A change with its price.

    Attributes:
        change: What changes.
        report: The pass with it.
        seconds: Of that pass.
        fields: Of the stack, all that were set, with slices that the given memory needs.
        share_bytes: A party's shares of the weights.
        memory_bytes: What a party takes, at most; None where that is known of no run.
        fits: Whether that fits the given memory, or else the shares.
        sliced: It does in slices of large products, which send more.
    """

    change: Change
    report: CostReport
    seconds: float
    fields: Mapping[str, FieldValue]
    share_bytes: float
    memory_bytes: float | None
    fits: bool
    sliced: bool = False


class Room(NamedTuple):
    """The place where passes are priced: a link, machines, and the memory of each party."""

    network: NetworkProfile
    compute: str | ComputeProfile
    memory_bytes: float | None
    context: int

    def priced(self, given: Any, change: Change, **keywords: Any) -> Advised:
        """A change of a network, in as few slices of large products as memory needs."""
        network, described, stack = network_on(given, **keywords)
        report = CostReport.of(network, described, stack, _core.simulate(network.core, stack))
        memory = memory_of(network, report, self.context, change.keeps)
        most = math.inf if self.memory_bytes is None else self.memory_bytes
        cut = memory and memory.in_slices(most)
        if cut and cut is not memory:
            whole = self._replace(memory_bytes=None)
            keywords["largest_product"] = cut.largest_product
            return replace(whole.priced(given, change, **keywords), sliced=True)
        rate, wait = change.link
        link = replace(
            self.network,
            uplink_mbps=self.network.uplink_mbps * rate,
            downlink_mbps=self.network.downlink_mbps * rate,
            round_trip_seconds=self.network.round_trip_seconds * wait,
        )
        shares = share_bytes({"operations": change.keeps or network.core.operations}, described)
        fields = {name: keywords[name] for name in keywords if name in report.stack_fields}
        return Advised(
            change, report, report.latency(link, self.compute).seconds, fields, shares,
            memory.run_bytes() if memory else None, bool(cut) if memory else shares <= most,
        )  # fmt: skip
