"""Tokens one after the other under SPU: keys and values stay as shares, bytes are as predicted."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

import aero
from aero.export.plain_weights import write_network
from aero.models.foreign_writer import describe_model
from aero.network.files import read_network
from aero.private.environment import private_command
from aero.private.prediction import predicted_costs, remainder
from aero.private.settings import PrivateSettings

from ..export.conftest import trained
from ..models.labels import PYTHIA

pytestmark = pytest.mark.private

# The prompt, a token of the answer, and new text of a conversation.
PASSES = [[[3, 141, 59, 26, 5]], [[7]], [[9, 1, 2]]]
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
        write_network(describe_model(grouped.eval()), tmp_path / "window"),
    ]
    jobs = [job(folder) for folder in folders]
    jobs[0]["walk"] = True
    for passes in run(jobs):
        check(passes)
        for each in passes:
            # Nothing but the rounding of 18 fraction bits, through SPU's approximations, differs
            # from a pass over all tokens.
            assert each.get("walk", 0.0) < 2e-3


def test_each_token_costs_what_the_simulator_says(tmp_path: Path) -> None:
    folder = aero.export_weights(trained("SM+LN+G", context_length=128), tmp_path)
    described = read_network(folder).description
    prompt = [list(range(40))]
    shorter = {"client_one_hot": True, "last_token_head": True}
    for settings in ({}, shorter):
        [passes] = run([job(folder, [prompt, [[7]], [[9]], [[1, 2, 3, 4]]], **settings)])
        check(passes)
        length = 0
        for each, rows in zip(passes, (40, 1, 1, 4), strict=True):
            length += rows
            costs = predicted_costs(described, length, PrivateSettings(**settings), rows)
            for piece, sent in each["bytes"].items():
                # Of whole refills and extensions something is left, of the rest nothing.
                left = remainder(costs[piece], 1, sent)
                assert abs(left) < 2e-3 * costs[piece].comm_bytes + 3e3, (piece, rows)


def test_prompts_side_by_side_continue_each_its_own(tmp_path: Path) -> None:
    folders = [
        aero.export_weights(trained("SM+LN+G"), tmp_path / "baseline"),
        aero.export_weights(trained("EReg(SM(t)+FN+ScFuFFN)", **PYTHIA), tmp_path / "rotary"),
    ]
    for passes in run([job(folder, PAIR) for folder in folders]):
        check(passes)
        assert all(len(each["tokens"]) == 2 for each in passes)


def test_other_protocols_give_the_same_tokens_at_their_price(tmp_path: Path) -> None:
    folder = aero.export_weights(trained("SM+LN+G", context_length=64), tmp_path)
    described = read_network(folder).description
    passes = [[list(range(20))], [[7]], [[9, 1, 2]]]
    chosen = [
        {"protocol": name, "client_one_hot": True, "last_token_head": True}
        for name in ("semi2k", "aby3")
    ]
    found = run([job(folder, passes, **settings) for settings in chosen])
    for settings, computed in zip(chosen, found, strict=True):
        check(computed)
        length = 0
        for each, rows in zip(computed, (20, 1, 3), strict=True):
            length += rows
            costs = predicted_costs(described, length, PrivateSettings(**settings), rows)
            for piece, sent in each["bytes"].items():
                # SPU is deterministic here, but for some dozen bytes of names and sizes.
                assert abs(sent - costs[piece].comm_bytes) < 200, (settings, piece, rows)
