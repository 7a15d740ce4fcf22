"""All single changes that advice prices: of network, run, protocol, prompt and link."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aero.architecture import ArchitectureSpec
from aero.families.values import REVEALED
from aero.mpc.changes import (
    NONE,
    Change,
    attention_changes,
    described_changes,
    run_changes,
    spec_changes,
)
from aero.mpc.cost import FieldValue
from aero.mpc.described_stacks import stack_description
from aero.mpc.generation import private_fields
from aero.mpc.own_networks import Operations, description_of, predicts_next
from aero.mpc.padding import Longer
from aero.mpc.priced_network import PricedNetwork
from aero.mpc.simulation import described_spec, network_on

# The families of protocols.
PROTOCOLS = ("spu-0.9.5", "openbumblebee", "spu-semi2k", "spu-aby3")


def every_change(
    source: ArchitectureSpec | Mapping[str, Any],
    network: PricedNetwork,
    stack: str,
    given: Mapping[str, FieldValue],
) -> list[Change]:
    """The single changes of a pass.

    Args:
        source: The network, as a spec of ours or as its description.
        network: The same, as it is priced.
        stack: What runs now.
        given: Fields of the stack that the user changed; they hold on other stacks that have them.
    """
    length, next_token = network.sizes["context_length"], predicts_next(network.core.operations)
    if isinstance(source, ArchitectureSpec):
        networks = spec_changes(source)
        described: Mapping[str, Any] = {"label": source.label, **described_spec(source)}
    else:
        networks, described = described_changes(source), source
    changes = [*run_changes(next_token=next_token), *networks]
    changes += attention_changes(described, length)
    trust = stack_description(stack).trust
    for name in PROTOCOLS:
        other = stack_description(name)
        trusts = other.trust
        effect = NONE if trusts == trust else f"{NONE}; other parties are trusted"
        fields = private_fields(name, next_token=next_token)
        fields |= {field: value for field, value in given.items() if other.takes(field, value)}
        changes += [Change(f"{name} ({trusts})", effect, fields, stack=name)]
    changes = [one for one in changes if not one.stack or one.stack != stack]
    if length > 1:
        shorter = f"{length // 2} instead of {length} tokens"
        changes.append(Change(shorter, "shorter prompt", keys=length // 2))
    return [
        *changes,
        Change("ten times the bandwidth", link=(10.0, 1.0)),
        Change("a tenth of the round trip", link=(1.0, 0.1)),
    ]


def revealed_routing(given: Any, stack: str, **keywords: Any) -> list[Change]:
    """A mixture whose choice of experts both parties see, in a list; empty for all else.

    Arguments are `simulate`'s.
    """
    try:
        network, _, _ = network_on(given, stack=stack, **{**keywords, REVEALED: True})
    except ValueError:  # no configuration of a mixture
        return []
    name = "a token's own experts alone"
    effect, seen = f"{NONE}; both parties see the routing", description_of(network)
    return [Change(name, effect, network=seen, keeps=kept_operations(given, stack, **keywords))]


def kept_operations(given: Any, stack: str, **keywords: Any) -> Operations:
    """The operations whose weights a party keeps: of all experts, whoever sees the routing."""
    hidden = {name: value for name, value in keywords.items() if name != REVEALED}
    network, _, _ = network_on(given, stack=stack, **hidden)
    return network.core.operations


def padding(one: Longer) -> Change:
    """A longer context that is cheaper."""
    hidden = f"{NONE}; a mask must hide the added tokens" if one.masked else NONE
    return Change(f"pad T to {one.keys}", hidden, keys=one.keys)
