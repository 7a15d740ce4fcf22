"""Tokens one after the other under SPU: keys and values stay as shares, bytes are as predicted."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

import aero
from aero.cli.private import chosen_settings
from aero.export.plain_weights import write_network
from aero.mpc.cost import Cost
from aero.network.description import operations_of
from aero.network.files import read_network
from aero.network.numpy_reader import forward
from aero.private.environment import find_private_python, private_command
from aero.private.links.keys import Security
from aero.private.measuring.conversation_cost import ConversationCost
from aero.private.parties.events import Event, Listening, Unpadded
from aero.private.parties.job import Generated, collect, generate_privately
from aero.private.parties.party import PartyJob, ask
from aero.private.parties.supervision import TimeLimits
from aero.private.parties.worker_pipe import Worker
from aero.private.party_errors import PartyError
from aero.private.prediction import predicted_costs, remainder
from aero.private.settings import PrivateSettings

from ..export.conftest import trained
from ..models.labels import PYTHIA
from ..network.formed_networks import headed, whole
from .pretending import People

pytestmark = pytest.mark.private

# The prompt, a token of the answer, and new text of a conversation.
PASSES = [[[3, 141, 59, 26, 5]], [[7]], [[9, 1, 2]]]
CHEAP: dict[str, Any] = {"client_one_hot": True, "last_token_head": True}
PAIR = [[[3, 141, 59], [26, 5, 250]], [[7], [31]], [[1, 2], [3, 4]]]


def run(jobs: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    program = Path(__file__).parent / "spu_cache_program.py"
    done = subprocess.run(
        private_command(str(program)), input=json.dumps(jobs), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: list[list[dict[str, Any]]] = json.loads(done.stdout.splitlines()[-1])
    return found


def job(folder: Path, passes: list[Any] = PASSES, **settings: Any) -> dict[str, Any]:
    return {"folder": str(folder), "settings": settings, "passes": passes}


def priced(
    described: Any,
    passes: list[dict[str, Any]],
    new: tuple[int, ...],
    settings: dict[str, Any],
    sequences: int = 1,
) -> Iterator[tuple[float, float, Cost]]:
    """Of every piece of passes over so many new tokens: bytes, what is unexplained, its price."""
    cheetah = settings.get("protocol", "cheetah") == "cheetah"
    for number, (each, rows) in enumerate(zip(passes, new, strict=True), 1):
        length, chosen = sum(new[:number]), PrivateSettings(**settings)
        costs = predicted_costs(described, length, chosen, rows, sequences)
        for piece, sent in each["bytes"].items():
            # Of whole refills and extensions something is left, of the rest nothing.
            left = remainder(costs[piece], 1, sent) if cheetah else sent - costs[piece].comm_bytes
            yield sent, left, costs[piece]


def check(passes: list[dict[str, Any]], most: float = 2e-2) -> None:
    for each in passes:
        # As of whole passes: (1 + x / 256)^256 is off by x^2 / 512 for scores of a few units.
        assert each["difference"] < most
        assert each["tokens"] == each["plain_tokens"]


def test_new_tokens_see_what_the_parties_keep_of_earlier_ones(tmp_path: Path) -> None:
    torch.manual_seed(0)
    grouped = MistralForCausalLM(
        MistralConfig(
            vocab_size=256, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=48, max_position_embeddings=32, num_key_value_heads=2,
            sliding_window=3,
        )
    )  # fmt: skip
    folders = [
        aero.export_weights(trained("SM+LN+G"), tmp_path / "baseline"),
        aero.export_weights(trained("EReg(SM(t)+ScFuFFN_i1)"), tmp_path / "temperatures"),
        aero.export_weights(trained("EReg(SM(t)+FN+ScFuFFN)", **PYTHIA), tmp_path / "rotary"),
        aero.export_weights(trained("SOTA:SM+ScFuFFN_i1", head_dim=24), tmp_path / "shaped"),
        aero.export_weights(grouped.eval(), tmp_path / "window"),
    ]
    jobs = [job(folder) for folder in folders]
    jobs[0]["walk"] = True
    for passes in run(jobs):
        check(passes)
        for each in passes:
            # Nothing but the rounding of 18 fraction bits, through SPU's approximations, differs
            # from a pass over all tokens.
            assert each.get("walk", 0.0) < 2e-3


def test_a_network_of_both_sides_gives_the_logits_of_one_pass_and_reads_no_further(
    tmp_path: Path,
) -> None:
    network, tokens = whole("both sides"), PASSES[0][0]
    folder = write_network(network, tmp_path / "both sides")
    settings = PrivateSettings(reveal="all")
    found = generate_privately(folder, tokens, 1, settings)
    plain = forward(network, [tokens])[0]
    assert np.abs(found.logits[0] - plain).max() < 2e-2 * np.abs(plain).max()
    with pytest.raises(PartyError, match="one pass, as softmax, both sides reads all tokens, got"):
        generate_privately(folder, tokens, 2, settings)


def test_a_network_that_pools_and_chooses_gives_its_class_alone(tmp_path: Path) -> None:
    network, tokens = headed("class", padded=False), PASSES[0][0]
    found = generate_privately(
        write_network(network, tmp_path / "class"), tokens, 1, PrivateSettings()
    )
    assert found.tokens == [forward(network, [tokens])[0]] and found.logits == []


def test_each_token_costs_what_the_simulator_says(tmp_path: Path) -> None:
    folder = aero.export_weights(trained("SM+LN+G", context_length=128), tmp_path)
    described = read_network(folder).description
    prompt = [list(range(40))]
    for settings in ({}, {"private_weights": True, **CHEAP}):  # the last is what commands choose
        [passes] = run([job(folder, [prompt, [[7]], [[9]], [[1, 2, 3, 4]]], **settings)])
        check(passes)
        for sent, left, cost in priced(described, passes, (40, 1, 1, 4), settings):
            assert abs(left) < 2e-3 * cost.comm_bytes + 3e3, sent


def test_prompts_side_by_side_continue_each_its_own(tmp_path: Path) -> None:
    folders = [
        aero.export_weights(trained("SM+LN+G"), tmp_path / "baseline"),
        aero.export_weights(trained("EReg(SM(t)+FN+ScFuFFN)", **PYTHIA), tmp_path / "rotary"),
    ]
    for passes in run([job(folder, PAIR) for folder in folders]):
        check(passes)
        assert all(len(each["tokens"]) == 2 for each in passes)


# The scale of the scores goes into temperatures per position, once for all sequences.
@pytest.mark.parametrize("label", ["SM+LN+G", "EReg(SM(t)+ScFuFFN)"])
@pytest.mark.parametrize("protocol", ["cheetah", "semi2k", "aby3"])
def test_a_batch_costs_what_the_simulator_says(protocol: str, label: str, tmp_path: Path) -> None:
    folder = aero.export_weights(trained(label, context_length=64), tmp_path)
    described = read_network(folder).description
    prompts = [list(range(20)), list(range(30, 50))]
    settings = {"protocol": protocol, "private_weights": protocol == "cheetah", **CHEAP}
    alone, batch = run([job(folder, [p, *n], **settings) for p, n in (
        (prompts[:1], [[[7]]]), (prompts, [[[7], [31]]]),
    )])  # fmt: skip
    check(batch)
    for passes, sequences in ((alone, 1), (batch, 2)):
        for sent, left, cost in priced(described, passes, (20, 1), settings, sequences):
            most = 1e-3 * cost.comm_bytes + 3e3 if protocol == "cheetah" else 200
            assert abs(left) < most, sent


def test_the_command_answers_prompts_side_by_side_at_the_bytes_that_it_says(
    tmp_path: Path,
) -> None:
    folder = aero.export_weights(trained("SM+ScFuFFN"), tmp_path)
    command = [sys.executable, "-m", "aero.cli", "private", "chat", str(folder), "--json", "--yes"]
    given = ["--protocol", "semi2k", "--prompt-tokens", "3,141,59", "--prompt-tokens", "26,5,250"]
    done = subprocess.run([*command, *given, "--tokens", "2"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found, network = json.loads(done.stdout), read_network(folder)
    plain = []
    for prompt in ([3, 141, 59], [26, 5, 250]):
        plain.append([])
        for _ in range(2):
            plain[-1].append(int(forward(network, [prompt + plain[-1]])[0, -1].argmax()))
    assert found["answers"] == plain
    cost = ConversationCost(network.description, chosen_settings(None, "semi2k"), 2)
    for sent, price in zip(found["tokens"], [cost.reading(3), cost.reading(1, 3)], strict=True):
        assert abs(sent["comm_bytes"] - price.comm_bytes) < 1000


def test_other_protocols_give_the_same_tokens_at_their_price(tmp_path: Path) -> None:
    folder = aero.export_weights(trained("SM+LN+G", context_length=64), tmp_path)
    described = read_network(folder).description
    passes = [[list(range(20))], [[7]], [[9, 1, 2]]]
    chosen = [{"protocol": name, **CHEAP} for name in ("semi2k", "aby3")]
    found = run([job(folder, passes, **settings) for settings in chosen])
    for settings, computed in zip(chosen, found, strict=True):
        check(computed)
        for sent, left, _ in priced(described, computed, (20, 1, 3), settings):
            # SPU is deterministic here, but for some dozen bytes of names and sizes.
            assert abs(left) < 200, (settings, sent)


def test_a_run_continues_prompts_side_by_side(tmp_path: Path) -> None:
    folder = aero.export_weights(trained("SM+ScFuFFN"), tmp_path)
    network, prompts = read_network(folder), [[3, 141, 59], [26, 5, 250]]
    settings = PrivateSettings(protocol="semi2k", reveal="last-logits", **CHEAP)
    found = generate_privately(folder, prompts, 2, settings)
    read = prompts
    for tokens, logits in zip(found.tokens, found.logits, strict=True):
        plain = forward(network, read)[:, -1]
        assert np.abs(logits[:, -1] - plain).max() < 2e-2 * np.abs(plain).max()
        assert list(tokens) == plain.argmax(-1).tolist()
        read = [[*one, token] for one, token in zip(read, tokens, strict=True)]


def test_semi2k_opens_the_weights_in_the_first_pass_alone(tmp_path: Path) -> None:
    folder = aero.export_weights(trained("SM+ScFuFFN", context_length=64), tmp_path)
    [[first, *later]] = run([job(folder, [[[5]], [[7]], [[9]]], protocol="semi2k", **CHEAP)])
    embed, *others = operations_of(read_network(folder).description)
    opened = 256 * embed["width"]
    opened += sum(one["in"] * one["out"] for one in others if one.op == "linear")
    for each in later:
        saved = sum(first["bytes"].values()) - sum(each["bytes"].values())
        # 16 bytes of each weight of a product, less what a longer context adds.
        assert saved == pytest.approx(16 * opened, rel=0.02)
    assert not list(Path.cwd().glob("BeaverCache*"))


@pytest.mark.parametrize("protocol", ["cheetah", "semi2k", "aby3"])
def test_products_in_slices_give_the_same_at_their_price(protocol: str, tmp_path: Path) -> None:
    folder = aero.export_weights(trained("SM+ScFuFFN", context_length=64), tmp_path)
    described = read_network(folder).description
    width = described["operations"][0]["width"]
    # Of the table and the head four slices, the last one shorter; the layers' products in some.
    chosen = {"protocol": protocol, "largest_product": 67 * width, **CHEAP}
    assert PrivateSettings(**chosen).slice_lengths(256, 256 * width) == [64] * 4
    [passes] = run([job(folder, [[list(range(20))], [[7]]], **chosen)])
    check(passes)
    for sent, left, cost in priced(described, passes, (20, 1), chosen):
        assert abs(left) < 2e-3 * cost.comm_bytes + 3e3, sent


@pytest.mark.parametrize(("largest_product", "sequences"), [(0, 1), (4096, 1), (0, 2)])
def test_two_processes_answer_over_tls_at_the_predicted_bytes(
    tmp_path: Path, largest_product: int, sequences: int
) -> None:
    folder = aero.export_weights(trained("SM+LN+G"), tmp_path)
    settings = PrivateSettings(client_one_hot=True, last_token_head=True, reveal="last-logits")
    passes = [np.asarray(new)[:sequences] for new in (PAIR[0], PAIR[1], [[9, 1, 2], [3, 4, 5]])]
    reads = map(by_place_of, passes)  # whatever the tokens are
    prompt = next(reads)
    people = People(tmp_path)
    security = people.security("server", "ann"), people.security("ann", "server")
    limits = TimeLimits(connect=120, ready=240, silence=120, stage=240)
    found, network = Generated(), read_network(folder)
    sliced = dataclasses.replace(settings, largest_product=largest_product)
    with serving_once(folder, sliced, security[0], limits) as address:
        job = PartyJob(
            folder, settings, address, tokens=prompt, new_tokens=3, security=security[1],
            limits=limits,
        )  # fmt: skip
        ask(job, lambda event: told(found, event), reads=lambda token: next(reads, ()))
    for index, new in enumerate(passes):
        length = sum(each.shape[1] for each in passes[: index + 1])
        read = np.concatenate(passes[: index + 1], axis=1)
        plain = forward(network, read)[:, -1]
        logits = found.logits[index].reshape(sequences, -1, plain.shape[-1])[:, -1]
        assert np.abs(logits - plain).max() < 2e-2 * np.abs(plain).max()
        rows = new.shape[1]
        costs = predicted_costs(network.description, length, sliced, rows, sequences)
        for call in found.calls[index]:
            # Two processes count each other's messages of the next operation, some 100 kB.
            left = remainder(costs[call.name], 1, call.traffic.comm_bytes)
            assert abs(left) < 5e-3 * costs[call.name].comm_bytes + 2e5, call


def told(found: Generated, event: Event) -> None:
    assert not isinstance(event, Unpadded), event.reason
    collect(found, event)


def by_place_of(tokens: Any) -> tuple[Any, ...]:
    """[B, T] as a party's job has it."""
    places = tuple(map(tuple, np.asarray(tokens).T.tolist()))
    return tuple(place[0] for place in places) if len(tokens) == 1 else places


@contextlib.contextmanager
def serving_once(
    folder: Path, settings: PrivateSettings, security: Security, limits: TimeLimits
) -> Iterator[str]:
    """A server of its own process for one client; its address."""
    job = PartyJob(folder, settings, "127.0.0.1:0", security=security, limits=limits)
    program = [sys.executable, "-m", "aero.private.parties.party_program"]
    worker = Worker([*program, str(find_private_python())], job, folder / "server.log")
    try:
        while True:
            for event in worker.events():
                if isinstance(event, Listening):
                    yield event.address
                    return
            time.sleep(0.05)
    finally:
        worker.end()
