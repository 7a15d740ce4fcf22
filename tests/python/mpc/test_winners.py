"""Which protocols win where, in seconds, dollars and bytes: against single simulations."""

from __future__ import annotations

import json

import pytest
from tests.python.mpc.cost_command import LINK, TINY, run
from tests.python.mpc.given_configurations import BERT, GPT2, T5, VIT

from aero import mpc
from aero.mpc.generation import private_fields
from aero.mpc.profiles import link_profile
from aero.mpc.winners import crossover_mbps, dollar_table, dollars, passes


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
        # A dealer is paid as a party is.
        assert one.machines == (3 if one.stack in ("spu-aby3", "spu-semi2k") else 2)


def test_spu_is_timed_as_aero_private_chat_computes_on_it() -> None:
    (spu,) = (one for one in passes("SM+LN+G", **TINY) if one.stack == "spu-0.9.5")
    chat = mpc.simulate_generation("SM+LN+G", new_tokens=2, **TINY)
    assert spu.later is not None
    assert (spu.first.total, spu.later.total) == chat.per_token


def test_networks_of_one_pass_are_priced_with_the_settings_of_private_runs_too() -> None:
    classifier = GPT2 | {"architectures": ["GPT2ForSequenceClassification"]}
    for config, one_head in ((BERT, False), (VIT, False), (classifier, False), (T5, True)):
        for one in passes(config):
            fields = private_fields(one.stack) | {"last_token_head": one_head}
            assert one.later is None
            assert one.first.total == mpc.simulate(config, stack=one.stack, **fields).total
            assert one.first.stack_fields["client_one_hot"]


def test_fields_that_some_stacks_lack_hold_on_the_others() -> None:
    found = {one.stack: one for one in passes("SM+LN+G", one_bit_product_error=True, **TINY)}
    plain = {one.stack: one for one in passes("SM+LN+G", **TINY)}
    for stack in ("spu-0.9.5", "openbumblebee"):
        assert found[stack].first.stack_fields["one_bit_product_error"]
        assert found[stack].left_out == ()
    for stack in ("spu-semi2k", "spu-aby3"):
        assert found[stack].first.total == plain[stack].first.total
        assert found[stack].left_out == ("one_bit_product_error",)
    with pytest.raises(ValueError, match=r"exp_squarings .* 99"):
        passes("SM+LN+G", exp_squarings=99)
    with pytest.raises(ValueError, match="exp_squaring"):
        passes("SM+LN+G", exp_squaring=5)


def test_where_names_who_wins_in_seconds_dollars_and_bytes() -> None:
    given = ("where", "SM+LN+G", "--rtt-ms", "20", "--mbps", "200")
    found = json.loads(run(*given, "--json"))
    for name in ("prompt", "later tokens"):
        rows = {row["stack"]: row for row in found["rows"] if row["tokens"] == name}
        sent = {
            stack: row["bytes_per_1000"] + row["dealer_bytes_per_1000"]
            for stack, row in rows.items()
        }
        expected = {
            "seconds": min(rows, key=lambda stack: rows[stack]["seconds"]),
            "dollars": min(rows, key=lambda stack: rows[stack]["dollars_per_1000"]),
            "bytes": min(sent, key=lambda stack: sent[stack]),
        }
        assert found["wins"][name] == expected
        for stack in set(expected.values()):
            measures = [measure for measure, one in expected.items() if one == stack]
            words = f"{name}: {stack} wins in {' and '.join(measures)}"
            assert words in run(*given).splitlines()
    # Of each stack, whether it wins or not, whom its users trust.
    for row in found["rows"]:
        told = [line for line in run(*given).splitlines() if row["trust"] in line]
        assert any(row["stack"] in line for line in told)
    for one in found["crossovers"]:
        pair = {one["first"], one["second"]}
        at = [each for each in passes("SM+LN+G") if each.stack in pair]
        place = ("prompt", "later tokens").index(one["tokens"])
        seconds = [each.seconds(link_profile(20, one["mbps"]), "spu-epyc")[place] for each in at]
        assert seconds[0] == pytest.approx(seconds[1], rel=1e-6)
    assert {one["tokens"] for one in found["crossovers"]} == {"prompt", "later tokens"}
    # Whom they trust differs: the measures do not name one family.
    assert len({*found["wins"]["prompt"].values()}) > 1
