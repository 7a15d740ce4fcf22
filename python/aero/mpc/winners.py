"""The family of protocols that wins on a link: seconds, dollars, bytes per 1,000 tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from aero.mpc.cost_report import CostReport
from aero.mpc.described_stacks import stack_description
from aero.mpc.every_change import PROTOCOLS, kept_operations
from aero.mpc.generation import private_fields, simulate_generation
from aero.mpc.latency import Latency
from aero.mpc.own_networks import predicts_next
from aero.mpc.party_memory import kept_tokens, memory_of, share_bytes
from aero.mpc.priced_network import lowerings_of, of_each
from aero.mpc.profiles import ComputeProfile, NetworkProfile
from aero.mpc.simulation import network_on, simulate
from aero.reading import checked, parse_yaml, read_yaml

_DOLLARS = {
    "format": int, "currency": str, "machine_hour": float | int, "gigabyte_sent": float | int,
    "source": str,
}  # fmt: skip


@dataclass(frozen=True)
class Passes:
    """One family: the pass over the prompt, and that of a later token with cached keys.

    Attributes:
        stack: The family.
        first: Over the prompt.
        later: Of the second token; None where the network does not generate.
        left_out: Fields of the user that the stack lacks.
        machines: How many are paid: the parties' and the dealer's.
        share_bytes: A party's shares of the weights, the least that it keeps in memory.
        memory_bytes: What a party takes in all, at most; None where that is known of no run.
    """

    stack: str
    first: CostReport
    later: CostReport | None
    left_out: tuple[str, ...]
    machines: int
    share_bytes: float
    memory_bytes: float | None

    def seconds(self, network: NetworkProfile, compute: str | ComputeProfile) -> tuple[float, ...]:
        """The seconds of the first pass and of a later one."""
        both = (self.first, self.later)
        return tuple(one.latency(network, compute).seconds for one in both if one is not None)


def passes(given: Any, stacks: Sequence[str] = PROTOCOLS, **keywords: Any) -> list[Passes]:
    """Prices a network on each family as `aero private chat` computes; arguments of `simulate`.

    Fields that some of the stacks lack hold on the others.
    """
    described = {stack: stack_description(stack) for stack in stacks}
    lacks = {
        stack: {
            name for name in keywords
            if name in one.all_fields() and not one.takes(name, keywords[name])
        }
        for stack, one in described.items()
    }  # fmt: skip
    for name in set.intersection(*lacks.values()):  # none has it, or none with that value
        described[stacks[0]].with_fields([(name, keywords[name])])
    found = []
    for stack in stacks:
        given_here = {name: keywords[name] for name in keywords if name not in lacks[stack]}
        network, _, _ = network_on(given, stack=stack, **given_here)
        next_token = predicts_next(network.core.operations)
        fields = private_fields(stack, next_token=next_token) | given_here
        later = None
        if network.causal:
            made = simulate_generation(given, new_tokens=2, stack=stack, **fields)
            first, later = made.prefill, made.token_report(1)
        else:  # an encoder, or a classifier: one pass
            first = simulate(given, stack=stack, **fields)
        kept = kept_operations(given, stack, **given_here)
        memory = memory_of(network, first, kept_tokens(given, network), kept)
        three = "three parties" in described[stack].trust or first.total.dealer_bytes > 0
        found.append(
            Passes(
                stack, first, later, tuple(sorted(lacks[stack])), 3 if three else 2,
                share_bytes({"operations": kept}, stack), memory.run_bytes() if memory else None,
            )
        )  # fmt: skip
    return found


def passes_words(found: Sequence[Passes]) -> dict[str, Any]:
    """What is to be said of the prices of all families, with those that it is said of."""

    def of(name: str) -> tuple[str, ...]:
        return of_each(
            (one.stack, getattr(report, name))
            for one in found
            for report in (one.first, one.later)
            if report is not None
        )

    without = of_each(
        (one.stack, [f"priced without {name}, which it lacks" for name in one.left_out])
        for one in found
    )
    lowerings = lowerings_of((one.stack, one.first.lowerings) for one in found)
    return {"notes": (*without, *of("notes")), "unchecked": of("unchecked"), "lowerings": lowerings}


def dollar_table(path: str | Path | None = None) -> dict[str, Any]:
    """What a machine and a byte cost; None: the assumed table of the package."""
    if path is None:
        name = "dollars.yaml"
        content = resources.files("aero").joinpath("data", name).read_bytes()
        return dict(checked(parse_yaml(content, name), _DOLLARS, name))
    return dict(checked(read_yaml(Path(path)), _DOLLARS, str(path)))


def dollars(one: CostReport, seconds: float, machines: int, table: dict[str, Any]) -> float:
    """The price of one pass: all machines while it runs, and the bytes that leave them."""
    sent = (one.comm_bytes + one.total.dealer_bytes) / 1e9 * table["gigabyte_sent"]
    return float(sent + seconds / 3600 * machines * table["machine_hour"])


def crossover_mbps(
    first: CostReport, second: CostReport, network: NetworkProfile, compute: str | ComputeProfile
) -> float | None:
    """The bandwidth of both directions at which two passes take equally long; None: none does.

    Below it the one with fewer bytes on its busiest link wins, above it the other.
    """
    timed = [one.latency(network, compute) for one in (first, second)]
    waits = [_seconds_without_bytes(one) for one in timed]
    # Of transfers alone: proportional to 1 / bandwidth.
    sends = [one.total.seconds - wait for one, wait in zip(timed, waits, strict=True)]
    faster, fewer = waits[1] - waits[0], sends[0] - sends[1]
    if faster == 0 or fewer / faster <= 0:
        return None
    return network.uplink_mbps * fewer / faster


def _seconds_without_bytes(timed: Latency) -> float:
    return float(timed.total.to_dict()["compute_seconds"] + timed.total.to_dict()["rounds_seconds"])
