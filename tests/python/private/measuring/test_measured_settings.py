"""`measure_bytes.py --settings`: its cells, its table, and that SPU hears of every field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from measure_bytes import app
from measured_grid import OPERATIONS, Cell
from measured_settings import (
    SETTINGS,
    MeasuredSetting,
    setting_cells,
    settings_markdown,
)
from measurement import set_up_key
from typer.testing import CliRunner

from aero.private.settings import SPU_FIELDS, PrivateSettings

SETTING = MeasuredSetting({"ot_kind": "EMP_Ferret"}, (("relu", (8,)), ("matmul", (2, 3, 4))))


def written(cell: Cell, folder: Path, sent: float, error: float) -> None:
    parts = {cell.operation: {"client_bytes": [sent], "server_bytes": [sent]}}
    result = {"parts": parts, "repeats": 1, "largest_difference": error}
    (folder / f"{cell.key}.json").write_text(json.dumps(result))


def test_the_table_has_bytes_and_errors_without_and_with_the_option(tmp_path: Path) -> None:
    (plain, changed), (alone, _) = SETTING.pairs
    written(plain, tmp_path, 1e6, 0.001)
    written(changed, tmp_path, 1.5e6, 0.02)
    written(alone, tmp_path, 1e6, 0.0)  # its other half has not been measured
    for settings, sent in (({}, 4e6), (SETTING.changes, 1e6)):
        counts = {"client_bytes": [sent], "server_bytes": [sent]}
        found = {"parts": {"set-up": counts}}
        (tmp_path / f"{set_up_key(settings)}.json").write_text(json.dumps(found))
    assert settings_markdown(tmp_path, [SETTING]).splitlines()[2:] == [
        "| `ot_kind=emp_ferret` | relu 8 | 2.000 | 3.000 | +50.0 % | 1.0e-03 | 2.0e-02 |",
        "| `ot_kind=emp_ferret` | set-up | 8.000 | 2.000 | -75.0 % |  |  |",
    ]


def test_every_setting_stands_beside_what_it_changes() -> None:
    cells = setting_cells()
    assert len({cell.key for cell in cells}) == len(cells)
    assert not any(set(cell.key) & set(" /,") for cell in cells)
    for setting in SETTINGS:
        for plain, changed in setting.pairs:
            assert plain in cells and changed in cells and plain.operation in OPERATIONS
            assert PrivateSettings.from_dict(changed.settings) != PrivateSettings.from_dict(
                plain.settings
            )
    measured = {name for setting in SETTINGS for name in setting.changes}
    assert set(SPU_FIELDS) <= measured
    assert {"private_weights", "one_bit_product_error", "exp_squarings"} <= measured


@pytest.mark.parametrize("other", [["--quick"], ["--operations", "relu"]])
def test_settings_are_measured_alone(other: list[str], tmp_path: Path) -> None:
    arguments = ["--output", str(tmp_path), "--settings", *other]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert "--settings must stand without --operations and --quick" in done.output


@pytest.mark.private
def test_every_field_reaches_spu(run_private: Any) -> None:
    assert run_private("spu_fields_program.py") == []
