"""`benchmarks/private/measure_bytes.py`: jobs, resuming, averages, tables.

The private environment is played by a program that writes results without computing.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measure_bytes import app
from measured_grid import (
    OPERATIONS,
    Cell,
    NetworkCell,
    grid,
    network_grid,
    predicted_cost,
)
from measured_rows import network_rows, operation_rows, set_up_row
from measured_table import table_markdown, write_tables
from measurement import measure, runs_for
from typer.testing import CliRunner

from aero import mpc
from aero.mpc.cost import Cost
from aero.mpc.simulation import described_spec
from aero.private.environment import VARIABLE
from aero.private.prediction import predicted_costs, remainder, resolution
from aero.private.settings import PrivateSettings

# Takes a job as the worker does; says and writes a result per cell, and fails at the third one the
# first time.
PRETENDER = """#!{python}
import json, pathlib, sys
job = json.loads(pathlib.Path(sys.argv[-1]).read_text())
folder = pathlib.Path(job["folder"])
counts = {{"client_bytes": [30], "server_bytes": [10]}}
(folder / (job["set_up"] + ".json")).write_text(json.dumps({{"parts": {{"set-up": counts}}}}))
for number, cell in enumerate(job["cells"]):
    if number == 2 and not (folder / "failed").exists():
        (folder / "failed").touch()
        sys.exit("the other party is gone")
    with (folder / "measured").open("a") as record:
        record.write(cell["name"] + "\\n")
    parts = {{cell.get("operation", "embedding"): counts}}
    result = {{"parts": parts, "repeats": 2, "largest_difference": 0.5}}
    (folder / (cell["key"] + ".json")).write_text(json.dumps(result))
    print(cell["name"], flush=True)
"""
CELLS = [
    Cell("relu", (8,)),
    Cell("matmul", (2, 3, 4)),
    Cell("matmul", (2, 3, 4), {"private_weights": True}),
    Cell("truncation", (5,)),
]


@pytest.fixture
def pretender(tmp_path: Path) -> Path:
    program = tmp_path / "python"
    program.write_text(PRETENDER.format(python=sys.executable))
    program.chmod(0o700)
    return program


def no_export(cell: NetworkCell, folder: Path) -> None:
    raise AssertionError("nothing is to be exported")


def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path: Path, pretender: Path) -> None:
    folder, said = tmp_path / "results", []
    with pytest.raises(RuntimeError, match=r"measuring failed \(1\): the other party is gone"):
        measure(CELLS, [], folder, no_export, python=pretender, progress=said.append)
    assert said == [CELLS[0].name, CELLS[1].name]
    measure(CELLS, [], folder, no_export, python=pretender, progress=said.append)
    assert said == [CELLS[n].name for n in range(4)]
    measure(CELLS, [], folder, no_export, python=pretender)
    assert (folder / "measured").read_text().splitlines() == said
    assert not (folder / "job.json").exists()


def test_results_are_averages_over_runs_and_copies(tmp_path: Path, pretender: Path) -> None:
    (tmp_path / "failed").touch()
    measure(CELLS[:1], [], tmp_path, no_export, python=pretender)
    (row,) = operation_rows(CELLS, tmp_path)
    cost = predicted_cost(CELLS[0])
    assert (row.client_bytes, row.server_bytes, row.count) == (15, 5, 2)
    assert row.ratio == 20 / cost.comm_bytes
    assert row.resolution == resolution(cost, 2)
    assert row.largest_difference == 0.5
    first = set_up_row(tmp_path)
    assert first is not None and first.comm_bytes == 40


def test_networks_are_exported_once(tmp_path: Path, pretender: Path) -> None:
    plain = NetworkCell("SM+ScFuFFN", "tiny", {}, 16)
    private = NetworkCell("SM+ScFuFFN", "tiny", {}, 16, {"private_weights": True})
    (tmp_path / "failed").touch()
    exported: list[Path] = []

    def export(cell: NetworkCell, folder: Path) -> None:
        folder.mkdir(parents=True)
        exported.append(folder)

    measure([], [plain, private], tmp_path, export, python=pretender)
    assert len(exported) == 1
    assert (tmp_path / f"{plain.key}.json").exists()
    assert (tmp_path / f"{private.key}.json").exists()


def written(cell: NetworkCell, folder: Path, factor: float) -> dict[str, Cost]:
    """Results of a network that sends `factor` times the predicted bytes."""
    costs = predicted_costs(
        described_spec(cell.spec), cell.tokens, PrivateSettings(**cell.settings)
    )
    del costs["set-up"]
    parts: dict[str, Any] = {
        name: {
            "client_bytes": [factor * cost.client_bytes],
            "server_bytes": [factor * cost.server_bytes],
        }
        for name, cost in costs.items()
    }
    result = {"parts": parts, "repeats": 1, "largest_difference": 0.0}
    (folder / f"{cell.key}.json").write_text(json.dumps(result))
    return costs


@pytest.mark.parametrize("cell", network_grid(), ids=lambda cell: cell.name)
def test_pieces_of_a_network_add_up_to_the_simulated_total(
    cell: NetworkCell, tmp_path: Path
) -> None:
    costs = written(cell, tmp_path, 1.25)
    rows = {row.name: row for row in network_rows([cell], tmp_path)}
    assert list(rows) == ["embedding", "head", "argmax", "all layers", "total"]
    assert all(row.ratio == pytest.approx(1.25) for row in rows.values())
    fields = PrivateSettings(**cell.settings).stack_fields()
    report = mpc.simulate(
        cell.spec, context_length=cell.tokens, stack="spu-0.9.5", **fields, setup=False
    )
    assert rows["total"].predicted_bytes == report.comm_bytes
    layers = sum(cost.comm_bytes for cost in report.by_layer)
    assert rows["all layers"].predicted_bytes == layers
    assert len(costs) == 3 + cell.spec.num_layers


def test_tables_hold_what_is_measured_and_nothing_else(tmp_path: Path, pretender: Path) -> None:
    (tmp_path / "failed").touch()
    network = NetworkCell("SM", "tiny", {}, 3)
    measure(CELLS[:2], [], tmp_path, no_export, python=pretender)
    written(network, tmp_path, 1.0)
    text = write_tables(CELLS, [network, *network_grid()], tmp_path)
    assert (tmp_path / "measured.md").read_text() == f"{text}\n"
    operations, networks = (part.splitlines()[2:] for part in text.split("\n\n"))
    assert [line.split(" | ")[0] for line in operations] == [
        "| set-up", f"| {CELLS[0].name}", f"| {CELLS[1].name}"
    ]  # fmt: skip
    assert len(networks) == 5
    assert networks[-1].startswith("| SM, tiny, T=3: total | 1 | ")
    assert networks[-1].endswith(" | 1.000 | 1.000 |")
    found = json.loads((tmp_path / "measured.json").read_text())
    assert [row["ratio"] for row in found["rows"][-5:]] == pytest.approx([1.0] * 5)


@pytest.mark.parametrize(
    ("arguments", "name", "line"),
    [
        (["--operations", "relu"], "tables", "| relu 65537 | "),
        (["--settings"], "settings", "| `pri"),
    ],
)
def test_tables_go_into_their_place_in_a_document(
    arguments: list[str], name: str, line: str, tmp_path: Path, pretender: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv(VARIABLE, str(pretender))
    (tmp_path / "failed").touch()
    page = tmp_path / "page.md"
    page.write_text(f"Words.\n<!-- {name} -->\nstale\n<!-- end of {name} -->\nMore.\n")
    command = ["--output", str(tmp_path), "--results", str(page), *arguments]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    text = page.read_text()
    assert text.startswith(f"Words.\n<!-- {name} -->\n| ")
    assert text.endswith(f"|\n<!-- end of {name} -->\nMore.\n")
    assert line in text and "stale" not in text and line in done.stdout


def test_a_table_without_rows_is_its_header() -> None:
    assert table_markdown("operation", []).count("\n") == 1


def test_every_cell_has_a_name_of_its_own_and_a_price() -> None:
    cells = [*grid(), *network_grid()]
    assert len({cell.key for cell in cells}) == len(cells)
    assert {cell.operation for cell in grid()} == set(OPERATIONS)
    assert all(predicted_cost(cell).comm_bytes > 0 for cell in [*grid(), *grid(quick=True)])
    assert not any(set(cell.key) & set(" /,") for cell in cells)


@given(
    client=st.integers(0, 10_000_000),
    server=st.integers(0, 10_000_000),
    triples=st.integers(1, 4095).filter(lambda number: number % 1024),
    count=st.sampled_from([1, 4, 16]),
)
def test_the_resolution_bounds_the_spread_over_all_phases(
    client: int, server: int, triples: int, count: int
) -> None:
    # Per run so many OTs in either direction, and triples: 8 / 8192 ciphertexts each, four of which
    # are a refill of 4,096.
    cost = Cost(
        client_bytes=5e5, server_bytes=5e5, rounds=1, ots=client + server,
        elementwise_ciphertexts=8 * triples / 8192,
    )  # fmt: skip

    def variance(per_run: float, size: float) -> float:
        phases = [(phase + 0.5) / 200 for phase in range(200)]
        sent = [size * math.floor(phase + count * per_run) for phase in phases]
        mean = sum(sent) / len(sent)
        return sum((s - mean) ** 2 for s in sent) / len(sent)

    extensions = [variance(ots / 10_017_120, 266_259) for ots in (client, server)]
    total = sum(extensions) + variance(triples / 4096, 1_143_924)
    found = resolution(cost, count) * count * cost.comm_bytes
    # 200 phases see a fraction f to 1 / 200, hence a variance to as much of the largest.
    assert found**2 >= total - (2 * 266_259**2 + 1_143_924**2) / 200


@given(
    client=st.integers(0, 10_000_000),
    server=st.integers(0, 10_000_000),
    triples=st.integers(1, 4095).filter(lambda number: number % 1024),
    whole=st.integers(0, 100),
    count=st.sampled_from([1, 4, 16]),
    phases=st.tuples(*[st.floats(0, 0.999)] * 3),
    more=st.integers(-5000, 5000),
)
def test_of_whole_extensions_and_refills_nothing_remains(
    client: int,
    server: int,
    triples: int,
    whole: int,
    count: int,
    phases: tuple[float, float, float],
    more: int,
) -> None:
    # Long vectors take whole or half as many ciphertexts as a refill.
    ciphertexts = 8 * triples / 8192 + 2 * whole
    cost = Cost(
        client_bytes=5e5, server_bytes=5e5, rounds=1, ots=client + server,
        elementwise_ciphertexts=ciphertexts,
    )  # fmt: skip
    sizes = (266_259, 266_259, 1_143_924)
    per_run = (client / 10_017_120, server / 10_017_120, triples / 4096)
    chance = sum(
        size * (math.floor(phase + count * each) - count * each)
        for size, each, phase in zip(sizes, per_run, phases, strict=True)
    )
    measured = cost.comm_bytes + (chance + more) / count
    found = remainder(cost, count, measured) * count
    assert abs(found) <= abs(more) + 1e-3
    # A difference that does not come from chance shows, unless another combination is nearer.
    assert found == pytest.approx(more, abs=1e-3) or abs(found) < abs(more)


@given(elements=st.integers(1, 100_000), wanted=st.sampled_from([0.0025, 0.01]))
def test_as_many_runs_are_made_as_the_resolution_needs(elements: int, wanted: float) -> None:
    cost = mpc.operation_cost("relu", elements, stack="spu-0.9.5")
    count = runs_for(cost, wanted)
    assert count == 32 or resolution(cost, count) <= wanted
    assert count <= 4 or resolution(cost, count // 2) > wanted
