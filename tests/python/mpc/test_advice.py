"""What to change, and which protocols win where: against single simulations and by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aero import mpc
from aero.cli import app
from aero.mpc.advice import advise, link_profile, share_bytes
from aero.mpc.generation import private_fields
from aero.mpc.winners import crossover_mbps, dollar_table, dollars, passes

LINK = link_profile(20, 200)
TINY: dict[str, Any] = {"model": "tiny", "context_length": 16}
LLAMA = {
    "model_type": "llama", "vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
    "max_position_embeddings": 64,
}  # fmt: skip


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["cost", *arguments])
    assert done.exit_code == 0, done.output
    return str(done.stdout)


def test_each_change_saves_what_two_simulations_say() -> None:
    found = advise("SM+LN+G", LINK, **TINY)
    own = mpc.simulate("SM+LN+G", stack="spu-0.9.5", **TINY)
    assert found.report.total == own.total
    assert found.seconds == own.latency(LINK, "spu-epyc").seconds
    by_name = {one.change.name: one for one in found.rows}
    relu = mpc.simulate("SM+LN+R", stack="spu-0.9.5", **TINY)
    assert by_name["ReLU instead of GELU"].report.total == relu.total
    hot = mpc.simulate("SM+LN+G", stack="spu-0.9.5", client_one_hot=True, **TINY)
    assert any(one.report.total == hot.total and one.change.effect == "none" for one in found.rows)
    assert [one.seconds for one in found.rows] == sorted(one.seconds for one in found.rows)


def test_the_link_changes_seconds_and_no_byte() -> None:
    rows = {one.change.name: one for one in advise("SM+LN+G", LINK, **TINY).rows}
    own = mpc.simulate("SM+LN+G", stack="spu-0.9.5", **TINY)
    faster = rows["ten times the bandwidth"]
    assert faster.report.total == own.total
    assert faster.seconds == own.latency(link_profile(20, 2000), "spu-epyc").seconds


def test_it_ends_in_a_configuration_that_costs_what_it_says() -> None:
    found = advise("SM+LN+G", LINK, **TINY)
    assert found.trained is not None
    fields = dict(found.trained.change.fields)
    assert {"client_one_hot", "last_token_head", "exp_squarings"} <= set(fields)
    again = mpc.simulate(found.trained.change.label, stack="spu-0.9.5", **TINY, **fields)
    assert again.total == found.trained.report.total
    commands = found.commands("gpt2")
    assert commands[0] == f"aero train --label '{found.trained.change.label}'"
    assert commands[-1].startswith("aero private run RUN --set ")
    assert "exp_squarings=5" in commands[-1]
    shared = advise("SM+LN+G", LINK, stack="spu-semi2k", **TINY).commands("gpt2")
    assert shared[-1].startswith("aero private run RUN --set protocol=semi2k --set ")
    assert "one_bit_product_error" not in shared[-1]


def test_a_model_of_others_is_advised_operation_by_operation(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    found = advise(str(tmp_path), LINK, context_length=16)
    names = {one.change.name: one for one in found.rows}
    relu = names["ReLU instead of a smooth activation"]
    own = mpc.simulate(str(tmp_path), stack="spu-0.9.5", context_length=16)
    assert relu.change.effect == "needs training"

    def cost(name: str) -> float:
        return mpc.operation_cost(name, 16 * 96, stack="spu-0.9.5").comm_bytes

    saved = own.by_kind["act"].comm_bytes - relu.report.by_kind["act"].comm_bytes
    assert saved == pytest.approx(2 * (cost("silu") - cost("relu")), rel=1e-6)
    halved = names["half as many heads, twice as wide"].report
    assert 2 * halved.by_kind["softmax"].ots == own.by_kind["softmax"].ots


def test_memory_that_the_shares_do_not_fit_is_said() -> None:
    spec = mpc.simulate("SM+LN+G", **TINY).spec
    assert spec is not None
    own = share_bytes(spec, "spu-0.9.5")
    places = 16 if spec.context_length == 16 else 32
    assert own == 8 * (256 * 32 + places * 32 + 2 * (32 * 96 + 32 * 32 + 2 * 32 * 128))
    found = advise("SM+LN+G", LINK, memory_bytes=1.5 * own, **TINY)
    fits = {one.change.stack: one.fits for one in found.rows if one.change.stack}
    assert fits == {stack: stack != "spu-aby3" for stack in fits}
    assert "spu-aby3" in fits


def test_at_the_crossover_two_protocols_take_equally_long() -> None:
    first, second = (mpc.simulate("SM+LN+G", stack=name) for name in ("spu-0.9.5", "spu-semi2k"))
    at = crossover_mbps(first, second, LINK, "spu-epyc")
    assert at is not None
    seconds = [one.latency(link_profile(20, at), "spu-epyc").seconds for one in (first, second)]
    assert seconds[0] == pytest.approx(seconds[1], rel=1e-6)


def test_dollars_are_machines_and_bytes() -> None:
    table = {**dollar_table(), "machine_hour": 3600.0, "gigabyte_sent": 2.0}
    report = mpc.simulate("SM", stack="spu-semi2k", **TINY)
    sent = (report.comm_bytes + report.total.dealer_bytes) / 1e9
    assert dollars(report, 5.0, 2, table) == pytest.approx(10 + 2 * sent)


def test_every_family_is_timed_for_prompt_and_later_tokens() -> None:
    for one in passes("SM+LN+G", **TINY):
        generation = mpc.simulate_generation(
            "SM+LN+G", new_tokens=2, stack=one.stack, **private_fields(one.stack), **TINY
        )
        assert one.later is not None
        assert (one.first.total, one.later.total) == generation.per_token
        assert one.parties == (3 if one.stack == "spu-aby3" else 2)


def test_spu_is_timed_as_aero_private_chat_computes_on_it() -> None:
    (spu,) = (one for one in passes("SM+LN+G", **TINY) if one.stack == "spu-0.9.5")
    chat = mpc.simulate_generation("SM+LN+G", new_tokens=2, **TINY)
    assert spu.later is not None
    assert (spu.first.total, spu.later.total) == chat.per_token


def test_the_commands_say_it_and_give_it_as_json(tmp_path: Path) -> None:
    sizes = ("--model", "tiny", "--context-length", "16")
    text = run("advise", "SM+LN+G", *sizes, "--rtt-ms", "20", "--mbps", "200", "--memory", "1")
    assert "needs training" in text and "aero private run RUN --set" in text and "fits" in text
    found = json.loads(run("advise", "SM+LN+G", *sizes, "--json"))
    assert found["trained"]["seconds"] < found["as_it_is"]["seconds"] < found["seconds"]
    table = tmp_path / "mine.yaml"
    table.write_text("{format: 1, currency: EUR, machine_hour: 2, gigabyte_sent: 0, source: mine}")
    text = run("where", "SM+LN+G", *sizes, "--dollars", str(table))
    assert "EUR/1,000" in text and " wins; " in text and "dollars by mine" in text
    found = json.loads(run("where", "SM+LN+G", *sizes, "--json"))
    assert {row["stack"] for row in found["rows"]} >= {"spu-0.9.5", "spu-semi2k", "spu-aby3"}


def test_a_context_that_fills_its_ciphertexts_is_advised_where_it_is_cheaper() -> None:
    own, padded = (mpc.simulate("SM+LN+G", stack="spu-0.9.5", context_length=T) for T in (63, 64))
    assert padded.comm_bytes < own.comm_bytes
    rows = {one.change.name: one for one in advise("SM+LN+G", LINK, context_length=63).rows}
    assert rows["pad T to 64"].report.total == padded.total
    assert "pad T to 128" not in {
        one.change.name for one in advise("SM+LN+G", LINK, context_length=100).rows
    }
