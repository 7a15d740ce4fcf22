"""Two processes compute under SPU over TCP, or say why not; needs the private environment."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import aero
from aero import mpc
from aero.network.files import read_network
from aero.network.numpy_reader import forward
from aero.private.environment import find_private_python
from aero.private.parties.party import PartyJob
from aero.private.parties.supervision import TimeLimits
from aero.private.parties.two_processes import generate_over_tcp
from aero.private.parties.worker_pipe import Worker
from aero.private.party_errors import PartyError
from aero.private.prediction import predicted_costs
from aero.private.settings import PrivateSettings

from ...export.conftest import trained
from ..pretending import Eavesdropper

pytestmark = pytest.mark.private

PROMPT = (231, 77, 195, 18, 242)
LABEL = "SM+ScFuFFN"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(aero.export_weights(trained(LABEL), tmp_path_factory.mktemp("server")))


@pytest.fixture
def public(folder: Path, tmp_path: Path) -> Path:
    """The client's folder: no weights, and a link to the description."""
    made = tmp_path / "client"
    made.mkdir()
    (made / "network.json").symlink_to(folder / "network.json")
    return made


class Pair:
    """A server's and a client's process, with their reports."""

    def __init__(self, server: PartyJob, client: PartyJob, logs: Path, through: Any = None) -> None:
        self.jobs = {"server": server, "client": client}
        self.logs = {party: logs / f"{party}.log" for party in self.jobs}
        self.processes: dict[str, Worker] = {}
        self.events: dict[str, list[dict[str, Any]]] = {"server": [], "client": []}
        self._start("server")
        address = self.wait_for("server", "listening")["address"]
        if through is not None:
            self.middle = through(address)
            address = self.middle.address
        self.jobs["client"] = dataclasses.replace(client, address=address)
        self._start("client")

    def _start(self, party: str) -> None:
        job = dataclasses.replace(self.jobs[party], log=self.logs[party])
        program = [sys.executable, "-m", "aero.private.parties.party_program"]
        command = [*program, str(find_private_python())]
        self.processes[party] = Worker(command, job, self.logs[party], job.memory_bytes)

    def wait_for(self, party: str, *kinds: str, stage: str | None = None) -> dict[str, Any]:
        end = time.monotonic() + 240
        while time.monotonic() < end:
            # Its last words may have been read while the other was waited for.
            for event in self.events[party]:
                if event["event"] in kinds and stage in (None, event.get("stage")):
                    return event
            for other, process in self.processes.items():
                try:
                    self.events[other] += map(msgspec.to_builtins, process.events())
                except PartyError as error:
                    if other == party:
                        raise AssertionError(f"{party}: {error}") from error
            time.sleep(0.02)
        raise AssertionError(f"{party} never reported {kinds}, but {self.events[party]}")

    def ending(self, party: str) -> str:
        event = self.wait_for(party, "done", "failed")
        return str(event.get("reason", "done"))

    def worker_of(self, party: str) -> int:
        parent = self.processes[party]._process.pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        assert len(children) == 1
        return int(children[0])

    def end(self) -> None:
        for process in self.processes.values():
            process.end()


@pytest.fixture
def pairs(folder: Path, public: Path, tmp_path: Path) -> Iterator[Any]:
    made: list[Pair] = []

    def make(server: dict[str, Any] | None = None, through: Any = None, **client: Any) -> Pair:
        limits = TimeLimits(connect=60, ready=120, silence=60, stage=120)
        base = PartyJob(folder, PrivateSettings(), "127.0.0.1:0", limits=limits)
        asking = dataclasses.replace(base, folder=public, tokens=PROMPT, new_tokens=1)
        jobs = dataclasses.replace(base, **server or {}), dataclasses.replace(asking, **client)
        made.append(Pair(*jobs, tmp_path, through))
        return made[-1]

    yield make
    for pair in made:
        pair.end()


def quotes_prompt(text: str) -> bool:
    """Whether the tokens stand in a text in order, however they are written."""
    numbers = re.findall(r"\d+", text)
    prompt = [str(token) for token in PROMPT]
    return any(numbers[at : at + len(prompt)] == prompt for at in range(len(numbers)))


@pytest.mark.parametrize("prompts", [[PROMPT], [PROMPT, PROMPT[::-1]]])
def test_two_processes_compute_what_the_plain_network_computes(
    prompts: list[tuple[int, ...]], folder: Path
) -> None:
    settings, count = PrivateSettings(reveal="all"), len(prompts)
    found = generate_over_tcp(folder, PROMPT if count == 1 else prompts, 1, settings)
    network = read_network(folder)
    plain = forward(network, prompts)
    # 18 fraction bits through two layers, as in the in-process run.
    assert np.abs(found.logits[0].reshape(plain.shape) - plain).max() < 0.02
    assert np.array_equal(np.ravel(found.tokens[0]), plain[:, -1].argmax(-1))
    assert all(each[0] > 0 for each in found.cpu_seconds.values())
    layers = [call for call in found.calls[0] if call.name.startswith("layer")]
    expected = predicted_costs(network.description, len(PROMPT), settings, sequences=count)
    for call in layers:
        # Small layers are within cached triples' refills of the prediction.
        assert call.traffic.comm_bytes == pytest.approx(expected[call.name].comm_bytes, rel=0.15)


NEEDS_ROOT = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/dev/net/tun", os.R_OK | os.W_OK),
    reason="shaping links needs root and /dev/net/tun",
)


def test_the_clients_transcript_has_the_token_and_nothing_else(pairs: Any) -> None:
    pair = pairs()
    assert pair.ending("client") == "done"
    events = pair.events["client"]
    [passed] = [event for event in events if event["event"] == "pass"]
    assert passed.keys() == {"event", "index", "token"}
    stages = [event["stage"] for event in events if event["event"] == "stage"]
    assert stages.count("reveal") == 1
    assert stages.index("reveal") == stages.index("argmax") + 1 == len(stages) - 1
    network = read_network(pair.jobs["server"].folder)
    assert passed["token"] == int(forward(network, [PROMPT])[0][-1].argmax())


@NEEDS_ROOT
def test_encrypted_over_a_shaped_link_the_tokens_and_bytes_are_those_of_loopback(
    folder: Path,
) -> None:
    plain = generate_over_tcp(folder, PROMPT, 1, PrivateSettings())
    wire = mpc.network_profile("wan-400mbps")
    shaped = generate_over_tcp(folder, PROMPT, 1, PrivateSettings(), network=wire, encrypted=True)
    assert shaped.tokens == plain.tokens
    for one, other in zip(shaped.calls[0], plain.calls[0], strict=True):
        assert one.traffic.client_messages == other.traffic.client_messages
        assert one.traffic.server_messages == other.traffic.server_messages
        # SPU sends ciphertexts compressed: their sizes are random, whatever they hold.
        assert one.traffic.comm_bytes == pytest.approx(other.traffic.comm_bytes, rel=2e-3)


def test_the_traffic_of_two_prompts_of_a_length_is_the_same(pairs: Any) -> None:
    captured = []
    for prompt in ((0, 0, 0, 0, 0), PROMPT):
        pair = pairs(tokens=prompt, through=Eavesdropper)
        assert pair.ending("client") == "done"
        pieces = [event["call"] for event in pair.events["client"] if event["event"] == "piece"]
        assert pair.ending("server") == "done"
        assert not [each for party in pair.events.values() for each in party if "reason" in each]
        captured.append((pair.middle.counts, pieces))
    (one_bytes, one_pieces), (other_bytes, other_pieces) = captured
    assert one_bytes == other_bytes
    assert all(count > 10e6 for count in one_bytes.values())
    assert len(one_pieces) > 4
    for one, other in zip(one_pieces, other_pieces, strict=True):
        for party in ("client", "server"):
            messages, size = f"{party}_messages", f"{party}_bytes"
            assert one["traffic"][messages] == other["traffic"][messages], one["name"]
            # Ciphertexts are compressed: their sizes are random, also for equal prompts. That they
            # are independent of the prompt, benchmarks/private/measure_traffic.py tests.
            spread = 0 if one["name"] == "argmax" else 1e-3
            assert one["traffic"][size] == pytest.approx(other["traffic"][size], rel=spread)
    assert [each["name"] for each in one_pieces].count("argmax") == 1


def test_the_workers_memory_is_limited(pairs: Any) -> None:
    pair = pairs(server={"memory_bytes": 5_000_000_000})
    pair.wait_for("server", "stage", stage="layer 0")
    folder = Path(f"/proc/{pair.worker_of('server')}")
    limits = (folder / "limits").read_text().splitlines()
    [line] = [line for line in limits if line.startswith("Max data size")]
    assert line.split()[3:5] == ["6250000000", "6250000000"]  # the supervisor ends it before
    assert (folder / "oom_score_adj").read_text() == "1000\n"


def test_every_thread_that_computes_is_confined(pairs: Any) -> None:
    pair = pairs()
    pair.wait_for("client", "stage", stage="layer 0")
    for party in ("server", "client"):
        threads = list(Path(f"/proc/{pair.worker_of(party)}/task").iterdir())
        assert len(threads) > 3
        for thread in threads:
            status = (thread / "status").read_text()
            assert "NoNewPrivs:\t1\n" in status
            assert re.search(r"^CapEff:\t0+$", status, re.MULTILINE)
    assert pair.ending("client") == "done"


@pytest.mark.parametrize("most", [1_210_000_000, 1_250_000_000])
def test_a_worker_without_memory_ends_both_parties_with_a_sentence(pairs: Any, most: int) -> None:
    """Refused by the system, the second took no message of SPU any more, and nobody said why."""
    pair = pairs(server={"memory_bytes": most})
    server, client = pair.ending("server"), pair.ending("client")
    assert re.match(
        r"private: (the worker (took \S+ GB of memory|ended with signal)|MemoryError in)", server
    )
    assert client.startswith("private: the server gave up ")


def test_no_port_is_open_but_the_servers(pairs: Any) -> None:
    pair = pairs()
    pair.wait_for("client", "stage", stage="layer 0")
    listening = 0
    for party in ("server", "client"):
        for process in (pair.processes[party]._process.pid, pair.worker_of(party)):
            folder = Path(f"/proc/{process}/fd")
            links = [str(each.readlink()) for each in folder.iterdir() if each.is_symlink()]
            own = {link[8:-1] for link in links if link.startswith("socket:[")}
            for table in ("tcp", "tcp6"):
                rows = Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]
                fields = [row.split() for row in rows]
                # 0A: it listens.
                listening += sum(row[3] == "0A" and row[9] in own for row in fields)
    assert listening == 1
    assert pair.ending("client") == "done"


def test_no_secret_leaves_its_party(pairs: Any) -> None:
    assert quotes_prompt(str(np.array(PROMPT))) and quotes_prompt(json.dumps(PROMPT))
    pair = pairs()
    assert pair.ending("client") == pair.ending("server") == "done"
    at_server = json.dumps(pair.events["server"]) + pair.logs["server"].read_text()
    assert not quotes_prompt(at_server)
    assert not any("logits" in event or "token" in event for event in pair.events["server"])
    network = read_network(pair.jobs["server"].folder)
    weights = {f"{value:.6g}" for tensor in network.tensors.values() for value in tensor.flat}
    for party in ("server", "client"):
        said = [event for event in pair.events[party] if event["event"] != "pass"]
        text = json.dumps(said) + pair.logs[party].read_text()
        assert not quotes_prompt(text)
        assert not weights & set(text.replace(",", " ").replace("]", " ").split())


@pytest.mark.parametrize("dying", ["server", "client"])
def test_a_party_that_is_killed_within_a_layer_ends_the_other(pairs: Any, dying: str) -> None:
    pair = pairs()
    pair.wait_for(dying, "stage", stage="layer 0")
    other = "client" if dying == "server" else "server"
    start = time.monotonic()
    os.kill(pair.worker_of(dying), signal.SIGKILL)
    own = r"private: the worker ended with signal SIGKILL \((in stage layer [01])\)"  # two layers
    place = re.match(own, pair.ending(dying))
    assert place is not None
    ending = pair.ending(other)
    told = f"private: the {dying} gave up {place[1]}: the worker ended with signal SIGKILL"
    assert ending.startswith(told)
    assert time.monotonic() - start < 45  # long before anybody runs out of patience
    text = "".join(log.read_text() for log in pair.logs.values())
    assert not quotes_prompt(text + ending)


def test_a_machine_that_vanishes_within_a_layer_ends_the_other(pairs: Any) -> None:
    pair = pairs()
    pair.wait_for("client", "stage", stage="layer 0")
    worker = pair.worker_of("server")
    os.kill(pair.processes["server"]._process.pid, signal.SIGKILL)
    assert "the server closed the connection" in pair.ending("client")
    end = time.monotonic() + 30
    while Path(f"/proc/{worker}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(f"/proc/{worker}").exists(), "the vanished server's worker still computes"


def test_another_configuration_is_named_at_both_parties(pairs: Any) -> None:
    pair = pairs(settings=PrivateSettings(exp_squarings=5))
    refused = pair.wait_for("server", "refused")["reason"]  # and the server waits for others
    assert refused == "settings.exp_squarings must be 8 as here, got 5 from the client"
    assert "settings.exp_squarings must be 5 as here, got 8 from the server" in pair.ending(
        "client"
    )
    stages = [event for events in pair.events.values() for event in events if "stage" in event]
    assert not stages, "a protocol message was sent before the handshake"
