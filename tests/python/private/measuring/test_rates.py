"""`benchmarks/private/measure_rates.py`: the rates behind seconds that are known."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from measure_rates import CELLS, app, rates_tables
from typer.testing import CliRunner

from aero.private.environment import VARIABLE

MACHINE = {"processor": "a processor", "spu": "0.9.5", "jax": "0.4.34"}
# ct x pt products, automorphisms, elementwise ciphertexts and OTs, as the first measurement's page
# (spu_rates_amd_epyc_202611.md) has them.
COUNTS = {
    "matmul 128x64x128": (256, 252, 0, 16384),
    "matmul 128x128x64": (256, 254, 0, 8192),
    "matmul 512x256x32": (1024, 1020, 0, 16384),
    "matmul 1024x64x64": (1024, 1008, 0, 65536),
    "matmul 128x768x64": (1536, 254, 0, 8192),
    "matmul 64x8192x64": (8192, 126, 0, 4096),
    "matmul 128x768x768": (18432, 1512, 0, 98304),
    "product 131072": (0, 0, 96, 131072),
    "relu 65536": (0, 0, 0, 6291456),
    "comparison 131072": (0, 0, 0, 12320768),
}
RATES = (500e-6, 2e-3, 8e-3, 70e-9)


def seconds(name: str) -> float:
    products, automorphisms, elementwise, ots = COUNTS[name]
    return (
        products * RATES[0] + automorphisms * RATES[1] + elementwise * RATES[2] + 2 * ots * RATES[3]
    )


def test_the_fit_finds_the_rates_that_made_the_seconds() -> None:
    measured = [{"cpu_seconds": [99.0, 2 * seconds(c.name), seconds(c.name)]} for c in CELLS]
    tables = rates_tables(measured, MACHINE)
    rows = [row.split("|") for row in tables.splitlines() if row.count("|") == 5]
    assert [float(row[2]) for row in rows[2:]] == pytest.approx(RATES, rel=1e-6)
    assert tables.endswith("Mean error 0 %, worst 0 %.")


def test_the_first_run_does_not_count() -> None:
    measured = [{"cpu_seconds": [1e-9, seconds(c.name)]} for c in CELLS]
    assert "Mean error 0 %" in rates_tables(measured, MACHINE)


PRETENDER = """#!{python}
import json, pathlib, sys
job = json.loads(pathlib.Path(sys.argv[-1]).read_text())
folder = pathlib.Path(job["folder"])
(folder / "environment.json").write_text('{machine}')
for cell in job["cells"]:
    assert cell["repeats"] == 1
    times = list(range(cell["runs"], 0, -1))
    (folder / (cell["key"] + ".json")).write_text(json.dumps({{"cpu_seconds": times}}))
"""


def test_the_command_writes_its_tables_into_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text(PRETENDER.format(python=sys.executable, machine=json.dumps(MACHINE)))
    program.chmod(0o700)
    monkeypatch.setenv(VARIABLE, str(program))
    page = tmp_path / "page.md"
    result = CliRunner().invoke(
        app, ["--output", str(tmp_path / "rates"), "--results", str(page)], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    text = page.read_text()
    assert text.startswith("<!-- rates -->\na processor; SPU 0.9.5, jax 0.4.34.\n")
    assert re.search(r"\| matmul 128x64x128 \| 256 \| 252 \|  \| 0\.016 \| 1\.000 \|", text)
