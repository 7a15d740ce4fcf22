"""Networks side by side: cells are kept, and the tables agree with the cells."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import comparison
import numpy as np
import pytest
from comparison import Cell, compare_networks, predicted
from comparison_tables import comparison_tables, write_between_marks
from measure_networks import app
from typer.testing import CliRunner

import aero
from aero import mpc
from aero.internals.machine import processor
from aero.private.compute.calls import Call, Party, Traffic
from aero.private.parties.job import Generated
from aero.private.party_errors import PartyError
from aero.private.settings import PrivateSettings

from ...export.conftest import trained

LABELS = ("SM+LN+G", "SM+ScFuFFN")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("exports")
    return [Path(aero.export_weights(trained(label), root / label)) for label in LABELS]


class Runs:
    """Takes the place of SPU: every pass costs the same, and each is recorded."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, PrivateSettings]] = []
        self.fails_at = -1

    def __call__(
        self, link: str, folder: Path, tokens: list[int], new_tokens: int,
        settings: PrivateSettings, *_: Any,
    ) -> Generated:  # fmt: skip
        if len(self.asked) == self.fails_at:
            raise PartyError("private: the server closed the connection")
        self.asked.append((link, len(tokens), settings))
        calls = [
            Call("embedding", 1.0, Traffic(4, 3, 2, 1)),
            Call("head", 2.0, Traffic(40, 30, 2, 1)),
        ]
        set_up = [Call("set-up", 9.0, Traffic(900, 900, 1, 1))]
        cpu = {} if link == "memory" else {Party.CLIENT: [0.5], Party.SERVER: [0.75]}
        return Generated([1], [np.zeros((1, 4), np.float32)], [calls], set_up, cpu)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    made = Runs()
    monkeypatch.setattr(comparison, "generate_over", made)
    return made


def cells(folders: list[Path], **changes: Any) -> list[Cell]:
    return [Cell(folder, 8, link, changes) for link in ("tcp", "lan-1gbps") for folder in folders]


def test_a_cell_holds_what_the_pass_cost_and_not_what_came_before_it(
    folders: list[Path], runs: Runs, tmp_path: Path
) -> None:
    found = compare_networks(cells(folders)[:1], tmp_path / "a.json", print)[0]
    assert (found["client_bytes"], found["server_bytes"], found["seconds"]) == (44, 33, 3.0)
    assert found["cpu_seconds"] == {"client": 0.5, "server": 0.75}
    assert found["preparation"] == {"set-up": {"bytes": 1800, "seconds": 9.0}}
    assert found["cell"] == {
        "label": "SM+LN+G", "num_layers": 2, "width": 32, "num_heads": 2, "vocab_size": 256,
        "length": 8, "link": "tcp", "changes": {}, "threads": 1,
    }  # fmt: skip


def test_an_interrupted_comparison_continues_where_it_stopped(
    folders: list[Path], runs: Runs, tmp_path: Path
) -> None:
    output = tmp_path / "new" / "a.json"
    runs.fails_at = 3
    with pytest.raises(PartyError):
        compare_networks(cells(folders), output, print)
    assert len(json.loads(output.read_text())["cells"]) == 3
    runs.fails_at = -1
    assert len(compare_networks(cells(folders), output, print)) == 4
    assert len(runs.asked) == 4
    compare_networks(cells(folders), output, print)
    assert len(runs.asked) == 4


def test_a_kept_cell_gets_the_prediction_of_today(
    folders: list[Path], runs: Runs, tmp_path: Path
) -> None:
    output = tmp_path / "a.json"
    expected = compare_networks(cells(folders)[:1], output, print)[0]
    kept = json.loads(output.read_text())
    kept["cells"][0] |= {"predicted_client_bytes": 1.0, "seconds": 5.0}
    output.write_text(json.dumps(kept))
    found = compare_networks(cells(folders)[:1], output, print)[0]
    assert found == {**expected, "seconds": 5.0}
    assert json.loads(output.read_text())["cells"] == [found]


def test_a_setting_makes_another_cell_and_reaches_both_sides(
    folders: list[Path], runs: Runs, tmp_path: Path
) -> None:
    output = tmp_path / "a.json"
    compare_networks(cells(folders)[:1], output, print)
    found = compare_networks(cells(folders, exp_squarings=5)[:1], output, print)
    assert [each["cell"]["changes"] for each in found] == [{}, {"exp_squarings": 5}]
    assert runs.asked[1][2] == PrivateSettings(exp_squarings=5)
    assert found[1]["predicted_client_bytes"] < found[0]["predicted_client_bytes"]


def test_the_prediction_is_the_simulators_without_set_up() -> None:
    spec = trained("SM+ScFuFFN").config.spec
    cell = {"length": 8, "link": "wan-100mbps", "changes": {}, "threads": 1}
    found = predicted(spec.to_dict(), cell)
    report = mpc.simulate(
        spec, context_length=8, stack="spu-0.9.5",
        **PrivateSettings().stack_fields() | {"setup": False},
    )  # fmt: skip
    assert found["predicted_client_bytes"] == report.client_bytes
    assert found["predicted_server_bytes"] == report.server_bytes
    latency = report.latency(network="wan-100mbps", compute="spu-epyc,threads=1")
    assert found["predicted_seconds"] == latency.seconds
    parts = found["predicted_parts"]
    assert set(parts) == {"embedding", "layers", "head", "argmax"}
    assert sum(part["rounds"] for part in parts.values()) == report.rounds
    wire = latency.seconds - latency.total.compute_ns / 1e9
    assert sum(part["wire_seconds"] for part in parts.values()) == pytest.approx(wire)
    over_memory = predicted(spec.to_dict(), {**cell, "link": "memory"})
    assert over_memory["predicted_seconds"] == over_memory["predicted_compute_seconds"]
    assert over_memory["predicted_seconds"] < latency.seconds


def test_the_exact_gelu_of_an_export_is_another_network_at_its_own_price(
    folders: list[Path], runs: Runs, tmp_path: Path
) -> None:
    exact = tmp_path / "exact"
    shutil.copytree(folders[0], exact)
    described = exact / "network.json"
    described.write_text(described.read_text().replace('"gelu_tanh"', '"gelu_erf"'))
    asked = [Cell(folder, 8, "tcp", {}) for folder in (folders[0], exact)]
    found = compare_networks(asked, tmp_path / "a.json", print)
    assert len(runs.asked) == 2
    tanh, erf = (
        mpc.simulate(
            trained(LABELS[0]).config.spec, context_length=8, stack="spu-0.9.5", gelu=kind,
            **PrivateSettings().stack_fields() | {"setup": False},
        )
        for kind in ("tanh", "erf")
    )  # fmt: skip
    assert erf.comm_bytes > tanh.comm_bytes
    for each, report in zip(found, (tanh, erf), strict=True):
        sent = each["predicted_client_bytes"] + each["predicted_server_bytes"]
        assert sent == report.comm_bytes
    assert compare_networks([], tmp_path / "a.json", print) == found
    rows = [line.split(" | ")[0] for line in comparison_tables(found).splitlines()]
    assert "| SM+LN+G" in rows and "| SM+LN+G, exact GELU" in rows


def test_what_was_measured_on_a_busy_machine_is_measured_again_in_its_place(
    folders: list[Path], runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "a.json"
    # Twice looked at before a pass, recorded before and after it; at first the first is busy.
    loads = iter([1.0, 1.0, 1.0, 9.0, 2.0, 2.0, 2.0, 2.5, 1.0, 1.0, 1.0, 1.0])
    monkeypatch.setattr(comparison.os, "getloadavg", lambda: (next(loads), 0.0, 0.0))
    both = cells(folders)[:2]
    compare_networks(both, output, print, max_load=3)
    found = compare_networks(both, output, print, max_load=3)
    assert [each["load_after"] for each in found] == [1.0, 2.5]
    assert [each["cell"]["label"] for each in found] == list(LABELS)
    compare_networks(both, output, print, max_load=3)
    assert len(runs.asked) == 3


def test_a_busy_machine_is_waited_for(
    folders: list[Path], runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads, slept, said = iter([9.0, 9.0, 9.0, 8.0, 2.0, 2.0, 2.0]), [], []
    monkeypatch.setattr(comparison.os, "getloadavg", lambda: (next(loads), 0.0, 0.0))
    monkeypatch.setattr(comparison.time, "sleep", slept.append)
    compare_networks(cells(folders)[:1], tmp_path / "a.json", said.append, max_load=3)
    assert slept == [5, 5]
    assert "waiting until the machine's load of 9.0 is 3" in said


def test_without_networks_all_is_predicted_and_written_anew(
    folders: list[Path], runs: Runs, tmp_path: Path
) -> None:
    output, page = tmp_path / "a.json", tmp_path / "a.md"
    expected = compare_networks(cells(folders), output, print)
    kept = json.loads(output.read_text())
    for found in kept["cells"]:
        found["predicted_client_bytes"] = 1.0
    output.write_text(json.dumps(kept))
    page.write_text("Words.\n<!-- tables -->\nold\n<!-- end of tables -->\nMore.\n")
    arguments = ["--output", str(output), "--results", str(page)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert json.loads(output.read_text())["cells"] == expected
    assert len(runs.asked) == 4
    text = page.read_text()
    assert text.startswith("Words.\n<!-- tables -->\n### L=2") and text.endswith("-->\nMore.\n")
    assert comparison_tables(expected).strip() in text and "old" not in text


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (("seconds",), "1", "cells[1].seconds: expected a number, got '1'"),
        (("seconds",), 0, "cells[1]: expected bytes and seconds above 0"),
        (("client_bytes",), -70, "cells[1]: expected bytes and seconds above 0"),
        (("cpu_seconds", "client"), None, "cells[1].cpu_seconds.client: expected a number"),
        (("pieces", 0, "seconds"), [], "cells[1].pieces[0].seconds: expected a number"),
        (("cell", "length"), "8", "cells[1].cell.length: expected a whole number"),
        (("cell", "changes"), {"nothing": 1}, "unknown field 'nothing'"),
        (("cell", "link"), "nowhere", "nowhere"),
        (("spec", "width"), -1, "width"),
        (("measured_at",), 1, "cells[1].measured_at: expected a text"),
    ],
    ids=str,
)
def test_a_cell_of_the_file_that_is_none_is_one_line(
    place: tuple[Any, ...], value: Any, says: str, folders: list[Path], runs: Runs, tmp_path: Path
) -> None:
    output = tmp_path / "a.json"
    compare_networks(cells(folders), output, print)
    kept = json.loads(output.read_text())
    inner = kept["cells"][1]
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    output.write_text(json.dumps(kept))
    done = CliRunner().invoke(app, ["--output", str(output)])
    assert done.exit_code == 2 and done.stdout == "", done.exception
    (line,) = done.stderr.splitlines()
    assert says in line
    assert json.loads(output.read_text()) == kept


def test_a_setting_that_is_none_is_named(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["--also-set", "nothing"])
    assert done.exit_code == 2
    assert "aero: --also-set must be FIELD=VALUE, got 'nothing'" in done.output
    nowhere = tmp_path / "nowhere.json"
    done = CliRunner().invoke(app, ["--output", str(nowhere)])
    assert done.exit_code == 2
    assert f"there is no {nowhere}" in done.output
    assert not nowhere.exists()


def test_a_document_without_a_place_for_tables_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text("Words.\n")
    with pytest.raises(ValueError, match=r"must have one place for the results.*<!-- it -->"):
        write_between_marks(page, "it", "new")
    assert page.read_text() == "Words.\n"
    write_between_marks(tmp_path / "b.md", "it", "new\n")
    assert (tmp_path / "b.md").read_text() == "<!-- it -->\nnew\n<!-- end of it -->\n"


def test_tables_compare_every_network_with_the_first(
    folders: list[Path], runs: Runs, tmp_path: Path
) -> None:
    output = tmp_path / "a.json"
    compare_networks(cells(folders), output, print)
    found = compare_networks(cells(folders, private_weights=True)[:2], output, print)
    found[1]["client_bytes"] = 0  # the second network on the first link sends 33 of 77
    text = comparison_tables(found)
    assert "### L=2, C=32, H=2, V=256, T=8" in text
    rows = [line.split(" | ") for line in text.splitlines() if "SM+ScFuFFN" in line]
    assert rows[0][6] == "2.33x"
    assert sum(line.startswith("| lan-1gbps |") for line in text.splitlines()) == 2
    assert any("`private_weights=true`" in line for line in text.splitlines())
    assert text.count("\n| --- |") == 4


def test_a_baseline_that_came_last_at_a_size_is_first_in_its_table(
    folders: list[Path], runs: Runs, tmp_path: Path
) -> None:
    output = tmp_path / "a.json"
    compare_networks(cells(folders)[:2], output, print)
    longer = [Cell(folder, 16, "tcp", {}) for folder in reversed(folders)]
    text = comparison_tables(compare_networks(longer, output, print))
    shorter, longer_part = text.split("### ")[1:]
    for part in (shorter, longer_part):
        networks = [line.split(" | ")[0] for line in part.splitlines() if line.startswith("| SM")]
        assert networks == ["| SM+LN+G", "| SM+ScFuFFN"]
    assert shorter.startswith("L=2, C=32, H=2, V=256, T=8")


def test_what_a_link_adds_stands_part_by_part_beside_the_prediction(
    folders: list[Path], runs: Runs, tmp_path: Path
) -> None:
    found = compare_networks(cells(folders), tmp_path / "a.json", print)
    for each in found[2:]:  # over lan-1gbps
        each["pieces"][0]["seconds"] += 0.5
        each["pieces"][1]["seconds"] += 0.25
    text = comparison_tables(found)
    lines = text[text.index("What `lan-1gbps` adds to loopback") :].splitlines()[4:9]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [row[0] for row in rows] == [
        "embedding", "layers", "final norm and LM head", "argmax", "all"
    ]  # fmt: skip
    assert [row[2] for row in rows] == ["0.5", "0.0", "0.2", "0.0", "0.8"]
    for column, each in ((1, found[2]), (4, found[3])):
        assert rows[-1][column] == f"{each['predicted_rounds']:,.0f}"
    assert "What `tcp`" not in text
    for each in found:
        each["cell"] |= {"link": "memory"}
    assert "Seconds" not in comparison_tables(found)


def test_the_load_of_the_machine_is_said_with_the_seconds(
    folders: list[Path], runs: Runs, tmp_path: Path
) -> None:
    found = compare_networks(cells(folders), tmp_path / "a.json", print)
    for each in found:
        assert each["processor"] == processor()
        each |= {"load_before": 1.0, "load_after": 2.0, "measured_at": "2026-11-21 10:00"}
        each |= {"processor": "EPYC, family 1 model 2", "processors": 2}
    quiet = comparison_tables(found)
    assert "measured 2026-11-21 on" in quiet and "load of the machine 1 to 2." in quiet
    assert "2 processors (EPYC, family 1 model 2) for both parties" in quiet
    found[0] |= {"load_after": 12.0, "measured_at": "2026-11-20 23:59"}
    busy = comparison_tables(found)
    assert "measured 2026-11-20 and 2026-11-21 on" in busy
    assert "load of the machine 1 to 12; the parties shared their processors" in busy


def test_tokens_that_do_not_fit_are_an_error_before_any_run(
    folders: list[Path], runs: Runs, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="must fit in the network's context of 32"):
        compare_networks([Cell(folders[0], 33, "tcp", {})], tmp_path / "a.json", print)
    assert not runs.asked
