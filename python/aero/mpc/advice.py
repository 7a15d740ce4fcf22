"""What to change: single changes of a private pass, by the seconds and bytes that each saves."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from aero.architecture import ArchitectureSpec
from aero.families.values import REVEALED
from aero.mpc.advised import Advised, Room
from aero.mpc.changes import APPROXIMATE, NONE, TRAINING, Change, described_changes
from aero.mpc.cost import FieldValue
from aero.mpc.cost_report import CostReport, words_of
from aero.mpc.every_change import every_change, kept_operations, padding, revealed_routing
from aero.mpc.given_networks import is_described, is_exported, is_folder, preset_named
from aero.mpc.own_networks import (
    CONVERTED,
    conversion,
    description_of,
    own_decoder,
    own_network,
    predicts_next,
    training,
    word_of,
)
from aero.mpc.padding import cheaper_lengths
from aero.mpc.party_memory import kept_tokens
from aero.mpc.priced_network import of_each
from aero.mpc.profiles import ComputeProfile, NetworkProfile, compute_profile, link_words
from aero.mpc.simulation import described_spec, network_on

# The stacks of `aero private`, with the setting that chooses them.
_RUNS = {
    "spu-0.9.5": "",
    "spu-semi2k": " --set protocol=semi2k",
    "spu-aby3": " --set protocol=aby3",
}
# Keywords of `simulate` that have options of their own.
_SIZES = ("model", "context_length", "vocab_size")


@dataclass(frozen=True)
class Advice:
    """All changes of one pass.

    Attributes:
        now: The pass as it is.
        network: The link.
        rows: Single changes that save seconds or bytes, those that save most seconds first.
        idle: The names of the others.
        as_it_is: All settings of a run that save and compute the same function for the same eyes.
        approximate: Those and the approximate ones that save; None where there is none.
        networks: All of those and another network that a command trains or converts, the fastest
            first.
        own: The network, where it is one of ours, a GPT-2 or a Pythia.
        exact_gelu: Its GELU is the exact one.
        runs: `aero private` runs it.
        exported: It runs it after `aero export`.
        compute: The machines.
        keywords: Of `simulate`, as they were given.
    """

    now: Advised
    network: NetworkProfile
    rows: tuple[Advised, ...]
    idle: tuple[str, ...]
    as_it_is: Advised
    approximate: Advised | None
    networks: tuple[Advised, ...]
    own: ArchitectureSpec | None
    exact_gelu: bool
    runs: bool
    exported: bool
    compute: ComputeProfile
    keywords: Mapping[str, FieldValue]

    @property
    def report(self) -> CostReport:
        """The pass as it is."""
        return self.now.report

    @property
    def seconds(self) -> float:
        """Seconds of that pass."""
        return self.now.seconds

    @property
    def trained(self) -> Advised | None:
        """The fastest of `networks`; None where none is faster."""
        return self.networks[0] if self.networks else None

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be said of the pass, and what its rows on other stacks add by name."""
        known = (*self.report.notes, *self.report.unchecked)
        others = [one.report for one in self.rows if one.change.stack]
        added = (
            (one.stack, [text for text in (*one.notes, *one.unchecked) if text not in known])
            for one in others
        )
        return (*self.report.notes, *of_each([(self.report.stack, []), *added]))

    def commands(self, source: str, model: str = "gpt2") -> list[str]:
        """The configuration in the words of the commands that take it; none where no command does.

        Args:
            source: What is priced, as typed: a label, a preset's name or a folder.
            model: The preset of a label.
        """
        lines = []
        chosen = [one for one in (self.as_it_is, self.approximate) if one is not None]
        if self.exported and self.is_run:
            lines = [f"aero export {shlex.quote(source)} --output EXPORT"]
            lines += [_run("EXPORT", one) for one in chosen if one.fits]
        elif not self.runs or not self.is_run:
            lines = [self.priced_again(source, one) for one in chosen]
        elif self.trained is None:
            lines = [_run("RUN", one) for one in chosen if one.fits]
        preset = "" if is_folder(source) else preset_named(source) or model
        if self.trained is not None:
            lines += self.commands_of(self.trained.change.network, preset, source)
            runs = self.report.description.base in _RUNS and self.trained.fits
            lines += [_run("RUN", self.trained)] if runs else []
        return lines

    @property
    def is_run(self) -> bool:
        """True where `aero private` runs it on this stack, and in the given memory."""
        return self.report.description.base in _RUNS and self.as_it_is.fits

    def priced_again(self, source: str, one: Advised) -> str:
        """The command that prices the network with the settings of a change on the same link."""
        given = {**self.keywords, **one.fields}
        sizes = {name: given.pop(name) for name in _SIZES if name in given}
        words = [f" --{name.replace('_', '-')} {size}" for name, size in sizes.items()]
        words += [f" --set {name}={word_of(value)}" for name, value in given.items()]
        return (
            f"aero cost show {shlex.quote(source)} --stack {shlex.quote(self.report.stack)}"
            f"{''.join(words)} --network {shlex.quote(link_words(self.network))} --compute "
            f"{shlex.quote(self.compute.name)}"
        )

    def commands_of(
        self, target: ArchitectureSpec, preset: str = "", source: str = "FOLDER"
    ) -> list[str]:
        """The commands that make a network: its training, and its conversion from this one."""
        made = training(target, preset, exact_gelu=self.exact_gelu)
        is_read = self.report.spec is not None or self.report.label in CONVERTED
        if self.own is not None and is_read:
            made += conversion(self.own, target, "FOLDER" if preset else source)
        return made

    @property
    def without_command(self) -> list[str]:
        """Says, a line each, where no command trains what is priced, or runs it for its memory."""
        runs = self.runs or self.exported
        lines = []
        if self.own is None:
            does = "trains or converts" if runs else "trains, converts or runs"
            lines.append(
                f"note: no command here {does} {self.report.label}; change it in your own code, "
                "and price it again by `aero cost show`"
            )
        if runs and self.report.description.base in _RUNS and not self.as_it_is.fits:
            exported = " after `aero export`" if self.exported else ""
            lines.append(f"note: with more memory `aero private run` runs it{exported}")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Everything ready for JSON."""
        return {
            "label": self.report.label,
            "stack": self.report.stack,
            **words_of(self.report),
            "notes": list(self.notes),
            "network": self.network.to_dict(),
            "comm_bytes": self.report.comm_bytes,
            "seconds": self.seconds,
            "share_bytes": self.now.share_bytes,
            "memory_bytes": self.now.memory_bytes,
            "changes": [self._row(one) for one in self.rows],
            "saves_nothing": list(self.idle),
            "as_it_is": self._row(self.as_it_is),
            "approximate": None if self.approximate is None else self._row(self.approximate),
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
            "memory_bytes": one.memory_bytes,
            "fits": one.fits,
        }


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
        memory_bytes: Of each party, > 0.
        **keywords: Of `simulate`: `model`, `context_length`, `vocab_size`, and fields.

    Raises:
        ValueError: `memory_bytes` is not a number > 0; what `simulate` raises.
    """
    if memory_bytes is not None and not memory_bytes > 0:
        raise ValueError(f"advise: memory_bytes must be a number > 0, got {memory_bytes}")
    priced_network, _, priced = network_on(given, stack=stack, **keywords)
    kept = kept_operations(given, stack, **keywords) if keywords.get(REVEALED) else ()
    room = Room(network, compute, memory_bytes, kept_tokens(given, priced_network))
    now = room.priced(given, Change("as it is", keeps=kept), stack=stack, **keywords)
    base, seconds = now.report, now.seconds
    own = base.spec or own_network(priced_network)
    source = description_of(priced_network) if own is None else own
    is_exact = own is not None and base.stack_fields["gelu"] == "erf"
    exact = _described(own, exact_gelu=True) if own is not None and is_exact else None
    fields = {name: value for name, value in keywords.items() if name in base.stack_fields}

    def price(change: Change) -> Advised | None:
        given = source if change.network is None else change.network
        # A spec alone has GELU's tanh form.
        if exact is not None and isinstance(given, ArchitectureSpec):
            given = _described(given, exact_gelu=True)
        length = change.keys or base.sizes["context_length"]
        # Those of another stack are what it takes of them.
        changed: dict[str, Any] = {**({} if change.stack else fields), **change.fields}
        change = replace(change, keeps=change.keeps or kept)
        try:
            on = change.stack or stack
            return room.priced(given, change, stack=on, context_length=length, **changed)
        except ValueError:  # the stack has no such field, or the network no such length
            return None

    padded = cheaper_lengths(priced_network, priced, network, compute_profile(compute))
    changes = [*every_change(source, priced_network, stack, fields), *map(padding, padded)]
    changes += revealed_routing(given, stack, **keywords)
    if exact is not None:
        changes += [one for one in described_changes(exact) if one.effect != TRAINING]
    if own is None and not is_described(given):
        changes += own_decoder(priced_network)
    rows = [one for change in changes if (one := price(change))]
    rows.sort(key=lambda one: one.seconds)
    saving = [
        one for one in rows if one.seconds < seconds or one.report.comm_bytes < base.comm_bytes
    ]
    exactly: dict[str, FieldValue] = {}
    roughly: dict[str, FieldValue] = {}
    for one in saving:
        if one.seconds < seconds and one.change.runs and not one.change.stack:
            exactly |= one.change.fields if one.change.effect == NONE else {}
            roughly |= one.change.fields if one.change.effect.startswith(APPROXIMATE) else {}
    together = exactly | roughly
    as_it_is = price(Change("settings of the run", NONE, exactly)) or now
    approximate = price(Change(", ".join(roughly), APPROXIMATE, together)) if roughly else None
    networks = [
        one
        for row in saving
        if row.change.label
        and (one := price(replace(row.change, fields=together))) is not None
        and one.seconds < (approximate or as_it_is).seconds
    ]
    idle = tuple(one.change.short for one in rows if one not in saving)
    advice = Advice(
        now, network, tuple(saving), idle, as_it_is, approximate, (),
        own, exact is not None, own is not None or is_described(given),
        own is None and is_exported(given) and predicts_next(priced_network.core.operations),
        compute_profile(compute), {k: v for k, v in keywords.items() if v is not None},
    )  # fmt: skip
    taken = (one for one in networks if advice.commands_of(one.change.network))
    return replace(advice, networks=tuple(sorted(taken, key=lambda one: one.seconds)))


def _run(network: str, chosen: Advised) -> str:
    """The command that runs a network with the settings of a change."""
    command = f"aero private run {network}{_RUNS[chosen.report.description.base]}"
    return command + "".join(
        f" --set {name}={word_of(value)}" for name, value in chosen.fields.items()
    )


def _described(spec: ArchitectureSpec, *, exact_gelu: bool = False) -> dict[str, Any]:
    return {"label": spec.label, **described_spec(spec, exact_gelu=exact_gelu)}
