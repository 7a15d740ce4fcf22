"""SEMI2K and ABY3: bytes as SPU 0.9.5 sent them, and what is said of the parties."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.python.mpc.cost_command import TINY, run

from aero import mpc, report
from aero.mpc.party_memory import share_bytes
from aero.private.settings import STACKS, PrivateSettings
from aero.tables import in_units
from benchmarks.private_protocols import FAMILIES

# One layer of GPT-2's width at T = 128 without its neighbours, all parties, MB: random weights,
# `benchmarks/private_protocols.py` in SPU 0.9.5.
LAYERS = {
    ("spu-semi2k", "SM+LN+G"): 582.8,
    ("spu-semi2k", "SM+ScFuFFN"): 172.0,
    ("spu-aby3", "SM+LN+G"): 697.9,
    ("spu-aby3", "SM+ScFuFFN"): 210.6,
}
# B per element of 16,384, rows of 512: all parties.
ELEMENTS: dict[str, tuple[tuple[int, ...], float, float]] = {
    "truncation": ((16384,), 8, 28),
    "comparison": ((16384, 64), 112, 108),
    "equality": ((16384, 64), 208, 62),
    "reciprocal": ((16384,), 1010, 1336),
    "reciprocal_square_root": ((16384,), 858, 1548),
    "exp": ((16384,), 344, 616),
    "layernorm": ((32, 512), 122.066, 159.572),
    "rmsnorm": ((32, 512), 121.691, 159.080),
}


@pytest.mark.parametrize(("stack", "label"), LAYERS)
def test_a_layer_sends_what_was_measured(stack: str, label: str) -> None:
    found = mpc.simulate(label, num_layers=1, vocab_size=256, stack=stack)
    assert found.by_layer[0].comm_bytes / 1e6 == pytest.approx(LAYERS[stack, label], rel=5e-3)


@pytest.mark.parametrize("name", ELEMENTS)
def test_an_operation_sends_what_was_measured(name: str) -> None:
    sizes, semi2k, aby3 = ELEMENTS[name]
    for stack, measured in (("spu-semi2k", semi2k), ("spu-aby3", aby3)):
        found = mpc.operation_cost(name, *sizes, stack=stack).comm_bytes / 16384
        assert found == pytest.approx(measured, rel=1e-4)


# A layer of either family in SPU 0.9.5, as private runs compute it.
MEASURED = Path(__file__).parents[3] / "benchmarks/results/private_families_amd_epyc_202611.json"


@pytest.mark.parametrize("row", json.loads(MEASURED.read_text())["layers"])
def test_a_layer_of_bert_and_one_of_llama_send_what_was_measured(row: dict[str, Any]) -> None:
    network = {"model_type": row["network"], **FAMILIES[row["network"]]}
    protocol = next(name for name, stack in STACKS.items() if stack == row["stack"])
    fields = PrivateSettings(protocol=protocol).stack_fields() | {"setup": False}
    report = mpc.simulate(network, context_length=64, stack=row["stack"], **fields)
    found = report.by_layer[0].comm_bytes
    assert found == row["predicted"]
    # Cheetah's random transfers come in whole extensions; the others send the same each time.
    off = {"rel": 2e-3} if protocol == "cheetah" else {"abs": 64}
    assert found == pytest.approx(row["bytes"], **off)


# SecureNN in SPU 0.9.5, 8 x 64 shares: bytes of all parties.
SECURENN: list[tuple[str, tuple[int, ...], float, dict[str, Any]]] = [
    ("truncation", (512,), 61_440, {}),
    ("product", (512,), 81_920 - 61_440, {}),
    ("comparison", (512, 64), 3_559_424, {}),
    ("equality", (512, 64), 7_172_096, {}),
    ("relu", (512,), 4_395_008, {}),
    ("exp", (512,), 716_800, {"exp_clip": False}),
    ("reciprocal", (512,), 7_055_360, {}),
    ("reciprocal_square_root", (512,), 2_930_688, {}),
    ("tanh", (512,), 9_650_176, {}),
    ("gelu", (512,), 10_080_256, {}),
    ("gelu", (512,), 16_500_736, {"gelu": "erf"}),
    ("gelu", (512,), 38_993_920, {"gelu": "erfc"}),
    ("head_product", (1, 8, 64, 8), 24_576, {}),
    ("embedding", (1, 8, 64), 164_456, {}),
    ("embedding", (3, 8, 64), 493_368, {}),
    ("argmax", (64,), 2_911_744, {}),
    ("argmax", (16,), 727_936, {}),
]


@pytest.mark.parametrize(("name", "sizes", "measured", "fields"), SECURENN)
def test_securenn_sends_what_was_measured(
    name: str, sizes: tuple[int, ...], measured: float, fields: dict[str, Any]
) -> None:
    found = mpc.operation_cost(name, *sizes, stack="spu-securenn", **fields)
    assert found.comm_bytes == pytest.approx(measured, abs=1)


def test_securenns_parties_send_what_each_of_them_sent() -> None:
    # Two of the three hold shares and send as much; the third helps.
    for name, sizes, each, helper in (
        ("comparison", (512, 64), 966_656, 1_626_112),
        ("equality", (512, 64), 1_949_696, 3_272_704),
        ("head_product", (1, 8, 64, 8), 10_752, 3_072),
        ("embedding", (1, 8, 64), 46_976, 70_504),
    ):
        found = mpc.operation_cost(name, *sizes, stack="spu-securenn")
        assert (found.client_bytes, found.server_bytes, found.helper_bytes) == (each, each, helper)
    # What is opened to the client the two others send it, a word each.
    generated = mpc.simulate_generation("SM", model="tiny", new_tokens=1, stack="spu-securenn")
    opened = generated.by_kind["reveal"]
    assert opened.helper_bytes == opened.server_bytes > 0 == opened.client_bytes


@pytest.mark.parametrize(("label", "measured"), [("SM+LN+G", 52_107_264), ("SM+FN+R", 28_404_096)])
def test_a_layer_under_securenn_sends_what_was_measured(label: str, measured: int) -> None:
    report = mpc.simulate(
        label, model="tiny", num_layers=1, context_length=16, stack="spu-securenn"
    )
    assert report.by_layer[0].comm_bytes == pytest.approx(measured, rel=1e-4)
    for words in ("argmax: under SecureNN", "no run was timed under SecureNN"):
        assert any(words in told for told in report.unchecked)
    without = mpc.simulate(
        label, model="tiny", num_layers=1, context_length=16, stack="spu-securenn", argmax=False
    )
    assert not any("argmax" in told for told in without.unchecked)
    assert "three parties" in report.trust and report.total.dealer_bytes == 0


def test_a_layer_of_gpt2s_width_under_securenn_sends_what_each_party_sent() -> None:
    table = json.loads((RATES.parent / "securenn_202611.json").read_text())
    layers = table["protocols"]["SECURENN"]
    for label in ("SM+LN+G", "SM+ScFuFFN"):
        report = mpc.simulate(
            label, num_layers=1, vocab_size=256, context_length=table["tokens"],
            stack="spu-securenn",
        )  # fmt: skip
        found = report.by_layer[0]
        sent = [found.client_bytes, found.server_bytes, found.helper_bytes]
        assert sorted(sent) == sorted(layers[label]["by_party"])
        assert found.comm_bytes == layers[label]["bytes"]


def test_one_line_under_every_total_says_who_is_trusted_and_what_the_dealer_sends() -> None:
    semi2k = mpc.simulate("SM", model="tiny", stack="spu-semi2k")
    [line] = [one for one in report.to_text(semi2k).splitlines() if one.startswith("trust:")]
    assert "two parties and a dealer" in line
    assert f"{in_units(semi2k.total.dealer_bytes)} GB beforehand" in line
    assert semi2k.total.dealer_bytes > 0 and semi2k.total.helper_bytes == 0
    aby3 = mpc.simulate("SM", model="tiny", stack="spu-aby3")
    assert "three parties" in aby3.trust and aby3.total.dealer_bytes == 0
    assert aby3.total.helper_bytes == pytest.approx(aby3.comm_bytes / 3, rel=1e-2)
    assert aby3.comm_bytes == aby3.client_bytes + aby3.server_bytes + aby3.total.helper_bytes


def test_stacks_of_other_parties_are_never_compared_in_silence() -> None:
    both = [mpc.simulate("SM", model="tiny", stack=s) for s in ("spu-0.9.5", "spu-aby3")]
    assert any("different trust" in note for note in both[0].compare(both[1]).notes())


def test_every_price_names_the_lines_that_it_is_of() -> None:
    def lines(**fields: Any) -> dict[str, tuple[str, ...]]:
        found = mpc.simulate("SM+LN+G", model="tiny", **fields)
        assert "priced as written" in report.to_text(found)
        return dict(found.lowerings)

    assert "(1 + x/256)^256" in lines()["softmax"][0]
    assert "(1 + x/32)^32" in lines(exp_squarings=5)["softmax"][0]
    assert lines()["act"] != lines(gelu="erf")["act"]
    assert set(lines()) == {"softmax", "act", "layernorm", "embed", "argmax"}


def test_shafts_softmax_sends_what_a_program_of_its_steps_sent() -> None:
    # 32 rows of 128 scores in SPU 0.9.5, x cut by two ReLU, 16 steps from y = 1 / 128.
    for stack, measured in (("spu-semi2k", 6_193_152), ("spu-aby3", 8_142_872)):
        found = mpc.operation_cost("softmax", 32, 128, stack=stack, softmax_steps=16)
        assert found.comm_bytes == pytest.approx(measured, abs=24)
    found = mpc.operation_cost("softmax", 32, 128, stack="spu-0.9.5", softmax_steps=16)
    assert found.comm_bytes == pytest.approx(39_482_992, rel=0.025)  # whole extensions of Ferret


RATES = Path(mpc.__file__).parents[3] / "benchmarks/results/share_rates_amd_epyc_202611.json"


def test_seconds_on_shares_are_bytes_and_products_at_two_measured_rates() -> None:
    machine = mpc.compute_profile("spu-epyc", threads=1)
    measured = json.loads(RATES.read_text())
    rates = {name: getattr(machine, name) for name in measured["rates"]}
    assert rates == pytest.approx(measured["rates"], rel=0.01)
    # The table's misses are those of the profile.
    misses = [
        abs(
            (row["sent_bytes"] * machine.share_byte_seconds
             + row["products"] * machine.ring_product_seconds) / row["seconds"] - 1
        )
        for row in measured["rows"]
    ]  # fmt: skip
    assert max(misses) == pytest.approx(
        max(abs(1 - row["ratio"]) for row in measured["rows"]), abs=0.02
    )
    for stack in ("spu-semi2k", "spu-aby3"):
        report = mpc.simulate("SM+LN+G", stack=stack, num_layers=1, vocab_size=256)
        latency = report.latency("lan-1gbps", machine)
        place = [one.name for one in report.operations].index("FFN, in")
        found, times = report.operations[place], latency.operation_times[place]
        products = 128 * 768 * 3072
        expected = (
            found.cost.client_bytes * machine.share_byte_seconds
            + products * machine.ring_product_seconds
        )
        assert times.compute_alone == pytest.approx(1e9 * expected, rel=1e-6)
        assert latency.seconds > report.latency("lan-1gbps", "none").seconds
        # Other machines have no such rates.
        assert report.latency("lan-1gbps", "paper-testbed").seconds == (
            report.latency("lan-1gbps", "none").seconds
        )


def test_a_third_party_that_only_helps_holds_no_shares() -> None:
    spec = mpc.simulate("SM+LN+G", model="tiny").spec
    assert spec is not None
    assert share_bytes(spec, "spu-securenn") == share_bytes(spec, "spu-semi2k")
    assert share_bytes(spec, "spu-aby3") == 2 * share_bytes(spec, "spu-semi2k")


def test_a_stack_of_shares_is_timed_on_machines_that_compute_on_shares() -> None:
    for stack in ("spu-semi2k", "spu-aby3", "spu-securenn"):
        report = mpc.simulate("SM", stack=stack, **TINY)
        assert report.latency("lan-1gbps") == report.latency("lan-1gbps", "spu-epyc")
        assert report.latency("lan-1gbps").total.compute_ns > 0
        # A setting of the user holds.
        assert report.latency("lan-1gbps", "none").total.compute_ns == 0
    own = mpc.simulate("SM", stack="spu-0.9.5", **TINY)
    assert own.latency() == own.latency(compute="paper-testbed")
    # Two that are compared have one machine.
    first, second = own.compare(report).times("lan-1gbps", None) or ()
    assert (first, second) == tuple(one.latency("lan-1gbps", "spu-epyc") for one in (own, report))


def test_commands_time_stacks_of_shares_so(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("{format: 1, name: mine, base: spu-semi2k, fields: {threads: 1}}")
    sizes, link = ("--model", "tiny"), ("--network", "lan-1gbps")
    one = ("--stack", str(mine))
    for words in (
        ("show", "SM", *sizes, *one, *link),
        ("compare", "SM", "SM", *sizes, "--second-stack", str(mine), *link),
        ("schedule", "SM", *sizes, *one, *link),
        ("generate", "SM", *sizes, "--context-length", "8", *one, *link),
        ("sweep", "--label", "SM", *sizes, "--stack", "spu-2024", *one, *link),
    ):
        assert run(*words) == run(*words, "--compute", "spu-epyc")
        assert run(*words) != run(*words, "--compute", "paper-testbed")
