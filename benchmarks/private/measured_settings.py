"""SPU's configuration beyond the defaults, each setting on the operations that it touches.

`measure_bytes.py --settings`: bytes and the distance from plain arithmetic, without it and
with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measured_grid import Cell
from measured_rows import MeasuredRow, operation_rows
from measurement import SET_UP, set_up_key

from aero.reading import read_json
from aero.tables import in_units, markdown_table

__all__ = ["SETTINGS", "MeasuredSetting", "setting_cells", "settings_markdown"]


@dataclass(frozen=True)
class MeasuredSetting:
    """A setting with operations that it may change.

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
        """Each operation without and with the setting."""
        return [
            (Cell(name, sizes, self.base), Cell(name, sizes, {**self.base, **self.changes}))
            for name, sizes in self.operations
        ]


_SMALL_PRODUCTS = (("matmul", (16, 16, 16)), ("matmul", (61, 127, 251)), ("matmul", (128, 128, 64)))
_RECIPROCALS = (("reciprocal", (1024,)), ("softmax", (1, 61)))
_EXPONENTIALS = (("exp", (8192,)), ("softmax", (1, 61)))
_TRANSFERS = (("comparison", (65536,)), ("softmax", (1, 61)))
_SUMS = (("layernorm", (61, 127)), ("softmax", (1, 61)))

SETTINGS = (
    MeasuredSetting({"private_weights": True}, (*_SMALL_PRODUCTS[1:], ("layernorm", (61, 127)))),
    MeasuredSetting({"one_bit_product_error": True}, (("product", (16384,)), *_SUMS)),
    MeasuredSetting({"exp_squarings": 5}, _EXPONENTIALS),
    MeasuredSetting({"fxp_exp_mode": "EXP_PADE"}, _EXPONENTIALS),
    MeasuredSetting({"fxp_div_goldschmidt_iters": 1}, _RECIPROCALS),
    MeasuredSetting({"fxp_div_goldschmidt_iters": 3}, _RECIPROCALS),
    MeasuredSetting(
        {"enable_lower_accuracy_rsqrt": True}, (("rsqrt", (1024,)), ("layernorm", (61, 127)))
    ),
    MeasuredSetting({"disable_matmul_pack": True}, _SMALL_PRODUCTS),
    MeasuredSetting({"ot_kind": "YACL_Softspoken"}, _TRANSFERS),
    MeasuredSetting({"ot_kind": "EMP_Ferret"}, _TRANSFERS),
    MeasuredSetting({"disable_reduce_truncation_optimization": True}, _SUMS),
    MeasuredSetting({"disable_select_optimization": True}, _SUMS),
    MeasuredSetting(
        {"disallow_mix_types_opts": True}, (("embedding", (8, 1024, 128)), ("softmax", (1, 61)))
    ),
    # Above 256 MiB: the LM head of GPT-2, turned round.
    MeasuredSetting(
        {"experimental_disable_mmul_split": True},
        (("matmul", (1, 50257, 768)),),
        {"private_weights": True},
    ),
)


def setting_cells(settings: Iterable[MeasuredSetting] = SETTINGS) -> list[Cell]:
    """Every operation without and with the settings, once each, those without any first.

    Args:
        settings: default: all.
    """
    cells: dict[str, Cell] = {}
    for setting in settings:
        for plain, changed in setting.pairs:
            cells |= {plain.key: plain, changed.key: changed}
    return sorted(cells.values(), key=lambda cell: len(cell.settings))


def settings_markdown(folder: Path, settings: Iterable[MeasuredSetting] = SETTINGS) -> str:
    """A line per setting and operation that have been measured.

    Args:
        folder: of the results.
        settings: default: all.
    """
    header = ("setting", "operation", "default MB", "with it, MB", "change", "error", "with it")
    lines = []
    for setting in settings:
        named = ", ".join(f"{key}={value}".lower() for key, value in setting.changes.items())
        for pair in setting.pairs:
            rows = operation_rows(pair, folder)
            if len(rows) == len(pair):
                lines.append(_line(f"`{named}`", *rows))
        keys = _set_ups(setting, folder)
        if keys is not None:
            lines.append((f"`{named}`", SET_UP, *_sizes(*keys), "", ""))
    return markdown_table(header, lines)


def _line(setting: str, plain: MeasuredRow, changed: MeasuredRow) -> tuple[str, ...]:
    errors = (f"{row.largest_difference or 0.0:.1e}" for row in (plain, changed))
    return (setting, plain.name, *_sizes(plain.comm_bytes, changed.comm_bytes), *errors)


def _set_ups(setting: MeasuredSetting, folder: Path) -> tuple[float, float] | None:
    """Set-ups of the session, where the setting changes how oblivious transfers begin."""
    if "ot_kind" not in setting.changes:
        return None
    found = []
    for settings in ({}, setting.changes):
        path = folder / f"{set_up_key(settings)}.json"
        if not path.exists():
            return None
        counts = read_json(path)["parts"][SET_UP]
        found.append(counts["client_bytes"][0] + counts["server_bytes"][0])
    return found[0], found[1]


def _sizes(plain: float, changed: float) -> tuple[str, str, str]:
    change = f"{100 * (changed / plain - 1):+.1f} %"
    return in_units(plain, "MB"), in_units(changed, "MB"), change
