"""What to change, and which protocols win where: against single simulations and by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.python.mpc.cost_command import LINK, TINY, run
from tests.python.mpc.given_configurations import BERT, GPT2, LLAMA, MIXTRAL, T5, VIT

from aero import mpc
from aero.mpc.advice import advise
from aero.mpc.generation import private_fields
from aero.mpc.party_memory import memory_of, share_bytes
from aero.mpc.profiles import link_profile
from aero.mpc.simulation import network_on
from aero.mpc.winners import passes
from aero.private.settings import PrivateSettings


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


def test_single_changes_of_every_kind_are_priced_as_the_network_or_run_that_they_name() -> None:
    rows = {one.change.name: one for one in advise("SM+LN+G", LINK, **TINY).rows}
    titles = {one.name: one.title for one in mpc.optimizations()}
    stacks = {one.change.stack: name for name, one in rows.items() if one.change.stack}
    wanted: dict[str, tuple[str, dict[str, Any]]] = {
        "norms that fold into the weights": ("SM+FN+G", {"final_norm": "foldable"}),
        "no activation and no norm: softmax only": ("SM+ScFuFFN", {}),
        "1 wider heads instead of 2": ("SM+LN+G", {"num_heads": 1, "head_dim": 32}),
        "8 instead of 16 tokens": ("SM+LN+G", {"context_length": 8}),
        titles["client_one_hot"]: ("SM+LN+G", {"client_one_hot": True}),
        titles["last_token_head"]: ("SM+LN+G", {"last_token_head": True}),
        **{
            name: ("SM+LN+G", {"stack": stack, **private_fields(stack)})
            for stack, name in stacks.items()
        },
    }
    assert {"openbumblebee", "spu-semi2k", "spu-aby3"} == {*stacks}
    for name, (label, fields) in wanted.items():
        expected = mpc.simulate(label, **{"stack": "spu-0.9.5", **TINY, **fields})
        assert rows[name].report.total == expected.total, name


@pytest.mark.parametrize("given", ["gpt2", BERT, T5, LLAMA])
def test_protocols_cost_what_the_command_where_says(given: Any) -> None:
    link = link_profile(0.5, 1000)
    rows = {one.change.stack: one for one in advise(given, link).rows if one.change.stack}
    assert rows
    for one in passes(given):
        if one.stack in rows:
            # A generation opens the index of its next token: 8 bytes, half a round trip.
            row, seconds = rows[one.stack], one.seconds(link, "spu-epyc")[0]
            assert row.report.comm_bytes == pytest.approx(one.first.comm_bytes, rel=0, abs=8)
            assert row.seconds == pytest.approx(seconds, rel=0, abs=3e-4)


def test_no_change_is_left_out_in_silence() -> None:
    found = advise("SM+LN+G", LINK, client_one_hot=True, **TINY)
    assert "client_one_hot=true" in found.idle
    stacks = {one.change.stack for one in found.rows} | {*found.idle}
    assert stacks >= {"openbumblebee", "spu-semi2k", "spu-aby3"}
    sizes = ("--model", "tiny", "--context-length", "16", "--rtt-ms", "20", "--mbps", "200")
    plain = advise("SM+LN+G", LINK, **TINY)
    assert all(name in run("advise", "SM+LN+G", *sizes) for name in plain.idle)


def test_the_link_changes_seconds_and_no_byte() -> None:
    rows = {one.change.name: one for one in advise("SM+LN+G", LINK, **TINY).rows}
    own = mpc.simulate("SM+LN+G", stack="spu-0.9.5", **TINY)
    faster = rows["ten times the bandwidth"]
    assert faster.report.total == own.total
    assert faster.seconds == own.latency(link_profile(20, 2000), "spu-epyc").seconds


def test_it_ends_in_a_configuration_that_costs_what_it_says() -> None:
    found = advise("SM+LN+G", LINK, **TINY)
    assert found.trained is not None
    fields: dict[str, Any] = dict(found.trained.change.fields)
    assert {"client_one_hot", "last_token_head", "exp_squarings"} <= set(fields)
    again = mpc.simulate(found.trained.change.label, stack="spu-0.9.5", **TINY, **fields)
    assert again.total == found.trained.report.total
    commands = found.commands("SM+LN+G", "tiny")
    label = found.trained.change.label
    words = f"--set model.preset=tiny --set model.context_length={TINY['context_length']}"
    assert commands[0] == f"aero train --label '{label}' {words}"
    assert commands[-1].startswith("aero private run RUN --set ")
    assert "exp_squarings=5" in commands[-1]
    shared = advise("SM+LN+G", LINK, stack="spu-semi2k", **TINY).commands("SM+LN+G")
    assert shared[-1].startswith("aero private run RUN --set protocol=semi2k --set ")
    assert "one_bit_product_error" not in shared[-1]


def test_exact_settings_and_approximate_ones_are_told_apart() -> None:
    for given in ("gpt2", BERT, LLAMA, T5):
        found = advise(given, LINK)
        effects = {
            name: one.change.effect for one in found.rows for name in one.change.fields
            if not one.change.stack and one.change.network is None
        }  # fmt: skip
        exact = {*found.as_it_is.change.fields}
        assert exact and {effects[name] for name in exact} == {"none"}
        assert found.approximate is not None
        others = {*found.approximate.change.fields} - exact
        assert others and all(effects[name].startswith("approximate") for name in others)
        # Nobody sees more than before.
        assert "argmax" not in exact | others
        assert found.approximate.seconds < found.as_it_is.seconds < found.seconds


def test_the_settings_of_a_run_are_settings_that_a_run_takes() -> None:
    found = advise("gpt2", LINK)
    for one in (found.as_it_is, found.approximate):
        assert one is not None
        PrivateSettings.from_dict(dict(one.change.fields))


def test_fields_that_are_given_hold_in_every_row_that_has_them(tmp_path: Path) -> None:
    given: dict[str, Any] = {"exp_squarings": 6, "one_bit_product_error": True}
    found = advise("SM+LN+G", LINK, **TINY, **given)
    for one in found.rows:
        fields = one.report.stack_fields
        assert fields["exp_squarings"] in (6, one.change.fields.get("exp_squarings"))
        # Shares have none of Cheetah's products.
        of_shares = one.change.stack in ("spu-semi2k", "spu-aby3")
        assert fields["one_bit_product_error"] is not of_shares
    assert {one.change.stack for one in found.rows} >= {"spu-semi2k", "spu-aby3"}
    assert "one_bit_product_error=true" in found.commands("SM+LN+G", "tiny")[-1]
    sizes = ("--model", "tiny", "--context-length", "16", "--set", "num_layers=1")
    for command in ("advise", "where"):
        smaller = json.loads(run(command, "SM+LN+G", *sizes, "--json"))
        row = smaller if command == "advise" else smaller["rows"][0]
        whole = share_bytes(mpc.simulate("SM+LN+G", num_layers=1, **TINY).spec, "spu-0.9.5")
        assert row["share_bytes"] == whole


@pytest.mark.parametrize("given", ["gpt2", BERT, T5, LLAMA, MIXTRAL])
def test_the_table_and_its_notes_fit_a_terminal(given: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({} if given == "gpt2" else given))
    source = given if given == "gpt2" else str(tmp_path)
    lines = run("advise", source, "--memory", "2").splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("change "))
    table = lines[start : lines.index("", start)]
    assert max(map(len, table)) <= 100
    # Each row has a name and numbers of its own, and its note is below.
    rows = table[1 : next(n for n, line in enumerate(table) if line.startswith("saves nothing"))]
    assert len({*rows}) == len(rows)
    noted = {line.split()[-1] for line in rows if line.split()[-1].isdigit()}
    assert noted == {line.partition(":")[0] for line in table if re.match(r"\d+: ", line)}
    found = advise(given, LINK)
    assert len({(one.change.short, one.change.keys) for one in found.rows}) == len(found.rows)


def test_a_network_that_two_changes_make_is_listed_once() -> None:
    # T5's activation is ReLU already.
    made = [json.dumps(one.change.network) for one in advise(T5, LINK).rows if one.change.network]
    assert len(set(made)) == len(made)


def test_a_mixture_whose_routing_is_seen_is_a_change_of_its_own() -> None:
    rows = {one.change.name: one for one in advise(MIXTRAL, LINK).rows}
    (seen,) = (one for one in rows.values() if "see the routing" in one.change.effect)
    own = mpc.simulate(MIXTRAL, stack="spu-0.9.5", revealed_routing=True)
    assert seen.report.total == own.total
    # Where they see it already, it saves nothing more, and no other network has it.
    again = advise(MIXTRAL, LINK, revealed_routing=True)
    assert again.report.total == own.total and seen.change.name in again.idle
    for config in (LLAMA, BERT, "gpt2"):
        found = advise(config, LINK)
        assert seen.change.name not in [*found.idle, *(one.change.name for one in found.rows)]


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


def test_the_shares_of_the_weights_are_words_of_each() -> None:
    spec = mpc.simulate("SM+LN+G", **TINY).spec
    assert spec is not None
    own = share_bytes(spec, "spu-0.9.5")
    places = 16 if spec.context_length == 16 else 32
    assert own == 8 * (256 * 32 + places * 32 + 2 * (32 * 96 + 32 * 32 + 2 * 32 * 128))


def test_what_fits_is_what_a_private_run_says() -> None:
    # GPT-2's embedding alone takes 118 GB in one piece, and SEMI2K cuts it for itself.
    for gigabytes, cheetah, shares in ((200, "yes", "yes"), (64, "sliced", "yes"), (2, "no", "no")):
        found = advise("gpt2", LINK, memory_bytes=gigabytes * 1e9, client_one_hot=True)
        fits = {one.change.stack: one for one in found.rows if one.change.stack}
        for one, answer in (
            (found.as_it_is, cheetah), (fits["spu-semi2k"], shares), (fits["spu-aby3"], shares)
        ):  # fmt: skip
            assert (one.fits, one.sliced) == (answer != "no", answer == "sliced")
            assert one.memory_bytes is not None
            assert (one.memory_bytes <= gigabytes * 1e9) is one.fits
        # Of other stacks the shares alone are known.
        assert fits["openbumblebee"].memory_bytes is None and fits["openbumblebee"].fits
        # A slice sends more, and the price is that of the run with it.
        if cheetah == "sliced":
            fields: dict[str, Any] = dict(found.as_it_is.fields)
            assert fields["largest_product"] > 0
            again = mpc.simulate("gpt2", stack="spu-0.9.5", **fields)
            assert again.total == found.as_it_is.report.total
            whole = mpc.simulate("gpt2", stack="spu-0.9.5", **fields | {"largest_product": 0})
            assert again.comm_bytes > whole.comm_bytes
        # No command starts a run that would be refused.
        runs = [line for line in found.commands("gpt2") if line.startswith("aero private")]
        assert bool(runs) is (cheetah != "no")


def test_where_tells_the_memory_of_a_run() -> None:
    rows = json.loads(run("where", "gpt2", "--json"))["rows"]
    memory = {row["stack"]: row["memory_bytes"] for row in rows}
    assert memory["openbumblebee"] is None
    (cheetah,) = (one for one in passes("gpt2") if one.stack == "spu-0.9.5")
    network, _, _ = network_on("gpt2", stack="spu-0.9.5")
    taken = memory_of(network, cheetah.first, 1024)
    assert taken is not None and memory["spu-0.9.5"] == taken.run_bytes() > 100e9


def test_a_network_that_is_not_run_keeps_one_pass() -> None:
    long = MIXTRAL | {"max_position_embeddings": 1 << 20}
    for given in (MIXTRAL, long):
        found = advise(given, LINK, context_length=16)
        assert found.now.memory_bytes is not None and found.now.memory_bytes < 2e9


def test_a_mixture_keeps_the_weights_of_all_experts() -> None:
    whole = {"operations": network_on(MIXTRAL)[0].core.operations}
    for given in ({}, {"revealed_routing": True}):
        found = advise(MIXTRAL, LINK, **given)
        kept = {one.share_bytes for one in found.rows if not one.change.stack}
        assert found.now.share_bytes == share_bytes(whole, "spu-0.9.5")
        (seen,) = {row.share_bytes for row in passes(MIXTRAL, **given) if row.stack == "spu-0.9.5"}
        assert seen == found.now.share_bytes and seen in kept


def test_the_commands_say_it_and_give_it_as_json(tmp_path: Path) -> None:
    sizes = ("--model", "tiny", "--context-length", "16")
    text = run("advise", "SM+LN+G", *sizes, "--rtt-ms", "20", "--mbps", "200", "--memory", "2")
    assert "needs training" in text and "aero private run RUN --set" in text and "fits" in text
    found = json.loads(run("advise", "SM+LN+G", *sizes, "--json"))
    assert found["trained"]["seconds"] < found["as_it_is"]["seconds"] < found["seconds"]
    table = tmp_path / "mine.yaml"
    table.write_text("{format: 1, currency: EUR, machine_hour: 2, gigabyte_sent: 0, source: mine}")
    text = run("where", "SM+LN+G", *sizes, "--dollars", str(table))
    assert "EUR/1,000" in text and " wins in " in text and "dollars by mine" in text
    found = json.loads(run("where", "SM+LN+G", *sizes, "--json"))
    assert {row["stack"] for row in found["rows"]} >= {"spu-0.9.5", "spu-semi2k", "spu-aby3"}


def test_a_key_head_for_several_query_heads_saves_what_a_grouped_model_saves(
    tmp_path: Path,
) -> None:
    found = advise(LLAMA | {"num_key_value_heads": 4}, LINK, context_length=16)
    rows = {one.change.name: one for one in found.rows}
    for name, heads in (("2 key heads instead of 4", 2), ("one key head instead of 4", 1)):
        grouped = mpc.simulate(
            LLAMA | {"num_key_value_heads": heads}, stack="spu-0.9.5", context_length=16
        )
        assert rows[name].report.total == grouped.total
        assert rows[name].change.effect == "needs training"
    # Of a label too, whose baseline has as many key heads as others.
    named = {one.change.name for one in advise("SM+LN+G", LINK, **TINY).rows}
    assert "one key head instead of 2" in named


def attention_of(report: mpc.CostReport) -> float:
    return sum(report.by_kind[part].comm_bytes for part in ("QK", "softmax", "PV"))


def test_attention_in_blocks_costs_what_each_block_sees() -> None:
    found = advise("SM+LN+G", LINK, context_length=128)
    rows = {one.change.name: one for one in found.rows}
    [row] = [one for name, one in rows.items() if name.startswith("attention in blocks of 64")]
    assert row.change.effect == "none"
    assert row.change.fields == {"attention_block": 64}
    # It has more rounds: a slow link makes it slower, and then it is not advised.
    assert row.seconds > found.seconds
    assert "attention_block" not in " ".join(found.commands("RUN"))
    near = advise("SM+LN+G", link_profile(0.5, 1000), context_length=128)
    assert "attention_block=64" in " ".join(near.commands("RUN"))

    def priced(name: str, *sizes: int) -> float:
        return mpc.operation_cost(name, *sizes, stack="spu-0.9.5").comm_bytes

    # Twelve heads; the first block sees half of the keys.
    expected = {
        "QK": sum(priced("head_product", 12, 64, 64, keys) for keys in (64, 128)),
        "softmax": sum(priced("softmax", 12 * 64, keys) for keys in (64, 128)),
        "PV": sum(priced("head_product", 12, 64, keys, 64) for keys in (64, 128)),
    }
    for part, cost in expected.items():
        # Whole bytes of each block of each layer.
        assert row.report.by_kind[part].comm_bytes == pytest.approx(12 * cost, abs=24)
    own = found.report
    same = {*own.by_kind} - {*expected}
    assert {name: row.report.by_kind[name] for name in same} == {
        name: own.by_kind[name] for name in same
    }


def test_a_window_is_priced_by_blocks_that_leave_out_what_it_hides() -> None:
    rows = {one.change.name: one for one in advise("SM+LN+G", LINK, context_length=512).rows}
    [whole] = [one for name, one in rows.items() if name.startswith("attention in blocks of 64")]
    [wide] = [one for name, one in rows.items() if name.startswith("a window of 128 tokens")]
    [narrow] = [one for name, one in rows.items() if name.startswith("a window of 64 tokens")]
    assert wide.change.effect == narrow.change.effect == "needs training"
    assert attention_of(whole.report) > attention_of(wide.report) > attention_of(narrow.report)


def test_a_models_own_window_saves_once_attention_goes_by_blocks() -> None:
    windowed = LLAMA | {"model_type": "mistral", "sliding_window": 16}
    sizes: dict[str, Any] = {"stack": "spu-semi2k", "context_length": 256, "attention_block": 64}
    plain, own = (mpc.simulate(one, **sizes) for one in (LLAMA, windowed))
    # Blocks of 64 see 64, 128, 192, 256 keys without a window, and 64, 79, 79, 79 with one of 16.
    seen = (64 + 3 * 79) / (64 + 128 + 192 + 256)
    found = own.by_kind["softmax"].comm_bytes / plain.by_kind["softmax"].comm_bytes
    assert found == pytest.approx(seen, rel=2e-2)  # and the rows' own costs
    whole = sizes | {"attention_block": 0}
    assert mpc.simulate(LLAMA, **whole).total == mpc.simulate(windowed, **whole).total


def test_shaft_and_truncformer_are_priced_with_what_they_do_and_not_run() -> None:
    fields: dict[str, Any] = {"context_length": 128, "num_layers": 1}
    # It saves rounds, not bytes: on a slow way with a wide road.
    found = advise("SM+LN+G", link_profile(300, 10000), **fields)
    rows = {one.change.name: one for one in found.rows}
    [steps] = [one for name, one in rows.items() if "SHAFT" in name]
    [bound] = [one for name, one in rows.items() if "TruncFormer" in name]
    for one in (steps, bound):
        assert one.change.effect.startswith("approximate: ")
        assert one.change.effect.endswith("no run of `aero private`")
        assert not one.change.fields.keys() & found.as_it_is.change.fields.keys()
    words = " ".join(found.commands("gpt2"))
    assert "softmax_steps" not in words and "truncations" not in words
    # 15 steps of two products, one of two truncations, two ReLU and a truncation for each score.
    scores = 12 * 128 * 128
    parts = {"product": 30, "relu": 2, "truncation": 33}
    expected = sum(
        times * mpc.operation_cost(name, scores, stack="spu-0.9.5").comm_bytes
        for name, times in parts.items()
    )
    assert steps.report.by_kind["softmax"].comm_bytes == pytest.approx(expected, rel=1e-3)
    # Constant rounds: a longer row waits no longer.
    fields["context_length"] = 512
    long = mpc.simulate("SM+LN+G", stack="spu-0.9.5", softmax_steps=16, **fields)
    assert long.by_kind["softmax"].rounds == steps.report.by_kind["softmax"].rounds
    assert bound.report.comm_bytes < found.report.comm_bytes
    # Four bytes of each party for every number of a product's result, under SEMI2K.
    own, free = (
        mpc.operation_cost("weight_product", 9, 7, 5, stack="spu-semi2k", truncations=kept)
        for kept in (True, False)
    )
    assert own.comm_bytes - free.comm_bytes == 8 * 9 * 5


def test_other_parties_are_trusted_only_where_the_trust_differs() -> None:
    for stack in ("spu-0.9.5", "openbumblebee", "spu-semi2k", "spu-aby3"):
        trust = mpc.simulate("SM", stack=stack, **TINY).trust
        rows = [
            one for one in advise("SM+LN+G", LINK, stack=stack, **TINY).rows if one.change.stack
        ]
        for one in rows:
            same = one.report.trust == trust
            assert one.change.effect == ("none" if same else "none; other parties are trusted")
    names = {one.change.stack: one for one in advise("SM+LN+G", LINK, **TINY).rows}
    assert names["openbumblebee"].change.effect == "none"


def test_the_head_of_the_last_position_is_for_models_whose_next_token_it_gives() -> None:
    classifier = GPT2 | {"architectures": ["GPT2ForSequenceClassification"]}
    for config, is_there in (
        (BERT, False), (BERT | {"model_type": "roberta"}, False), (VIT, False),
        (classifier, False), (T5, True), (LLAMA, True), (MIXTRAL, True),
    ):  # fmt: skip
        found = advise(config, LINK)
        named = [one for one in found.rows if "last_token_head" in one.change.fields]
        assert bool(named) is is_there
        assert ("last_token_head" in found.as_it_is.change.fields) is is_there
        tokens = [one for one in found.rows if "next token" in one.change.name]
        assert bool(tokens) is is_there


def test_advice_shows_what_relu_brings_beside_what_no_activation_brings() -> None:
    found = advise("SM+LN+G", LINK, **TINY)
    assert found.trained is not None
    lines = run("advise", "SM+LN+G", "--model", "tiny", "--context-length", "16", "--rtt-ms",
                "20", "--mbps", "200").splitlines()  # fmt: skip
    trained = [line for line in lines if " and training (" in line]
    fields: dict[str, Any] = {"stack": "spu-0.9.5", **found.trained.change.fields, **TINY}
    wanted = {
        "no activation and no norm: softmax only": "SM+ScFuFFN",
        "ReLU, and norms that fold into the weights": "SM+FN+R",
        "ReLU instead of GELU": "SM+LN+R",
    }
    for name, label in wanted.items():
        gigabytes = mpc.simulate(label, **fields).comm_bytes / 1e9
        (line,) = (each for each in trained if f"training ({name})" in each)
        assert f": {gigabytes:.3f} GB" in line
    # A row of ReLU says nothing of softmax only.
    rows = [line for line in lines if "ReLU" in line]
    assert rows and not any("softmax only" in line for line in rows)


def test_commands_take_models_of_one_length_and_shorter_ones(tmp_path: Path) -> None:
    picture = {
        "model_type": "vit", "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 6,
        "intermediate_size": 40, "image_size": 20, "patch_size": 5,
    }  # fmt: skip
    for config, length in ((picture, 17), (LLAMA, 64)):
        (tmp_path / "config.json").write_text(json.dumps(config))
        for command in ("show", "advise", "where"):
            found = json.loads(run(command, str(tmp_path), "--json"))
            assert command != "show" or found["sizes"]["context_length"] == length


def test_products_that_spu_would_cut_itself_are_cheaper_in_slices() -> None:
    sizes: dict[str, Any] = {"width": 4096, "num_heads": 32, "num_layers": 1, "hidden_width": 11008}
    found = advise("SM+LN+R", link_profile(0.5, 1000), **sizes)
    [row] = [one for one in found.rows if [*one.change.fields] == ["largest_product"]]
    assert row.change.effect == "none"
    sliced = mpc.simulate("SM+LN+R", stack="spu-0.9.5", largest_product=1 << 25, **sizes)
    assert row.report.total == sliced.total
    assert sliced.by_kind["ffn"].comm_bytes < 0.8 * found.report.by_kind["ffn"].comm_bytes
    small = advise("SM+LN+R", link_profile(0.5, 1000), vocab_size=1000)
    assert not any([*one.change.fields] == ["largest_product"] for one in small.rows)


@pytest.mark.parametrize("memory", [float("nan"), 0, -1e9])
def test_memory_that_is_no_amount_is_an_error(memory: float) -> None:
    with pytest.raises(ValueError, match="memory_bytes"):
        advise("SM", LINK, model="tiny", memory_bytes=memory)
