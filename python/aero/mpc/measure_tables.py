"""What measures save on a network: one on top of the other, each alone, and in named sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aero.mpc.cost import FieldValue
from aero.mpc.measures import Option, options
from aero.mpc.simulation import option_set_names, simulate, stack_fields


@dataclass(frozen=True)
class OptionRow:
    """A network with some measures.

    Attributes:
        option: The measure, or None for the stack as it is.
        comm_bytes: Of both parties, per size; None where the measure is not legal.
        rounds: Per size.
    """

    option: Option | None
    comm_bytes: tuple[float | None, ...]
    rounds: tuple[int | None, ...]


@dataclass(frozen=True)
class OptionSet:
    """A network on a named set of measures.

    Attributes:
        name: What `simulate` takes as `stack`.
        fields: What it changes in `spu-2024`.
        comm_bytes: Of both parties, per size.
        rounds: Per size.
    """

    name: str
    fields: Mapping[str, FieldValue]
    comm_bytes: tuple[float | None, ...]
    rounds: tuple[int | None, ...]


@dataclass(frozen=True)
class OptionTable:
    """What measures save, one on top of the other, each alone, and in sets.

    Attributes:
        label: The network.
        stack: What they are taken on top of.
        sizes: T and V per column.
        cumulative: The stack, then each measure on top of those before it, listed ones first.
        alone: Each measure alone, listed or not.
        sets: The named option sets, which start from `spu-2024` whatever `stack` is.
    """

    label: str
    stack: str
    sizes: tuple[tuple[int, int | None], ...]
    cumulative: tuple[OptionRow, ...]
    alone: tuple[OptionRow, ...]
    sets: tuple[OptionSet, ...]

    def savings(self, row: OptionRow) -> tuple[float | None, ...]:
        """A row's bytes over the stack's own, minus one; per size."""
        base = self.cumulative[0].comm_bytes
        return tuple(
            None if one is None or all_ is None else one / all_ - 1
            for one, all_ in zip(row.comm_bytes, base, strict=True)
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-ready values; savings as fractions."""

        def rows(table: Sequence[OptionRow]) -> list[dict[str, Any]]:
            return [
                {
                    "option": row.option.name if row.option else None,
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
            "options": [option.to_dict() for option in options()],
            "cumulative": rows(self.cumulative),
            "alone": rows(self.alone),
            "sets": [
                {
                    "name": one.name,
                    "fields": dict(one.fields),
                    "comm_bytes": list(one.comm_bytes),
                    "rounds": list(one.rounds),
                }
                for one in self.sets
            ],
        }

    def __repr__(self) -> str:
        return f"<OptionTable of {self.label} on {self.stack}: {len(self.alone)} measures>"


@dataclass
class _Network:
    label: str
    model: str
    stack: str
    sizes: Sequence[tuple[int, int | None]]
    overrides: dict[str, FieldValue] = field(default_factory=dict)

    def row(self, option: Option | None, fields: Mapping[str, FieldValue]) -> OptionRow:
        return OptionRow(option, *self._priced(self.stack, fields))

    def set(self, name: str) -> OptionSet:
        base = stack_fields("spu-2024")
        fields = {
            field: value for field, value in stack_fields(name).items() if value != base[field]
        }
        return OptionSet(name, fields, *self._priced(name, {}))

    def _priced(
        self, stack: str, fields: Mapping[str, FieldValue]
    ) -> tuple[tuple[float | None, ...], tuple[int | None, ...]]:
        comm: list[float | None] = []
        rounds: list[int | None] = []
        for length, vocab in self.sizes:
            try:
                report = simulate(
                    self.label,
                    model=self.model,
                    context_length=length,
                    vocab_size=vocab,
                    stack=stack,
                    **{**self.overrides, **fields},
                )
            except ValueError as error:
                # The one measure that not every network allows.
                if "absorb_ffn" not in fields or "absorb_ffn" not in str(error):
                    raise
                comm.append(None)
                rounds.append(None)
            else:
                comm.append(report.comm_bytes)
                rounds.append(report.rounds)
        return tuple(comm), tuple(rounds)


def option_table(
    label: str = "SM+ScFuFFN",
    *,
    model: str = "gpt2",
    sizes: Sequence[tuple[int, int | None]] = ((128, None), (256, None), (512, 16384)),
    stack: str = "spu-2024",
    **overrides: FieldValue,
) -> OptionTable:
    """What the measures of `options()` save on a network.

    Args:
        label: The network. Where its FFNs cannot be absorbed, the cumulative table goes on without
            that measure.
        model: The preset that gives the sizes.
        sizes: T and V of each column; V of None is the preset's.
        stack: What the measures are taken on top of.
        **overrides: Fields of network and stack, as of `simulate`.

    Raises:
        ValueError: As `simulate`.

    Example:
        >>> from aero import mpc
        >>> table = mpc.option_table(sizes=[(128, None)])
        >>> round(table.cumulative[13].comm_bytes[0] / 1e9, 2), table.cumulative[13].rounds[0]
        (1.59, 3365)
    """
    network = _Network(label, model, stack, tuple(sizes), dict(overrides))
    fields: dict[str, FieldValue] = {}
    cumulative = [network.row(None, {})]
    for option in options():
        row = network.row(option, {**fields, **option.fields})
        cumulative.append(row)
        if None not in row.comm_bytes:
            fields.update(option.fields)
    alone = [network.row(option, option.fields) for option in options()]
    sets = tuple(network.set(name) for name in option_set_names())
    return OptionTable(label, stack, tuple(sizes), tuple(cumulative), tuple(alone), sets)
