"""The family of protocols that wins on a link: seconds, dollars, bytes per 1,000 tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from aero.mpc.cost_report import CostReport
from aero.mpc.described_stacks import stack_description
from aero.mpc.every_change import PROTOCOLS
from aero.mpc.generation import private_fields, simulate_generation
from aero.mpc.latency import Latency
from aero.mpc.own_networks import predicts_next
from aero.mpc.party_memory import share_bytes
from aero.mpc.priced_network import lowerings_of, of_each
from aero.mpc.profiles import ComputeProfile, NetworkProfile
from aero.mpc.simulation import described_spec, network_and_fields, simulate
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
        parties: How many machines are paid.
        share_bytes: A party's shares of the weights, the least that it keeps in memory.
    """

    stack: str
    first: CostReport
    later: CostReport | None
    parties: int
    share_bytes: float

    def seconds(self, network: NetworkProfile, compute: str | ComputeProfile) -> tuple[float, ...]:
        """The seconds of the first pass and of a later one."""
        both = (self.first, self.later)
        return tuple(one.latency(network, compute).seconds for one in both if one is not None)


def passes(given: Any, stacks: Sequence[str] = PROTOCOLS, **keywords: Any) -> list[Passes]:
    """Prices a network on each family as `aero private chat` computes; arguments of `simulate`."""
    sizes = {name: keywords.get(name) for name in ("context_length", "vocab_size")}
    model = keywords.get("model", "gpt2")
    found = []
    for stack in stacks:
        network, _ = network_and_fields(
            given, model, **sizes, stack=stack_description(stack), overrides={}
        )
        fields = private_fields(stack, next_token=predicts_next(network.core.operations))
        later = None
        if network.causal:
            made = simulate_generation(given, new_tokens=2, stack=stack, **fields | keywords)
            first, later = made.prefill, made.token_report(1)
        else:  # an encoder, or a classifier: one pass
            first = simulate(given, stack=stack, **fields | keywords)
        operations = (
            described_spec(network.spec) if network.spec is not None
            else {"operations": network.core.operations}
        )  # fmt: skip
        trust = stack_description(stack).trust
        found.append(
            Passes(
                stack, first, later, 3 if "three parties" in trust else 2,
                share_bytes(operations, stack),
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

    lowerings = lowerings_of((one.stack, one.first.lowerings) for one in found)
    return {"notes": of("notes"), "unchecked": of("unchecked"), "lowerings": lowerings}


def dollar_table(path: str | Path | None = None) -> dict[str, Any]:
    """What a machine and a byte cost; None: the assumed table of the package."""
    if path is None:
        name = "dollars.yaml"
        content = resources.files("aero").joinpath("data", name).read_bytes()
        return dict(checked(parse_yaml(content, name), _DOLLARS, name))
    return dict(checked(read_yaml(Path(path)), _DOLLARS, str(path)))


def dollars(one: CostReport, seconds: float, parties: int, table: dict[str, Any]) -> float:
    """The price of one pass: all parties' machines while it runs, and the bytes that leave them."""
    sent = (one.comm_bytes + one.total.dealer_bytes) / 1e9 * table["gigabyte_sent"]
    return float(sent + seconds / 3600 * parties * table["machine_hour"])


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
