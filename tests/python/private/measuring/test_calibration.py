"""Rates of a machine from the times of small networks, and the files that hold them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from aero import mpc
from aero.cli import app
from aero.mpc.simulation import described_spec
from aero.private.compute.calls import Call, Traffic
from aero.private.measuring import calibration
from aero.private.measuring.calibration import NETWORKS, MeasuredPiece, calibrate, fitted
from aero.private.parties.job import Generated
from aero.private.party_errors import PartyError
from aero.private.prediction import (
    EXTENSION_OTS,
    machine_profiles,
    predicted_costs,
    predicted_durations,
    predicted_operations,
)
from aero.private.settings import PrivateSettings
from aero.reading import UnreadableFileError

# Of a made-up machine, seconds of one thread, and of its waiting.
RATES = {
    "ct_pt_product_seconds": 5e-4,
    "automorphism_seconds": 2e-3,
    "ot_seconds": 1e-7,
    "software_seconds": 3e-4,
}
EXTENSION, WAIT, BYTE, BYTE_COMPUTED = 0.7, 2e-4, 1e-8, 3e-8


def pieces_of_a_machine(others: float = 0.0) -> list[MeasuredPiece]:
    """The networks' times there; other work makes the clock, not the processors, go slower."""
    found = []
    for cell in NETWORKS:
        settings = PrivateSettings()
        costs = predicted_costs(described_spec(cell.spec), cell.tokens, settings)
        for name, cost in costs.items():
            if name == "set-up":
                continue
            made = 1 if name == "embedding" else 0
            used = (
                cost.ct_pt_products / 2 * RATES["ct_pt_product_seconds"]
                + cost.automorphisms / 2 * RATES["automorphism_seconds"]
                + cost.ots * RATES["ot_seconds"]
                + cost.rounds * RATES["software_seconds"]
                + made * EXTENSION
                + cost.comm_bytes * BYTE_COMPUTED
            )
            waited = cost.rounds * WAIT + cost.comm_bytes * BYTE
            seconds = (used + waited) * (1 + others)
            found.append(MeasuredPiece(cell.name, name, cost, made, seconds, used))
    return found


def test_the_rates_of_a_machine_are_found_again() -> None:
    found = fitted(pieces_of_a_machine(), quiet=True)
    for name in ("ct_pt_product_seconds", "automorphism_seconds"):
        assert found.compute[name] == pytest.approx(RATES[name], rel=1e-6)
    # An OT brings its part of an extension with it.
    expected = RATES["ot_seconds"] + EXTENSION / EXTENSION_OTS
    assert found.compute["ot_seconds"] == pytest.approx(expected, rel=1e-6)
    software = RATES["software_seconds"] + WAIT
    assert found.network["software_seconds"] == pytest.approx(software, rel=1e-5)
    assert found.network["uplink_mbps"] == pytest.approx(8e-6 / (BYTE + BYTE_COMPUTED), rel=1e-3)
    assert found.mean_miss < 1e-6


def test_other_work_of_the_machine_does_not_change_what_is_computed() -> None:
    quiet = fitted(pieces_of_a_machine(), quiet=True)
    busy = fitted(pieces_of_a_machine(others=4.0), quiet=False)
    assert busy.compute == pytest.approx(quiet.compute)
    # Waiting that may be for a processor is left out, and the source says so.
    assert busy.network["software_seconds"] == pytest.approx(RATES["software_seconds"])
    assert "busy machine" in busy.source and "busy" not in quiet.source


def test_the_large_piece_counts_as_much_as_its_seconds() -> None:
    """Measured: a few hundred automorphisms take 1.7 times as much each as thousands."""
    pieces = [
        dataclasses.replace(piece, cpu_seconds=slow, seconds=piece.seconds + slow)
        for piece in pieces_of_a_machine()
        for slow in [piece.cpu_seconds * (1.7 if piece.cost.automorphisms < 1000 else 1)]
    ]
    found = fitted(pieces, quiet=False).pieces
    largest = max(found, key=lambda piece: piece.seconds)
    assert largest.network.startswith("SM+ScFuFFN, gpt2")
    assert largest.fitted_cpu_seconds == pytest.approx(largest.cpu_seconds, rel=0.02)


def test_automorphisms_and_products_are_told_apart() -> None:
    """A fit without a piece of many automorphisms and few products gives one of them nothing."""
    shares = [
        piece.cost.automorphisms / piece.cost.ct_pt_products
        for piece in pieces_of_a_machine()
        if piece.cost.automorphisms > 500
    ]
    assert max(shares) > 10 * min(shares)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    path = tmp_path / "machine.json"
    path.write_bytes(msgspec.json.encode(fitted(pieces_of_a_machine(), quiet=True)))
    return path


def test_a_file_is_a_network_and_a_compute_profile(machine: Path) -> None:
    network, compute = (
        mpc.network_profile(str(machine)),
        mpc.compute_profile(f"{machine},threads=4"),
    )
    assert compute.threads == 4
    assert compute.automorphism_seconds == pytest.approx(RATES["automorphism_seconds"])
    assert network.name == str(machine) and "calibrated on" in network.source
    assert compute.source.endswith("changed by the user")
    arguments = ["cost", "show", "SM+ScFuFFN", "--network", machine, "--compute", machine]
    told = json.loads(machine.read_text())
    machine.write_text(json.dumps({**told, "source": told["source"] + "\x1b[31m\n"}))
    shown = CliRunner().invoke(app, [str(each) for each in arguments])
    assert "\x1b" not in shown.output
    assert shown.exit_code == 0, shown.output
    assert "calibrated on" in shown.output


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"compute": {"threads": 0}}, "compute_profile"),
        ({"compute": {"threads": 1, "rate": 2}}, "compute of `aero private calibrate`"),
        ({"network": {"uplink_mbps": -1, "downlink_mbps": 1, "round_trip_seconds": 0}}, "network"),
        ({"network": []}, "network"),
        ({"network": {"uplink_mbps": {}, "downlink_mbps": 1, "round_trip_seconds": 0}}, "network"),
        ({"compute": {"threads": 2**70, "ct_pt_product_seconds": 1}}, "compute"),
    ],
)
def test_a_damaged_file_is_one_line(machine: Path, change: dict[str, Any], words: str) -> None:
    machine.write_text(json.dumps({**json.loads(machine.read_text()), **change}))
    with pytest.raises(UnreadableFileError) as caught:
        mpc.network_profile(str(machine))
        mpc.compute_profile(str(machine))
    assert words.split("_")[0] in str(caught.value) and "\n" not in str(caught.value)


def test_a_wire_gets_the_machines_software_per_round_and_byte(machine: Path) -> None:
    loopback, compute = machine_profiles(str(machine), "tcp", 2)
    wire, same = machine_profiles(str(machine), "wan-100mbps", 2)
    assert compute == same and compute.threads == 2
    # Full duplex: half of the bytes go up, and the machine's rate counts all of them.
    computed = 2 * (BYTE + BYTE_COMPUTED) * 1e6 / 8
    assert wire.full_duplex and wire.round_trip_seconds == 0.08
    assert wire.uplink_mbps == pytest.approx(1 / (1 / 100 + computed), rel=1e-3)
    assert wire.software_seconds == loopback.software_seconds > 0


def test_the_pieces_make_the_whole(machine: Path) -> None:
    profiles = machine_profiles(str(machine), "tcp", 1)
    operations = predicted_operations(described_spec(NETWORKS[0].spec), 16, PrivateSettings())
    pieces = predicted_durations(operations, *profiles)
    assert list(pieces) == ["embedding", "layer 0", "head", "argmax"]
    report = mpc.simulate(
        NETWORKS[0].spec, context_length=16, stack="spu-0.9.5",
        **PrivateSettings().stack_fields() | {"setup": False},
    )  # fmt: skip
    whole = report.latency(*profiles).seconds
    assert sum(each.seconds for each in pieces.values()) == pytest.approx(whole)


def scripted(monkeypatch: pytest.MonkeyPatch, others: float) -> list[tuple[str, int]]:
    """Runs that take the machine's times, while others keep so many processors busy."""
    asked = []
    by_network = {
        (piece.network, piece.piece): piece for piece in pieces_of_a_machine(others=others)
    }

    def run(link: str, folder: Path, tokens: list[int], *_: object, python: object) -> Generated:
        cell = NETWORKS[len(asked)]
        asked.append((link, len(tokens)))
        assert (folder / "exported").read_text() == cell.name
        calls = []
        for name in ("embedding", "layer 0", "head", "argmax"):
            piece = by_network[cell.name, name]
            # An extension more than the average, or none; no refill that is not used up.
            sent = piece.cost.comm_bytes + 266_259 * (
                piece.extensions - piece.cost.ots / EXTENSION_OTS
            )
            if piece.cost.elementwise_ciphertexts % 1:
                sent -= 1_143_924 * (piece.cost.elementwise_ciphertexts / 4 % 0.5)
            traffic = Traffic(client_bytes=round(sent))
            calls.append(Call(name, piece.seconds, traffic, cpu_seconds=piece.cpu_seconds))
        return Generated(calls=[calls])

    monkeypatch.setattr(calibration, "generate_over", run)
    monkeypatch.setattr(calibration._Processors, "taken_by_others", lambda self: others)
    return asked


def export(cell: Any, folder: Path) -> None:
    (folder / "exported").write_text(cell.name)


def test_what_is_run_is_what_is_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, said = scripted(monkeypatch, 0.0), []
    found = calibrate(export, said.append)
    assert asked == [("tcp", cell.tokens) for cell in NETWORKS]
    assert len(said) == len(NETWORKS) and said[0].startswith("1 of 2: SM+LN+G")
    assert found.quiet and found.mean_miss < 0.01
    rate = found.compute["automorphism_seconds"]
    assert rate == pytest.approx(RATES["automorphism_seconds"], rel=1e-3)


def test_a_busy_machine_is_refused_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("aero.cli.private_calibration.export_random", export)
    monkeypatch.setattr("aero.private.environment.find_private_python", lambda: None)
    ran = scripted(monkeypatch, 1.5)
    output = tmp_path / "machine.json"
    arguments = ["private", "calibrate", "--output", str(output)]
    refused = CliRunner().invoke(app, arguments)
    assert refused.exit_code == 2 and not output.exists()
    assert ran == []  # the load is looked at first
    assert "needs a quiet machine" in refused.stderr and "others kept 1.50 of" in refused.stderr
    scripted(monkeypatch, 1.5)
    taken = CliRunner().invoke(app, [*arguments, "--busy"])
    assert taken.exit_code == 0, taken.stderr
    assert "waiting is left out" in taken.stdout
    written = json.loads(output.read_text())
    assert [*written][:6] == ["source", "network", "compute", "quiet", "mean_miss", "pieces"]
    assert not written["quiet"] and written["processors_taken_by_others"] == 1.5
    assert mpc.compute_profile(str(output)).ot_seconds > 0


def test_a_run_that_fails_ends_the_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object, python: object) -> Generated:
        raise PartyError("private: the worker ended")

    monkeypatch.setattr(calibration, "generate_over", run)
    with pytest.raises(PartyError, match="the worker ended"):
        calibrate(export)


def test_the_work_of_this_process_is_not_others() -> None:
    clock = calibration._Processors()
    sum(number * number for number in range(3_000_000))
    own = calibration._own_seconds() - clock._own
    assert own > 0.05
    elapsed = calibration.time.monotonic() - clock._start
    others = clock.taken_by_others()
    # Read last, so that others' work meanwhile makes the bound larger.
    busy = calibration._busy_seconds() - clock._busy
    assert busy > 0
    assert others * elapsed <= max(0.0, busy - own) + 0.2
