"""What a price leaves out or takes for granted is said wherever the price is."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.python.mpc.cost_command import LINK
from transformers import LlamaConfig
from typer.testing import CliRunner

from aero import mpc
from aero.cli import app
from aero.mpc.advice import advise
from aero.mpc.described_stacks import StackDescription, described_stack_names
from aero.mpc.optimization_tables import optimization_table
from aero.mpc.simulation import optimized_stack_names
from aero.mpc.winners import passes
from aero.report import to_html, to_text

TINY: dict[str, Any] = {"model": "tiny", "context_length": 8}


def command(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["cost", *arguments])
    assert done.exit_code == 0, done.output
    return str(done.output)


def refused(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["cost", *arguments])
    assert done.exit_code == 2
    return str(done.output)


# --- words that belong to a price -----------------------------------------------------------------


def test_a_comparison_says_all_that_its_reports_say() -> None:
    first, second = (
        mpc.simulate(label, stack="sigma", **TINY) for label in ("SM+LN+G", "SM(t)+LN+R")
    )
    compared = first.compare(second)
    text, page = to_text(compared), to_html(compared)
    told = {*first.unchecked, *second.unchecked}
    assert any("embed, argmax" in words for words in told)  # sigma quotes neither
    for words in told:
        assert words in text and html.escape(words) in page
        assert any(words in line for line in compared.to_dict()["unchecked"])
    assert text.count(first.unchecked[0]) == 1  # said of both once


# SPU's release keeps every weight secret; the paper's stack and those of others do not.
_SECRET = ("spu-0.9.5", "spu-semi2k", "spu-aby3", "spu-securenn")
_PUBLIC = ("spu-2024", "openbumblebee", *optimized_stack_names(), *described_stack_names())


def prices_everywhere(label: str, stack: str, **fields: Any) -> dict[str, Any]:
    """The price of one network by every command and function; `fields` where they take some."""
    on = ("--model", "tiny", "--stack", stack, "--json")
    set_ = tuple(word for one in fields.items() for word in ("--set", "=".join(map(str, one))))
    at = ("--context-length", "8")
    keywords: dict[str, Any] = {"stack": stack, **TINY, **fields}
    generated = mpc.simulate_generation(label, new_tokens=2, **keywords)
    swept = mpc.sweep(label, model="tiny", stacks=[stack], context_length=8, **fields)
    optimized = optimization_table(
        label, model="tiny", sizes=[(8, None)], stack=stack, **fields
    ).cumulative[0]
    shown, other, generation, scheduled, grid, table = (
        json.loads(command(*words, *on, *set_))
        for words in (
            ("show", label, *at), ("compare", label, "SM", *at),
            ("generate", label, "--new-tokens=2", *at), ("schedule", label, *at),
            ("sweep", "--label", label, "--set", "context_length=8"),
            ("optimizations", label, "--size", "8"),
        )
    )  # fmt: skip
    return {
        "simulate": mpc.simulate(label, **keywords).comm_bytes,
        "simulate_generation": generated.comm_bytes,
        "sweep": swept.rows[0].comm_gb,
        "optimization_table": optimized.comm_bytes,
        "passes": [passes(label, [stack], **TINY, **fields)[0].first.comm_bytes],
        "advise": advise(label, LINK, **keywords).report.comm_bytes,
        "cost show": shown["comm_bytes"],
        "cost compare": sum(row["first_bytes"] for row in other["rows"]),
        "cost generate": generation["comm_bytes"],
        "cost schedule": scheduled["seconds"],
        "cost sweep": grid["rows"][0]["comm_gb"],
        "cost optimizations": table["cumulative"][0]["comm_bytes"],
    }


@pytest.mark.parametrize("stack", [*_SECRET, *_PUBLIC])
def test_every_command_has_the_stacks_own_default_of_secret_factors(stack: str) -> None:
    label, secret = "SOTA:SM(t)", stack in _SECRET
    chosen, other = (
        {"secret_temperature": one, "secret_shape_factors": one} for one in (secret, not secret)
    )
    given = prices_everywhere(label, stack)
    assert given == prices_everywhere(label, stack, **chosen)
    unlike = prices_everywhere(label, stack, **other)
    assert [name for name in given if given[name] == unlike[name]] == []


def test_public_factors_are_said_wherever_they_are_priced() -> None:
    label, words = "SM(t)+LN+G", "temperature is public"
    report = mpc.simulate(label, **TINY)
    stack = "aero-optimized-generation"
    generated = mpc.simulate_generation(label, new_tokens=2, stack=stack, **TINY)
    for text in (
        to_text(report),
        to_text(report.compare(mpc.simulate("SM", **TINY))),
        to_text(generated),
        to_html(generated),
        to_text(mpc.sweep([label, "SM"], model="tiny")),
        to_text(optimization_table(label, model="tiny", sizes=[(8, None)])),
    ):
        assert words in text
    assert words not in to_text(mpc.simulate(label, secret_temperature=True, **TINY))
    assert words not in to_text(mpc.sweep([label], model="tiny", secret_temperature=True))
    # One of a whole head is a factor of the queries' weights, secret or not.
    assert words not in to_text(mpc.simulate("SM(t:head)+LN+G", **TINY))
    # Beside stacks that keep them secret the one that does not is named.
    sizes = ("--model", "tiny", "--context-length", "8")
    for text in (command("where", label, *sizes), command("advise", label, *sizes)):
        assert re.search(f"openbumblebee: qkv/proj: the {words}", text), text
        assert not re.search(f"spu-[a-z0-9.]*: qkv/proj: the {words}", text)


def test_a_priced_cache_says_that_private_runs_keep_it() -> None:
    generated = mpc.simulate_generation("SM", new_tokens=2, **TINY)
    for text in (to_text(generated), to_html(generated), json.dumps(generated.to_dict())):
        assert "aero private" in text and "stay with the parties as shares" in text
    # Of a stack that no private run has it says so.
    for stack, runs in (("spu-aby3", True), ("spu-securenn", False), ("spu-2024", False)):
        text = to_text(mpc.simulate_generation("SM", new_tokens=2, stack=stack, **TINY))
        assert ("as in `aero private`" in text) is runs
        assert (f"does not run {stack}" in text) is not runs
    # Of one token nothing is kept.
    assert "aero private" not in to_text(mpc.simulate_generation("SM", new_tokens=1, **TINY))


def test_a_context_beyond_the_models_is_said() -> None:
    beyond = mpc.simulate("SM", context_length=1025)
    within = mpc.simulate("SM", context_length=1024)
    assert any("1,024 positions" in words for words in beyond.notes) and not within.notes
    assert "1,024 positions" in command("show", "SM", "--context-length", "8192")
    assert "1,024 positions" in to_text(within.compare(beyond))
    assert "1,024 positions" in to_text(mpc.sweep("SM", context_length=[8, 1025]))
    assert "1,024 positions" not in to_text(mpc.sweep("SM", context_length=[8, 1024]))
    # The keys of the last token, not those of the prompt alone.
    long = mpc.simulate_generation("SM", new_tokens=3, context_length=1023)
    assert "1,024 positions" in to_text(long)
    # Presets of this project have no trained table.
    assert not mpc.simulate("SM", model="tiny", context_length=4096).notes


def test_the_gelu_of_pythia_is_said_to_be_another_than_priced() -> None:
    def said(**fields: Any) -> bool:
        report = mpc.simulate("SM+LN+G", model="pythia-70m", context_length=8, **fields)
        return "gelu=erf" in " ".join(report.notes)

    assert said() and said(stack="spu-0.9.5")
    assert not said(gelu="erf")
    # A kernel of its own for both forms, and a price that is quoted.
    assert not said(stack="openbumblebee") and not said(stack="sigma")
    assert not mpc.simulate("SM+LN+G", context_length=8).notes


def test_stacks_of_different_trust_say_so() -> None:
    reports = {
        stack: mpc.simulate("SM", stack=stack, **TINY)
        for stack in ("spu-2024", "openbumblebee", "blb", "sigma")
    }
    assert "dealer" in reports["sigma"].trust
    assert all(report.trust in to_text(report) for report in reports.values())
    first = reports.pop("spu-2024")
    for stack, second in reports.items():
        text = to_text(first.compare(second))
        assert ("different trust" in text) == (stack == "sigma")
        assert first.trust in text and second.trust in text
    sweep = mpc.sweep("SM", model="tiny", stacks=["spu-2024", "sigma"])
    assert "different trust" in to_text(sweep) and "dealer" in to_text(sweep)
    assert "different trust" not in to_text(mpc.sweep("SM", model="tiny"))


def test_a_description_says_whom_it_trusts(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    entries: dict[str, Any] = {"format": 1, "name": "mine", "base": "spu-2024"}
    path.write_text(json.dumps({**entries, "trust": "three parties"}))
    assert mpc.simulate("SM", stack=path, **TINY).trust == "three parties"
    path.write_text(json.dumps({**entries, "trust": 3}))
    with pytest.raises(ValueError, match="trust must be a text, got 3"):
        mpc.simulate("SM", stack=path, **TINY)


def test_a_sweep_says_which_prices_are_quoted_and_which_are_not() -> None:
    text = to_text(mpc.sweep(["SM+LN+G", "SM+LN+R"], model="tiny", stacks=["sigma"]))
    quoted = next(line for line in text.splitlines() if "quotes prices of" in line)
    assert "gelu" in quoted and "argmax" not in quoted and "openbumblebee derives" in quoted
    assert "quotes prices" not in to_text(mpc.sweep("SM", model="tiny"))


def test_what_relu_alone_saves_is_not_called_the_saving_of_no_activation() -> None:
    baseline, relu, plain, fused = (
        mpc.simulate(label, **TINY) for label in ("SM+LN+G", "SM+LN+R", "SM", "SM+ScFuFFN")
    )
    saved = (baseline.comm_bytes - relu.comm_bytes) / 1e9
    for second in (plain, fused):
        compared = baseline.compare(second)
        between = (baseline.comm_bytes - second.comm_bytes) / 1e9
        words = (
            f"ReLU instead of GELU alone saves {saved:,.3f} of the {between:,.3f} GB between them"
        )
        assert words in to_text(compared) and words in to_html(compared)
        assert any(words in note for note in compared.to_dict()["notes"])
        assert words in to_text(second.compare(baseline))
    # With the fields that both have.
    fields = {"stack": "spu-aby3", "batch_heads": True, **TINY}
    one, two, three = (mpc.simulate(label, **fields) for label in ("SM+LN+G", "SM+LN+R", "SM"))
    assert f"saves {(one.comm_bytes - two.comm_bytes) / 1e9:,.3f} of" in to_text(one.compare(three))
    # Not where one has ReLU, neither has GELU, the stacks or sizes differ, or ReLU saves nothing.
    shorter = mpc.simulate("SM", **{**TINY, "num_layers": 1})
    elsewhere = mpc.simulate("SM", stack="openbumblebee", **TINY)
    cheap = StackDescription("cheap", "spu-2024", {}, {"gelu": {"bytes_per_output": 1}}, "a paper")
    quoted = [mpc.simulate(label, stack=cheap, **TINY) for label in ("SM+LN+G", "SM")]
    for one, two in ((baseline, relu), (relu, plain), (plain, fused), (baseline, elsewhere),
                     (baseline, shorter), quoted):  # fmt: skip
        assert "ReLU instead" not in to_text(one.compare(two))


def told_everywhere(label: str, stack: str, length: int) -> dict[str, str]:
    """The texts and pages of every command that shows a price of one pass."""
    on = ("--stack", stack, "--context-length", str(length))
    report = mpc.simulate(label, stack=stack, context_length=length)
    swept = mpc.sweep(label, stacks=[stack], context_length=[length])
    generated = mpc.simulate_generation(label, new_tokens=2, stack=stack, context_length=length)
    return {
        "show": command("show", label, *on),
        "compare": command("compare", label, label, *on),
        "schedule": command("schedule", label, *on),
        "schedule --json": command("schedule", label, *on, "--json"),
        "generate": command("generate", label, *on),
        "sweep": command("sweep", "--label", label, "--stack", stack, "--set",
                         f"context_length={length}"),
        "advise": command("advise", label, *on),
        "page of a report": html.unescape(to_html(report)),
        "page of a comparison": html.unescape(to_html(report.compare(report))),
        "page of a sweep": html.unescape(to_html(swept)),
        "page of a generation": html.unescape(to_html(generated)),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("label", "stack", "length"),
    [("SM(t)+LN+G", "sigma", 1025), ("SM(t)+LN+G", "spu-semi2k", 16)],
)
def test_every_command_says_all_that_its_prices_take_for_granted(
    label: str, stack: str, length: int
) -> None:
    report = mpc.simulate(label, stack=stack, context_length=length)
    assert report.unchecked
    for name, text in told_everywhere(label, stack, length).items():
        if name != "schedule --json":
            assert report.trust in text, name
            assert re.search(r"[Pp]riced as written: ", text), name
        for lines in report.lowerings.values():
            for line in lines:
                assert line in text, name
        for words in (*report.notes, *report.unchecked):
            # A generation has a part more, and keys of tokens after the prompt.
            beyond = "1,024 positions of the model"
            told = beyond if beyond in words else words.partition(": ")[2] or words
            assert told in text, (name, words)
    assert ("dealer sends" in command("schedule", label, "--stack", stack)) == (
        report.total.dealer_bytes > 0
    )


def test_seconds_without_rates_for_computing_say_so() -> None:
    text = command("schedule", "SM", "--stack", "spu-semi2k")
    assert "compute 0.0 s" in text
    assert "the arithmetic on shares has rates in spu-epyc alone" in text
    # Machines of the user's own are named, wherever seconds are.
    on = ("--network", "lan-1gbps")
    for given in (("schedule", "SM"), ("show", "SM"), ("generate", "SM", "--new-tokens", "2"),
                  ("sweep", "--label", "SM")):  # fmt: skip
        assert "no run confirms minutes on this network" in command(*given, *on), given
        assert "no run confirms minutes" not in command(*given), given


def test_the_lines_of_a_program_are_named_where_they_differ() -> None:
    text = command("where", "SM+LN+G", "--model", "tiny", "--context-length", "8")
    told = next(line for line in text.splitlines() if line.startswith("priced as written: "))
    assert "act, openbumblebee: OpenBumbleBee's segment kernel" in told
    assert "; argmax: jnp.argmax;" in told
    found = json.loads(command("where", "SM+LN+G", "--model", "tiny", "--json"))
    assert found["lowerings"]["argmax"] == ["jnp.argmax"] and found["unchecked"]
    swept = mpc.sweep(["SM+LN+G", "SM+LN+R"], model="tiny", exp_squarings=[5, 8])
    one, two = (mpc.simulate(label, **TINY).lowerings["act"][0] for label in ("SM+LN+G", "SM+LN+R"))
    assert swept.lowerings["act"] == (f"{one} or {two}",)
    assert "/32)^32" in swept.lowerings["softmax"][0] and "/256)^256" in to_text(swept)
    ffns = mpc.sweep("SM+LN+G", model="tiny", ffn=["gelu", "relu"])
    assert ffns.lowerings["act"] == (f"{one} or {two}",)
    apart = mpc.sweep("SM", model="tiny", stacks=["spu-semi2k", "spu-aby3"])
    assert {"embed, spu-semi2k", "embed, spu-aby3"} <= {*apart.lowerings}


# Repeated keys would be sent for every query head, at four times the bytes.
@pytest.mark.parametrize("stack", ["spu-2024", "spu-semi2k", "spu-aby3"])
def test_grouped_heads_and_rotations_say_how_they_are_written(stack: str) -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 8, "num_hidden_layers": 2, "vocab_size": 99}
    priced = [
        mpc.simulate(
            LlamaConfig(**sizes, intermediate_size=128, num_key_value_heads=heads),
            context_length=16,
            stack=stack,
        )
        for heads in (2, 8)
    ]
    grouped, full = (report.lowerings for report in priced)
    rotation = [line for line in full["QK"] if "rotate_half" in line]
    assert rotation and "PV" not in full
    assert len(grouped["QK"]) == 2 and {*rotation} < {*grouped["QK"]}
    assert all("of a group" in line for line in ({*grouped["QK"]} - {*rotation}))
    assert "of a group" in grouped["PV"][0]
    assert mpc.simulate("SM", **TINY, stack=stack).lowerings.keys().isdisjoint({"QK", "PV"})


def test_a_quoted_price_is_not_said_to_be_of_another_stacks_lines() -> None:
    sigma, blb = (mpc.simulate("SM+LN+G", stack=stack, **TINY) for stack in ("sigma", "blb"))
    quoted = "the price that the stack's description quotes"
    assert sigma.lowerings["act"] == (quoted,) and "OpenBumbleBee" not in str(sigma.lowerings)
    # A factor on what another stack sends is of that stack's lines.
    assert quoted not in str(blb.lowerings)
    assert mpc.simulate("SM+LN+R", stack="blb", **TINY).lowerings["act"] == ("max(x, 0)",)


def test_a_table_of_optimizations_says_whom_it_trusts(tmp_path: Path) -> None:
    table = optimization_table("SM+LN+G", model="tiny", sizes=[(8, None)])
    report = mpc.simulate("SM+LN+G", **TINY)
    assert f"trust: {report.trust}" in to_text(table)
    assert table.lowerings == report.lowerings and table.to_dict()["trust"] == report.trust
    path = tmp_path / "mine.json"
    entries = {"format": 1, "name": "mine", "base": "spu-2024", "trust": "three parties"}
    path.write_text(json.dumps(entries))
    other = optimization_table("SM", model="tiny", sizes=[(8, None)], stack=str(path))
    assert other.trust == "" and any("different trust" in one for one in other.notes)


def test_what_a_dealer_sends_is_said_beside_other_trust_too() -> None:
    first, second = (mpc.simulate("SM", stack=one, **TINY) for one in ("spu-2024", "spu-semi2k"))
    sent = f"{second.total.dealer_bytes / 1e9:,.3f} GB beforehand"
    assert sent in to_text(first.compare(second)) and sent in to_html(first.compare(second))


# --- words of other tools -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("rtt_ms", "round_trip_seconds"),
        ("latency", "round_trip_seconds"),
        ("mbps", "uplink_mbps"),
        ("memory", "matmul_tile_bytes"),
        ("batch", "aero cost generate --batch"),
        ("seq_len", "context_length"),
        ("num_hidden_layers", "num_layers"),
        ("protocol", "stack"),
        ("semi2k", "spu-semi2k"),
    ],
)
def test_a_word_of_other_tools_is_answered_with_the_name_here(word: str, answer: str) -> None:
    with pytest.raises(ValueError, match=f"simulate: .*{word}.*{answer}"):
        mpc.simulate("SM", **{word: 2})
    with pytest.raises(ValueError, match=f"sweep: .*{word}.*{answer}"):
        mpc.sweep("SM", **{word: [2]})
    assert answer in refused("show", "SM", "--set", f"{word}=2")
    told = refused("show", "SM", f"--{word.replace('_', '-')}", "2")
    assert answer in told or f"--{answer.replace('_', '-')}" in told


@pytest.mark.parametrize(
    ("command", "word", "answer"),
    [
        ("advise", "latency", "--rtt-ms"),
        ("advise", "bandwidth", "--mbps"),
        ("where", "rtt", "--rtt-ms"),
        ("where", "network", "--rtt-ms and --mbps"),
        ("show", "bandwidth", "--network"),
        ("where", "memory", "aero cost advise --memory"),
        ("advise", "protocol", "--stack"),
        ("advise", "cheetah", "--stack spu-0.9.5"),
    ],
)
def test_a_command_answers_with_an_option_of_its_own(command: str, word: str, answer: str) -> None:
    told = refused(command, "SM", f"--{word}", "20").partition("here it is ")[2]
    assert answer in told
    # Where the command has an option, no other is named.
    assert not answer.startswith("--r") or "--network" not in told


@pytest.mark.parametrize(
    ("name", "stack"),
    [("semi2k", "spu-semi2k"), ("Cheetah", "spu-0.9.5"), ("bumblebee", "openbumblebee"),
     ("aby3", "spu-aby3"), ("spu-2023", "spu-2024")],
)  # fmt: skip
def test_a_stack_by_another_name_is_answered_with_its_own(name: str, stack: str) -> None:
    with pytest.raises(ValueError, match=f"got .*{name}.*did you mean '{stack}'"):
        mpc.simulate("SM", stack=name)


def test_nothing_is_suggested_where_nothing_is_near() -> None:
    report = mpc.simulate("SM", **TINY)
    for call, where in (
        (lambda: mpc.simulate("SM", xyzzy=1), "simulate"),
        (lambda: mpc.simulate("SM", stack="xyzzy"), "simulate"),
        (lambda: mpc.sweep("SM", xyzzy=[1]), "sweep"),
        (lambda: report.latency(xyzzy=1), "latency"),
    ):
        with pytest.raises(ValueError, match=f"{where}: .*xyzzy") as error:
            call()
        assert "did you mean" not in str(error.value)


def test_words_of_a_link_are_answered_where_seconds_are_asked_for() -> None:
    report = mpc.simulate("SM", **TINY)
    for word, answer in (("rtt_ms", "round_trip_seconds"), ("mbps", "uplink_mbps"),
                         ("networks", "network")):  # fmt: skip
        with pytest.raises(ValueError, match=f"latency: .*{word}.*{answer}"):
            report.latency(**{word: 3})
    with pytest.raises(ValueError, match=r"network.*report\.latency"):
        mpc.simulate("SM", network="lan-1gbps")


@pytest.mark.parametrize("word", ["rtt_ms", "latency"])
def test_a_field_of_a_network_is_answered_with_the_name_here(word: str) -> None:
    for given, changes in ((f"lan-1gbps,{word}=40", {}), ("lan-1gbps", {word: 40})):
        with pytest.raises(ValueError, match=f"{word}.*round_trip_seconds"):
            mpc.network_profile(given, **changes)
    assert "round_trip_seconds" in refused("show", "SM", "--network", f"lan-1gbps,{word}=40")


# --- columns --------------------------------------------------------------------------------------


def test_columns_of_large_numbers_do_not_touch() -> None:
    stack = "aero-optimized-generation"
    generated = mpc.simulate_generation("SM", new_tokens=10000, batch=9, stack=stack, **TINY)
    assert generated.rounds > 10**7
    table = optimization_table("SM+LN+G", sizes=[(8192, None), (16384, None)])
    for text in (to_text(generated), to_text(table)):
        # A number ends after its decimals, or has thousands in threes.
        assert not re.search(r"\d\.\d{3,}[,;]|\d,\d{4}|\.\d+\.|\d;\s?[\d,]+\.", text), text
    total = next(line for line in to_text(generated).splitlines() if line.startswith("total"))
    assert total.split() == [
        "total", f"{generated.comm_bytes / 1e6:,.2f}", f"{generated.rounds:,}",
    ]  # fmt: skip
    row = next(line for line in to_text(table).splitlines() if line.startswith("spu-2024 "))
    expected = [
        cell
        for comm, rounds in zip(table.cumulative[0].comm_bytes, table.cumulative[0].rounds,
                                strict=True)
        for cell in (f"{(comm or 0) / 1e9:,.2f};", f"{rounds:,}")
    ]  # fmt: skip
    assert row.split() == ["spu-2024", *expected]
