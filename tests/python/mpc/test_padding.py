"""Longer contexts that are cheaper: against sweeps over every length."""

from __future__ import annotations

from typing import Any

import pytest
from tests.python.mpc.given_configurations import BERT, LLAMA, OPT, T5
from typer.testing import CliRunner

from aero import mpc
from aero.cli import app
from aero.mpc.advice import advise
from aero.mpc.padding import Longer, _pricing, cheaper_lengths, longer_lengths
from aero.mpc.profiles import link_profile
from aero.mpc.simulation import network_on, optimized_stack_names

LINK = mpc.network_profile("lan-1gbps")
COMPUTE = mpc.compute_profile("spu-epyc")


def padded(given: Any, **keywords: Any) -> list[Longer]:
    network, _, priced = network_on(given, **keywords)
    return cheaper_lengths(network, priced, LINK, COMPUTE)


def shown(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["cost", "show", *arguments])
    assert done.exit_code == 0, done.output
    assert "advice" not in done.stdout
    return str(done.stderr)


@pytest.mark.parametrize(
    ("label", "model", "stack"),
    [
        ("SM+LN+G", "mini", "spu-0.9.5"),
        ("SM+LN+G", "pythia-70m", "openbumblebee"),
        ("SM+ScFuFFN", "gpt2", "spu-2024"),
        ("SM+LN+G", "tiny", "aero-optimized"),
    ],
)
def test_no_fall_of_a_hundredth_goes_unsaid(label: str, model: str, stack: str) -> None:
    swept = mpc.sweep(
        label, model=model, stacks=[stack], networks=[LINK], compute="spu-epyc",
        context_length=list(range(1, 1281)),
    )  # fmt: skip
    sent = [0.0, *(row.cost.comm_bytes for row in swept.rows)]
    took = [0.0, *(row.seconds[LINK.name] for row in swept.rows)]
    falls = 0
    for length in range(1, 1025):
        reach = longer_lengths(length)
        within = range(length + 1, -(-5 * length // 4) + 1)
        best = [1 - min(costs[keys] for keys in within) / costs[length] for costs in (sent, took)]
        found = [1 - min(costs[keys] for keys in reach) / costs[length] for costs in (sent, took)]
        assert all(b <= 0.01 or b - f < 0.01 for b, f in zip(best, found, strict=True))
        if max(best) <= 0.01 or (falls := falls + 1) % 5:
            continue
        told = padded(label, model=model, stack=stack, context_length=length)
        for one in told:
            assert one.bytes_saved == pytest.approx(1 - sent[one.keys] / sent[length], abs=1e-9)
            assert one.seconds_saved == pytest.approx(1 - took[one.keys] / took[length], abs=1e-9)
        saved = max(one.bytes_saved for one in told), max(one.seconds_saved for one in told)
        for is_told, is_best in zip(saved, found, strict=True):
            assert is_best <= 5e-4 or is_told == pytest.approx(is_best, abs=1e-9)
    assert falls > 10


@pytest.mark.parametrize("given", [LLAMA, OPT, BERT, T5, "SM+ScFuFFN_i3", "EReg(SM(t)+LN+G)"])
def test_layers_of_one_kind_are_priced_once(given: Any) -> None:
    stacks = [*mpc.stack_names(), "sigma", *optimized_stack_names()]
    ways: list[dict[str, Any]] = [{"stack": stack} for stack in stacks]
    ways += [{"stack": "spu-0.9.5", **one.fields} for one in mpc.optimizations()]
    priced = 0
    for way in ways:
        keywords = {"context_length": 13, "num_layers": 5, **way}
        if not isinstance(given, str):
            del keywords["num_layers"]
        try:
            own = mpc.simulate(given, **keywords)
        except ValueError:  # an optimization that the network does not allow
            continue
        network, _, stack = network_on(given, **keywords)
        sent, took = _pricing(network, stack, LINK, COMPUTE)(13)
        assert sent == pytest.approx(own.comm_bytes, rel=1e-9), way
        assert took == pytest.approx(own.latency(LINK, COMPUTE).seconds, rel=1e-9), way
        priced += 1
    assert priced > 20


def test_the_reach_stays_within_a_quarter_and_within_the_model() -> None:
    assert longer_lengths(1) == [2] and longer_lengths(4) == [5]
    assert longer_lengths(64) == [*range(65, 81)]
    assert longer_lengths(1024, 1024) == [] and longer_lengths(1000, 1024) == [*range(1001, 1025)]
    for length in (1, 2, 3, 26, 100, 384, 1024, 5000, 1 << 24):
        found = longer_lengths(length)
        assert found[0] == length + 1 and found == sorted({*found})
        assert found[-1] <= -(-5 * length // 4) and len(found) <= 80
        assert {*range(length + 1, min(length + 9, found[-1] + 1))} <= {*found}
    # A table of 64 positions ends there.
    assert all(one.keys <= 64 for one in padded(LLAMA, stack="spu-0.9.5", context_length=60))


@pytest.mark.parametrize("length", [26, 27, 28, 31])
def test_show_says_at_which_length_the_bytes_fall(length: int) -> None:
    own, full = (
        mpc.simulate("SM+LN+G", model="mini", stack="spu-0.9.5", context_length=keys)
        for keys in (length, 32)
    )
    saved = 100 * (1 - full.comm_bytes / own.comm_bytes)
    given = ("SM+LN+G", "--model", "mini", "--stack", "spu-0.9.5", "--context-length")
    words = f"advice: pad T to 32: {saved:.1f} % fewer bytes, as its ciphertexts are full"
    assert saved > 2.5 and words in shown(*given, str(length))
    assert "advice" not in shown(*given, "32")


def test_seconds_that_fall_are_advised_with_a_network() -> None:
    given: dict[str, Any] = {"stack": "spu-0.9.5"}
    own, full = (
        mpc.simulate("gpt2", context_length=keys, **given).latency(LINK, COMPUTE).seconds
        for keys in (199, 200)
    )
    words = ("gpt2", "--stack", "spu-0.9.5", "--context-length", "199")
    machines = ("--network", "lan-1gbps", "--compute", "spu-epyc")
    assert f"advice: pad T to 200: {100 * (1 - full / own):.1f} % fewer seconds" in shown(
        *words, *machines
    )
    assert "seconds" not in shown(*words)
    rows = {one.change.name: one for one in advise("gpt2", LINK, context_length=199).rows}
    assert rows["pad T to 200"].seconds == full


def test_a_context_that_fills_its_ciphertexts_is_advised_where_it_is_cheaper() -> None:
    own, full = (mpc.simulate("SM+LN+G", stack="spu-0.9.5", context_length=T) for T in (63, 64))
    assert full.comm_bytes < own.comm_bytes
    slow = link_profile(20, 200)
    rows = {one.change.name: one for one in advise("SM+LN+G", slow, context_length=63).rows}
    assert rows["pad T to 64"].report.total == full.total
    assert rows["pad T to 64"].change.effect == "none"
    assert "pad T to 128" not in {
        one.change.name for one in advise("SM+LN+G", slow, context_length=100).rows
    }


def test_tokens_that_others_see_need_a_mask() -> None:
    found = [
        (one.masked, one.text)
        for given in (BERT, T5, LLAMA)
        for one in padded(given, stack="spu-0.9.5", context_length=31)
    ]
    assert {masked for masked, _ in found} == {True, False}
    assert all(
        text.endswith("a mask must hide the added tokens") is masked for masked, text in found
    )
    advised = advise(T5, LINK, context_length=31).rows
    pads = [one.change.effect for one in advised if one.change.name.startswith("pad T")]
    assert pads and {*pads} == {"none; a mask must hide the added tokens"}
