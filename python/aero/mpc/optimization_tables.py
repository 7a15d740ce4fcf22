"""The saving of optimizations on a network: added up one by one, each alone, and together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aero.mpc.cost import FieldValue
from aero.mpc.cost_report import CostReport
from aero.mpc.described_stacks import stack_description
from aero.mpc.optimization import Optimization, optimizations
from aero.mpc.priced_network import different_trust, trusted, words_dict
from aero.mpc.simulation import optimized_stack_names, simulate, stack_fields


@dataclass(frozen=True)
class OptimizationRow:
    """A network with some optimizations.

    Attributes:
        optimization: The optimization, or None for the stack as it is.
        comm_bytes: Of both parties, per size; None where the network does not allow it.
        rounds: Per size.
    """

    optimization: Optimization | None
    comm_bytes: tuple[float | None, ...]
    rounds: tuple[int | None, ...]


@dataclass(frozen=True)
class OptimizedStack:
    """A network on an optimized stack.

    Attributes:
        name: The value of `stack` for `simulate`.
        fields: Its changes to `spu-2024`.
        comm_bytes: Of both parties, per size.
        rounds: Per size.
    """

    name: str
    fields: Mapping[str, FieldValue]
    comm_bytes: tuple[float | None, ...]
    rounds: tuple[int | None, ...]


@dataclass(frozen=True)
class OptimizationTable:
    """The saving of optimizations, added up one by one, each alone, and together.

    Attributes:
        label: The network.
        stack: The stack that they start from.
        sizes: T and V per column.
        cumulative: The stack, then each optimization that it has on top of those before it, listed
            ones first.
        alone: Each of these optimizations alone, listed or not.
        optimized_stacks: The optimized stacks, which start from `spu-2024` whatever `stack` is.
        notes: What the prices leave out or take for granted.
        unchecked: What no publication or measurement confirms of the stack as it is.
        trust: Whom its users trust; empty where the optimized stacks differ, which `notes` say.
        lowerings: Part -> the lines of a program that the stack's prices are of, as it is.
    """

    label: str
    stack: str
    sizes: tuple[tuple[int, int | None], ...]
    cumulative: tuple[OptimizationRow, ...]
    alone: tuple[OptimizationRow, ...]
    optimized_stacks: tuple[OptimizedStack, ...]
    notes: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    trust: str = ""
    lowerings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def savings(self, row: OptimizationRow) -> tuple[float | None, ...]:
        """A row's bytes over the stack's own, minus one; per size."""
        base = self.cumulative[0].comm_bytes
        return tuple(
            None if one is None or all_ is None else one / all_ - 1
            for one, all_ in zip(row.comm_bytes, base, strict=True)
        )

    def optimizations(self) -> list[Optimization]:
        """Those that the stack has."""
        return [row.optimization for row in self.alone if row.optimization is not None]

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-ready values; savings as fractions."""

        def rows(table: Sequence[OptimizationRow]) -> list[dict[str, Any]]:
            return [
                {
                    "optimization": row.optimization.name if row.optimization else None,
                    "comm_bytes": list(row.comm_bytes),
                    "rounds": list(row.rounds),
                    "saving": list(self.savings(row)),
                }
                for row in table
            ]

        return {
            "label": self.label,
            "stack": self.stack,
            "sizes": [list(size) for size in self.sizes],
            "optimizations": [one.to_dict() for one in self.optimizations()],
            "cumulative": rows(self.cumulative),
            "alone": rows(self.alone),
            "optimized_stacks": [
                {
                    "name": one.name,
                    "fields": dict(one.fields),
                    "comm_bytes": list(one.comm_bytes),
                    "rounds": list(one.rounds),
                }
                for one in self.optimized_stacks
            ],
            **words_dict(self.notes, self.unchecked, self.trust, self.lowerings),
        }

    def __repr__(self) -> str:
        return f"<OptimizationTable of {self.label} on {self.stack}, {len(self.alone)} rows>"


@dataclass
class _Network:
    label: str
    model: str
    stack: str
    sizes: Sequence[tuple[int, int | None]]
    overrides: dict[str, FieldValue] = field(default_factory=dict)
    # Why it goes without an optimization -> the names of those.
    refused: dict[str, list[str]] = field(default_factory=dict)

    def possible(self) -> list[Optimization]:
        """The optimizations that the stack has."""
        found = []
        for one in optimizations():
            try:
                stack_description(self.stack).with_fields(one.fields.items())
            except ValueError:
                self._refuse(one.name, f"not settings of {self.stack}")
            else:
                found.append(one)
        return found

    def _refuse(self, name: str, reason: str) -> None:
        names = self.refused.setdefault(reason, [])
        names += [name] if name not in names else []

    def words(self) -> dict[str, Any]:
        """All that is said of the network on the stack as it is, as an `OptimizationTable` has it.

        And which optimizations it goes without. The dealer's bytes are those of the first size.
        """
        reports = [self._report(length, vocab, self.stack, {}) for length, vocab in self.sizes]
        names = [self.stack, *optimized_stack_names()]
        trust = {name: stack_description(name).trust for name in names}
        trust[self.stack] = trusted(reports[0].trust, reports[0].total)
        others = different_trust(trust)
        without = [f"without {', '.join(n)}: {reason}" for reason, n in self.refused.items()]
        notes = [*(one for r in reports for one in r.notes), *others, *without]
        return {
            "notes": tuple(dict.fromkeys(notes)),
            "unchecked": tuple(dict.fromkeys(one for r in reports for one in r.unchecked)),
            "trust": "" if others else trust[self.stack],
            "lowerings": reports[0].lowerings,
        }

    def row(
        self, optimization: Optimization | None, fields: Mapping[str, FieldValue]
    ) -> OptimizationRow:
        name = "" if optimization is None else optimization.name
        return OptimizationRow(optimization, *self._priced(self.stack, fields, name))

    def on_optimized(self, name: str) -> OptimizedStack:
        base = stack_fields("spu-2024")
        fields = {
            field: value for field, value in stack_fields(name).items() if value != base[field]
        }
        return OptimizedStack(name, fields, *self._priced(name, {}))

    def _priced(
        self, stack: str, fields: Mapping[str, FieldValue], optimization: str = ""
    ) -> tuple[tuple[float | None, ...], tuple[int | None, ...]]:
        comm: list[float | None] = []
        rounds: list[int | None] = []
        for length, vocab in self.sizes:
            try:
                report = self._report(length, vocab, stack, fields)
            except ValueError as error:
                # As it is, the network has a price: it does not allow the optimization.
                if not optimization:
                    raise
                self._refuse(optimization, str(error).removeprefix("simulate: "))
                comm.append(None)
                rounds.append(None)
            else:
                comm.append(report.comm_bytes)
                rounds.append(report.rounds)
        return tuple(comm), tuple(rounds)

    def _report(
        self, length: int, vocab: int | None, stack: str, fields: Mapping[str, FieldValue]
    ) -> CostReport:
        keywords: dict[str, Any] = {**self.overrides, **fields}
        return simulate(
            self.label, model=self.model, context_length=length, vocab_size=vocab, stack=stack,
            **keywords,
        )  # fmt: skip


def optimization_table(
    label: str = "SM+ScFuFFN",
    *,
    model: str = "gpt2",
    sizes: Sequence[tuple[int, int | None]] = ((128, None), (256, None), (512, 16384)),
    stack: str = "spu-2024",
    **overrides: FieldValue,
) -> OptimizationTable:
    """Returns the saving of the optimizations of `optimizations()` that the stack has on a network.

    Args:
        label: The network. The cumulative table goes on without an optimization that it does not
            allow, such as absorbed FFNs; `notes` say which and why.
        model: The preset that gives the sizes.
        sizes: T and V of each column; V of None is the preset's.
        stack: The stack that the optimizations start from.
        **overrides: Fields of network and stack, as of `simulate`.

    Raises:
        ValueError: As `simulate`.

    Example:
        >>> from aero.mpc.optimization_tables import optimization_table
        >>> table = optimization_table(sizes=[(128, None)])
        >>> round(table.cumulative[13].comm_bytes[0] / 1e9, 2), table.cumulative[13].rounds[0]
        (1.59, 3365)
    """
    network = _Network(label, model, stack, tuple(sizes), dict(overrides))
    fields: dict[str, FieldValue] = {}
    cumulative, possible = [network.row(None, {})], network.possible()
    for optimization in possible:
        row = network.row(optimization, {**fields, **optimization.fields})
        cumulative.append(row)
        if None not in row.comm_bytes:
            fields.update(optimization.fields)
    alone = [network.row(one, one.fields) for one in possible]
    optimized = tuple(network.on_optimized(name) for name in optimized_stack_names())
    return OptimizationTable(
        label, stack, tuple(sizes), tuple(cumulative), tuple(alone), optimized, **network.words()
    )
