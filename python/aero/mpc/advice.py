"""What to change: single changes of a private pass, by the seconds and bytes that each saves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from aero.architecture import ArchitectureSpec
from aero.mpc.changes import (
    NONE,
    TRAINING,
    Change,
    attention_changes,
    described_changes,
    run_changes,
    spec_changes,
)
from aero.mpc.cost import FieldValue
from aero.mpc.cost_report import CostReport
from aero.mpc.described_stacks import stack_description
from aero.mpc.given_networks import is_folder, preset_named
from aero.mpc.padding import padded_lengths
from aero.mpc.profiles import ComputeProfile, NetworkProfile
from aero.mpc.simulation import described_spec, network_and_fields, simulate

# The stacks of `aero private`, with the setting that chooses them.
_RUNS = {
    "spu-0.9.5": "",
    "spu-semi2k": " --set protocol=semi2k",
    "spu-aby3": " --set protocol=aby3",
}
# Of SPU; each trusts other parties.
PROTOCOLS = ("spu-0.9.5", "openbumblebee", "spu-semi2k", "spu-aby3")
# Families that `aero convert` takes.
_CONVERTED = ("gpt2", "gpt_neox")


@dataclass(frozen=True)
class Advised:
    """A change with its price.

    Attributes:
        change: What changes.
        report: The pass with it.
        seconds: Of that pass.
        fits: Whether a party's shares of the weights fit the given memory.
    """

    change: Change
    report: CostReport
    seconds: float
    fits: bool = True


@dataclass(frozen=True)
class Advice:
    """All changes of one pass.

    Attributes:
        report: The pass as it is.
        seconds: Of it.
        network: The link.
        rows: Single changes, those that save most seconds first.
        as_it_is: All settings of a run that save, none of which needs training.
        networks: Those and another network that a command takes, the fastest first.
        share_bytes: A party's shares of the weights, the least that it keeps.
    """

    report: CostReport
    seconds: float
    network: NetworkProfile
    rows: tuple[Advised, ...]
    as_it_is: Advised
    networks: tuple[Advised, ...]
    share_bytes: float

    @property
    def trained(self) -> Advised | None:
        """The fastest of `networks`; None where none is faster."""
        return self.networks[0] if self.networks else None

    def commands(self, source: str, model: str = "gpt2") -> list[str]:
        """The configuration in the words of the commands that take it.

        Args:
            source: What is priced, as typed: a label, a preset's name or a folder.
            model: The preset of a label.
        """
        chosen = self.trained or self.as_it_is
        stack = chosen.report.description.base
        lines = []
        label = self.trained.change.label if self.trained else ""
        if label:
            preset = "" if is_folder(source) else preset_named(source) or model
            lines.append(f"aero train --label '{label}'{self._sizes(preset)}")
            if preset or self.report.spec is not None or self.report.label in _CONVERTED:
                folder = "FOLDER" if preset else source
                lines.append(f"aero convert {folder} --label '{label}' --output converted")
        settings = "".join(f" --set {k}={_word(v)}" for k, v in chosen.change.fields.items())
        run = f"aero cost show NETWORK --stack {stack}"
        if stack in _RUNS:
            run = f"aero private run RUN{_RUNS[stack]}"
        return [*lines, run + settings]

    def _sizes(self, preset: str) -> str:
        sizes: dict[str, object] = {"preset": preset}
        if not preset:
            sizes = {name: self.report.sizes[name] for name in ("num_layers", "num_heads", "width")}
        return "".join(f" --set model.{name}={size}" for name, size in sizes.items())

    def to_dict(self) -> dict[str, Any]:
        """Everything ready for JSON."""
        return {
            "label": self.report.label,
            "stack": self.report.stack,
            "trust": self.report.trust,
            "network": self.network.to_dict(),
            "comm_bytes": self.report.comm_bytes,
            "seconds": self.seconds,
            "share_bytes": self.share_bytes,
            "changes": [self._row(one) for one in self.rows],
            "as_it_is": self._row(self.as_it_is),
            "trained": None if self.trained is None else self._row(self.trained),
            "networks": [self._row(one) for one in self.networks],
        }

    def _row(self, one: Advised) -> dict[str, Any]:
        return {
            "change": one.change.name,
            "effect": one.change.effect,
            "fields": dict(one.change.fields),
            "label": one.change.label,
            "stack": one.report.stack,
            "comm_bytes": one.report.comm_bytes,
            "saved_bytes": self.report.comm_bytes - one.report.comm_bytes,
            "seconds": one.seconds,
            "saved_seconds": self.seconds - one.seconds,
            "fits": one.fits,
        }


def link_profile(rtt_ms: float, mbps: float) -> NetworkProfile:
    """A link of a round trip and a rate, both directions at once."""
    return NetworkProfile(
        uplink_mbps=mbps,
        downlink_mbps=mbps,
        round_trip_seconds=rtt_ms / 1000,
        software_seconds=0.0,
        full_duplex=True,
        name=f"{mbps:g} Mbit/s, {rtt_ms:g} ms",
    )


def advise(
    given: Any,
    network: NetworkProfile,
    compute: str | ComputeProfile = "spu-epyc",
    *,
    stack: str = "spu-0.9.5",
    memory_bytes: float | None = None,
    **keywords: Any,
) -> Advice:
    """Prices single changes of a pass, and what they come to together.

    Args:
        given: As of `simulate`.
        network: The link.
        compute: The machines.
        stack: What runs now.
        memory_bytes: Of each party.
        **keywords: Of `simulate`: `model`, `context_length`, `vocab_size`, and fields.
    """
    base = simulate(given, stack=stack, **keywords)
    source = base.spec if base.spec is not None else _description(given, stack, keywords)
    length = base.sizes["context_length"]
    changed = base.changed_fields()
    exact = None
    if isinstance(source, ArchitectureSpec) and changed.get("gelu") == "erf":
        exact = _exact(source)
    fields = {k: v for k, v in changed.items() if k != "gelu"}

    def price(change: Change) -> Advised | None:
        given = source if change.network is None else change.network
        # A spec alone has GELU's tanh form.
        if exact is not None and isinstance(given, ArchitectureSpec):
            given = _exact(given)
        try:
            return _priced(given, change, network, compute, stack, length, fields, memory_bytes)
        except ValueError:  # the stack has no such field, or the network no such length
            return None

    own = price(Change("as it is"))
    assert own is not None
    changes = _changes(source, stack, length)
    if exact is not None:
        changes += [one for one in described_changes(exact) if one.effect != TRAINING]
    rows = [one for change in changes if (one := price(change))]
    kept = sorted(
        (one for one in rows if one.report.comm_bytes < own.report.comm_bytes
         or one.seconds < own.seconds),
        key=lambda one: one.seconds,
    )  # fmt: skip
    together: dict[str, FieldValue] = {}
    for one in kept:
        if one.change.fields and one.change.runs and one.change.effect != TRAINING:
            together |= one.change.fields
    as_it_is = price(Change("all settings of the run", NONE, together)) or own
    networks = [
        one
        for row in kept
        if row.change.label  # that a command takes
        and (one := price(replace(row.change, fields=together))) is not None
        and one.seconds < as_it_is.seconds
    ]
    return Advice(
        own.report, own.seconds, network, tuple(kept), as_it_is,
        tuple(sorted(networks, key=lambda one: one.seconds)), share_bytes(source, stack),
    )  # fmt: skip


def _description(given: Any, stack: str, keywords: dict[str, Any]) -> dict[str, Any]:
    sizes = {name: keywords.get(name) for name in ("context_length", "vocab_size")}
    network, _ = network_and_fields(given, "gpt2", **sizes, stack=stack_description(stack),
                                    overrides={})  # fmt: skip
    return {
        "label": network.label,
        "operations": network.core.operations,
        "context_length": network.positions or network.sizes["context_length"],
        "vocab_size": network.sizes["vocab_size"],
    }


def _exact(spec: ArchitectureSpec) -> dict[str, Any]:
    return {"label": spec.label, **described_spec(spec, exact_gelu=True)}


def _changes(source: Any, stack: str, length: int) -> list[Change]:
    if isinstance(source, ArchitectureSpec):
        networks, described = (
            spec_changes(source),
            {"label": source.label, **described_spec(source)},
        )
    else:
        networks, described = described_changes(source), source
    changes = [*run_changes(), *networks, *attention_changes(described, length)]
    changes += [
        Change(f"{name} ({stack_description(name).trust})", "none; other parties are trusted",
               stack=name)
        for name in PROTOCOLS if name != stack
    ]  # fmt: skip
    if length > 1:
        changes.append(
            Change(f"{length // 2} instead of {length} tokens", "of a shorter prompt",
                   keys=length // 2)
        )  # fmt: skip
    changes += [Change(f"pad T to {keys}", keys=keys) for keys in padded_lengths(length)]
    changes += [
        Change("ten times the bandwidth", link=(10.0, 1.0)),
        Change("a tenth of the round trip", link=(1.0, 0.1)),
    ]
    return changes


def _priced(
    given: Any,
    change: Change,
    network: NetworkProfile,
    compute: str | ComputeProfile,
    stack: str,
    length: int,
    fields: Mapping[str, FieldValue],
    memory_bytes: float | None,
) -> Advised:
    on = change.stack or stack
    changed: dict[str, Any] = {**({} if change.stack else fields), **change.fields}
    report = simulate(given, stack=on, context_length=change.keys or length, **changed)
    rate, wait = change.link
    link = replace(
        network,
        uplink_mbps=network.uplink_mbps * rate,
        downlink_mbps=network.downlink_mbps * rate,
        round_trip_seconds=network.round_trip_seconds * wait,
    )
    fits = memory_bytes is None or share_bytes(given, on) <= memory_bytes
    return Advised(change, report, report.latency(link, compute).seconds, fits)


def share_bytes(given: ArchitectureSpec | Mapping[str, Any], stack: str) -> float:
    """A party's shares of the weights: a word each, of ABY3 two. SecureNN's third has none."""
    operations = (
        described_spec(given)["operations"]
        if isinstance(given, ArchitectureSpec)
        else given["operations"]
    )
    words = 2 if stack_description(stack).base == "spu-aby3" else 1
    return 8.0 * words * sum(_weights(entry) for entry in operations)


def _weights(entry: Mapping[str, Any]) -> int:
    if "repeat" in entry:
        return int(entry["repeat"]) * sum(_weights(one) for one in entry["operations"])
    if entry["op"] == "linear":
        return 0 if entry.get("transposed") else int(entry["in"]) * int(entry["out"])
    return int(entry["rows"]) * int(entry["width"]) if entry["op"] == "embed" else 0


def _word(value: FieldValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
