"""What SPU's configuration offers beyond the defaults, each option on the operations it touches.

`aero private measure --options`: bytes and the distance from plain arithmetic, without and with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aero.private.measured_grid import Cell
from aero.private.measured_rows import MeasuredRow, operation_rows
from aero.private.measurement import SET_UP, set_up_key
from aero.reading import read_json
from aero.tables import in_units, markdown_table

__all__ = ["OPTIONS", "MeasuredOption", "option_cells", "options_markdown"]


@dataclass(frozen=True)
class MeasuredOption:
    """An option with operations that it may change.

    Attributes:
        changes: fields of `PrivateSettings`, or of SPU's configuration by name.
        operations: names and sizes of `measured_grid.OPERATIONS`.
        base: settings on both sides of the comparison.
    """

    changes: dict[str, Any]
    operations: tuple[tuple[str, tuple[int, ...]], ...]
    base: dict[str, Any] = field(default_factory=dict)

    @property
    def pairs(self) -> list[tuple[Cell, Cell]]:
        """Each operation without and with the option."""
        return [
            (Cell(name, sizes, self.base), Cell(name, sizes, {**self.base, **self.changes}))
            for name, sizes in self.operations
        ]


_SMALL_PRODUCTS = (("matmul", (16, 16, 16)), ("matmul", (61, 127, 251)), ("matmul", (128, 128, 64)))
_RECIPROCALS = (("reciprocal", (1024,)), ("softmax", (1, 61)))
_EXPONENTIALS = (("exp", (8192,)), ("softmax", (1, 61)))
_TRANSFERS = (("comparison", (65536,)), ("softmax", (1, 61)))
_SUMS = (("layernorm", (61, 127)), ("softmax", (1, 61)))

OPTIONS = (
    MeasuredOption({"private_weights": True}, (*_SMALL_PRODUCTS[1:], ("layernorm", (61, 127)))),
    MeasuredOption({"one_bit_product_error": True}, (("product", (16384,)), *_SUMS)),
    MeasuredOption({"exp_squarings": 5}, _EXPONENTIALS),
    MeasuredOption({"fxp_exp_mode": "EXP_PADE"}, _EXPONENTIALS),
    MeasuredOption({"fxp_div_goldschmidt_iters": 1}, _RECIPROCALS),
    MeasuredOption({"fxp_div_goldschmidt_iters": 3}, _RECIPROCALS),
    MeasuredOption(
        {"enable_lower_accuracy_rsqrt": True}, (("rsqrt", (1024,)), ("layernorm", (61, 127)))
    ),
    MeasuredOption({"disable_matmul_pack": True}, _SMALL_PRODUCTS),
    MeasuredOption({"ot_kind": "YACL_Softspoken"}, _TRANSFERS),
    MeasuredOption({"ot_kind": "EMP_Ferret"}, _TRANSFERS),
    MeasuredOption({"disable_reduce_truncation_optimization": True}, _SUMS),
    MeasuredOption({"disable_select_optimization": True}, _SUMS),
    MeasuredOption(
        {"disallow_mix_types_opts": True}, (("embedding", (8, 1024, 128)), ("softmax", (1, 61)))
    ),
    # Above 256 MiB: the LM head of GPT-2, turned round.
    MeasuredOption(
        {"experimental_disable_mmul_split": True},
        (("matmul", (1, 50257, 768)),),
        {"private_weights": True},
    ),
)


def option_cells(options: Iterable[MeasuredOption] = OPTIONS) -> list[Cell]:
    """Every operation without and with the options, once each, those without any first.

    Args:
        options: default: all.
    """
    cells: dict[str, Cell] = {}
    for option in options:
        for plain, changed in option.pairs:
            cells |= {plain.key: plain, changed.key: changed}
    return sorted(cells.values(), key=lambda cell: len(cell.settings))


def options_markdown(folder: Path, options: Iterable[MeasuredOption] = OPTIONS) -> str:
    """A line per option and operation that have been measured.

    Args:
        folder: of the results.
        options: default: all.
    """
    header = ("option", "operation", "default MB", "with it, MB", "change", "error", "with it")
    lines = []
    for option in options:
        named = ", ".join(f"{key}={value}".lower() for key, value in option.changes.items())
        for pair in option.pairs:
            rows = operation_rows(pair, folder)
            if len(rows) == len(pair):
                lines.append(_line(f"`{named}`", *rows))
        keys = _set_ups(option, folder)
        if keys is not None:
            lines.append((f"`{named}`", SET_UP, *_sizes(*keys), "", ""))
    return markdown_table(header, lines)


def _line(option: str, plain: MeasuredRow, changed: MeasuredRow) -> tuple[str, ...]:
    errors = (f"{row.largest_difference or 0.0:.1e}" for row in (plain, changed))
    return (option, plain.name, *_sizes(plain.comm_bytes, changed.comm_bytes), *errors)


def _set_ups(option: MeasuredOption, folder: Path) -> tuple[float, float] | None:
    """Of the session, where the option changes how oblivious transfers begin."""
    if "ot_kind" not in option.changes:
        return None
    found = []
    for settings in ({}, option.changes):
        path = folder / f"{set_up_key(settings)}.json"
        if not path.exists():
            return None
        counts = read_json(path)["parts"][SET_UP]
        found.append(counts["client_bytes"][0] + counts["server_bytes"][0])
    return found[0], found[1]


def _sizes(plain: float, changed: float) -> tuple[str, str, str]:
    change = f"{100 * (changed / plain - 1):+.1f} %"
    return in_units(plain, "MB"), in_units(changed, "MB"), change
