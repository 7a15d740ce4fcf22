"""Three processes compute under ABY3 over three TLS links; needs the private environment."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aero
from aero.network.files import read_network
from aero.network.numpy_reader import forward
from aero.private.compute.calls import Call
from aero.private.environment import find_private_python
from aero.private.parties.events import Event, Failed, Listening, Stage
from aero.private.parties.party import PartyJob, ask
from aero.private.parties.supervision import TimeLimits
from aero.private.parties.two_processes import generate_over_tcp
from aero.private.parties.worker_pipe import Worker
from aero.private.party_errors import PartyError
from aero.private.prediction import predicted_costs
from aero.private.settings import PrivateSettings

from ...export.conftest import trained
from ..pretending import People

pytestmark = pytest.mark.private

PROMPTS = (3, 141, 59), (0, 0, 0)


def test_three_processes_compute_at_the_predicted_bytes_whatever_the_prompt(
    tmp_path: Path,
) -> None:
    folder = Path(aero.export_weights(trained("SM+ScFuFFN", num_layers=1), tmp_path))
    settings = PrivateSettings(
        protocol="aby3", client_one_hot=True, last_token_head=True, reveal="last-logits",
        argmax=False,
    )  # fmt: skip
    network, sent = read_network(folder), []
    for prompt, count in zip(PROMPTS, (2, 1), strict=True):
        found = generate_over_tcp(folder, prompt, count, settings, encrypted=True)
        read = [*prompt]
        for index, (token, calls) in enumerate(zip(found.tokens, found.calls, strict=True)):
            plain = forward(network, [read])[0, -1]
            # 18 fraction bits, and (1 + x / 256)^256 for e^x, as of the other protocols.
            assert np.abs(found.logits[index][-1] - plain).max() < 2e-2 * np.abs(plain).max()
            costs = predicted_costs(network.description, len(read), settings, 1 if index else None)
            for call in calls:
                # But for some dozen bytes of names and sizes.
                assert abs(call.traffic.comm_bytes - costs[call.name].comm_bytes) < 200, call
            read.append(token)
        sent.append([_sent_by_all(call) for call in found.calls[0]])
    assert sent[0] == sent[1]


def test_three_processes_compute_several_prompts_at_the_predicted_bytes(tmp_path: Path) -> None:
    folder = Path(aero.export_weights(trained("SM+LN+G", num_layers=1), tmp_path))
    settings = PrivateSettings(protocol="aby3", client_one_hot=True, reveal="all")
    network = read_network(folder)
    found = generate_over_tcp(folder, PROMPTS, 1, settings, encrypted=True)
    plain = forward(network, PROMPTS)
    assert np.abs(found.logits[0] - plain).max() < 2e-2 * np.abs(plain).max()
    costs = predicted_costs(network.description, len(PROMPTS[0]), settings, sequences=2)
    for call in found.calls[0]:
        assert abs(call.traffic.comm_bytes - costs[call.name].comm_bytes) < 200, call


def _sent_by_all(call: Call) -> tuple[str, int]:
    return call.name, call.traffic.comm_bytes


def test_a_helper_that_vanishes_while_spu_computes_ends_both_others_with_one_line(
    tmp_path: Path,
) -> None:
    folder = Path(aero.export_weights(trained("SM+ScFuFFN", num_layers=1), tmp_path / "network"))
    settings, people = PrivateSettings(protocol="aby3", client_one_hot=True), People(tmp_path)
    limits = TimeLimits(connect=120, ready=240, silence=120, stage=240)
    job = PartyJob(folder, settings, "127.0.0.1:0", limits=limits)
    processes: list[Worker] = []
    confined: set[str] = set()

    def start(name: str, third: str, **changes: Any) -> str:
        security = people.security(name, "ann", third=third)
        own = dataclasses.replace(job, security=security, **changes)
        program = [sys.executable, "-m", "aero.private.parties.party_program"]
        command = [*program, str(find_private_python())]
        processes.append(Worker(command, own, tmp_path / f"{name}.log"))
        return reported(processes[-1], Listening).address

    def vanish(event: Event) -> None:
        if isinstance(event, Stage) and event.stage == "layer 0":
            confined.update(statuses_of_worker(processes[1]))
            processes[1].stop()

    try:
        server = start("server", "helper")
        helper = start("helper", "server", helps=server)
        asking = dataclasses.replace(
            job, address=server, helper=helper, tokens=PROMPTS[0], new_tokens=1,
            security=people.security("ann", "server", third="helper"),
        )  # fmt: skip
        with pytest.raises(PartyError, match="helper closed the connection") as ended:
            ask(asking, vanish)
        assert str(ended.value).isprintable()
        assert "the helper closed" in reported(processes[0], Failed).reason
        assert confined == {"NoNewPrivs:\t1", "CapEff:\t0000000000000000"}
    finally:
        for each in processes:
            each.end()


def statuses_of_worker(party: Worker) -> set[str]:
    """What the threads of a party's computing process may do."""
    parent = party._process.pid
    [worker] = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    threads = list(Path(f"/proc/{worker}/task").iterdir())
    assert len(threads) > 3
    lines = [line for each in threads for line in (each / "status").read_text().splitlines()]
    return {line for line in lines if line.startswith(("NoNewPrivs", "CapEff"))}


def reported(worker: Worker, kind: type[Any]) -> Any:
    """The first event of a kind."""
    end = time.monotonic() + 240
    while time.monotonic() < end:
        for event in worker.events():
            if isinstance(event, kind):
                return event
        time.sleep(0.05)
    raise AssertionError(f"no {kind.__name__}")
