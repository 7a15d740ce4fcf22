"""Networks side by side: cells are kept, and the tables say what the cells say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aero
from aero import mpc
from aero.private import comparison
from aero.private.comparison import Cell, compare_networks, predicted
from aero.private.comparison_tables import comparison_tables
from aero.private.job import Generated
from aero.private.parties import Call, Party, Traffic
from aero.private.party_errors import PartyError
from aero.private.settings import PrivateSettings

from ..export.conftest import trained

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


def test_an_option_makes_another_cell_and_reaches_both_sides(
    folders: list[Path], runs: Runs, tmp_path: Path
) -> None:
    output = tmp_path / "a.json"
    compare_networks(cells(folders)[:1], output, print)
    found = compare_networks(cells(folders, exp_squarings=5)[:1], output, print)
    assert [each["cell"]["changes"] for each in found] == [{}, {"exp_squarings": 5}]
    assert runs.asked[1][2] == PrivateSettings(exp_squarings=5)
    assert found[1]["predicted_client_bytes"] < found[0]["predicted_client_bytes"]


def test_the_prediction_is_the_simulators_without_set_up(folders: list[Path]) -> None:
    found = predicted(Cell(folders[1], 8, "wan-100mbps", {}))
    report = mpc.simulate(
        trained("SM+ScFuFFN").config.spec, context_length=8, stack="spu-0.9.5",
        **PrivateSettings().stack_fields() | {"setup": False},
    )  # fmt: skip
    assert found["predicted_client_bytes"] == report.client_bytes
    assert found["predicted_server_bytes"] == report.server_bytes
    latency = report.latency(network="wan-100mbps", compute="spu-epyc,threads=1")
    assert found["predicted_seconds"] == latency.seconds
    over_memory = predicted(Cell(folders[1], 8, "memory", {}))
    assert over_memory["predicted_seconds"] == over_memory["predicted_compute_seconds"]
    assert over_memory["predicted_seconds"] < latency.seconds


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
    assert sum("lan-1gbps" in line for line in text.splitlines()) == 2
    assert any("`private_weights=true`" in line for line in text.splitlines())
    assert text.count("\n| --- |") == 3


def test_tokens_that_do_not_fit_are_an_error_before_any_run(
    folders: list[Path], runs: Runs, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="must fit in the network's context of 32"):
        compare_networks([Cell(folders[0], 33, "tcp", {})], tmp_path / "a.json", print)
    assert not runs.asked
