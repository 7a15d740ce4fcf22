"""Where the numbers of networks and machines come from."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from tests.python.refusals import assert_refused

from aero import mpc
from aero.mpc.profiles import (
    compute_names,
    link_profile,
    link_words,
    network_names,
    network_profile,
)
from aero.report import to_text

# CPU seconds of both parties on one core of an AMD EPYC (Zen 5, 2.6 GHz), SPU 0.9.5:
# benchmarks/results/spu_rates_amd_epyc_202611.md. Matrix products of shares with the truncation.
MEASURED: dict[tuple[str, tuple[int, ...]], float] = {
    ("head_product", (1, 128, 64, 128)): 0.731,
    ("head_product", (1, 128, 128, 64)): 0.740,
    ("head_product", (1, 512, 256, 32)): 2.684,
    ("head_product", (1, 1024, 64, 64)): 2.685,
    ("head_product", (1, 128, 768, 64)): 1.455,
    ("head_product", (1, 64, 8192, 64)): 5.851,
    ("head_product", (1, 128, 768, 768)): 12.239,
    ("product", (131072,)): 0.750,
    ("relu", (65536,)): 0.829,
    ("comparison", (131072, 64)): 2.249,
}


def test_measured_rates_give_the_seconds_they_were_fitted_to() -> None:
    rates = mpc.compute_profile("spu-epyc")
    errors = []
    for (name, sizes), seconds in MEASURED.items():
        cost = mpc.operation_cost(name, *sizes, stack="spu-0.9.5")
        homomorphic = (
            cost.ct_pt_products * rates.ct_pt_product_seconds
            + cost.plaintext_encodings * rates.plaintext_encoding_seconds
            + cost.automorphisms * rates.automorphism_seconds
            + cost.elementwise_ciphertexts * rates.elementwise_ciphertext_seconds
        )
        truncated = mpc.operation_cost("truncation", *sizes).ots if name == "product" else 0
        both_parties = 2 * (cost.ots + truncated) * rates.ot_seconds
        errors.append(abs((homomorphic + both_parties) / seconds - 1))
    assert sum(errors) / len(errors) < 0.085
    assert max(errors) < 0.19


def test_products_have_as_many_encodings_as_ciphertext_products() -> None:
    # Hence no timing of SPU tells their rates apart, and one of them stands for both.
    for sizes in [(128, 768, 768), (128, 64, 128), (1, 768, 50257), (1024, 1024, 1024)]:
        cost = mpc.operation_cost("matmul", *sizes, stack="spu-0.9.5")
        assert cost.plaintext_encodings == cost.ct_pt_products


@pytest.mark.parametrize("name", network_names())
def test_every_network_says_where_it_is_from(name: str) -> None:
    source = mpc.network_profile(name).source
    assert source.split()[0].rstrip(":") in {"fitted", "stated", "assumed"}
    assert mpc.network_profile(f"{name},uplink_mbps=3").source.startswith(source)
    assert mpc.network_profile(name, uplink_mbps=3).source.endswith("changed by the user")
    assert mpc.network_profile(name).to_dict()["source"] == source


@pytest.mark.parametrize("name", compute_names())
def test_every_machine_says_where_it_is_from(name: str) -> None:
    source = mpc.compute_profile(name).source
    assert source.split()[0].rstrip(":") in {"fitted", "measured", "assumed"}
    assert mpc.compute_profile(name, threads=3).source == f"{source}; changed by the user"


def test_own_profiles_are_the_users() -> None:
    cable = mpc.NetworkProfile(uplink_mbps=50, downlink_mbps=500, round_trip_seconds=0.015)
    machine = mpc.ComputeProfile(threads=4, ct_pt_product_seconds=1, embedding_product_seconds=1)
    assert cable.source == machine.source == "given by the user"
    notes = mpc.simulate("SM", model="tiny").latency(cable, machine).unchecked
    assert "network custom: given by the user" in notes
    assert "compute custom: given by the user" in notes


def test_profiles_are_found_by_name_description_and_value() -> None:
    cable = mpc.network_profile("wan-100mbps, uplink_mbps=20, full_duplex=false")
    assert (cable.uplink_mbps, cable.downlink_mbps, cable.full_duplex) == (20.0, 100.0, False)
    assert mpc.network_profile(cable) is cable
    assert mpc.network_profile("lan-1gbps", software_seconds=0.006).software_seconds == 0.006
    assert mpc.compute_profile("paper-testbed,threads=8").threads == 8
    assert mpc.compute_profile("none").ot_seconds == 0
    for name in network_names():
        values = mpc.network_profile(name).to_dict()
        assert mpc.NetworkProfile(**values) == mpc.network_profile(name)
    for name in compute_names():
        values = mpc.compute_profile(name).to_dict()
        assert mpc.ComputeProfile(**values) == mpc.compute_profile(name)


def on(network: Any) -> Callable[[], Any]:
    return lambda: mpc.simulate("SM", model="tiny").latency(network)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (on("wan"), ("network", '"paper-testbed", "lan-1gbps"')),
        (on("lan-1gbps,uplink_mbps=-3"), ("uplink_mbps", "a number from 0.001 to 1e+06", "got -3")),
        (on("lan-1gbps,uplink=3"), ('"uplink"', 'did you mean "uplink_mbps"')),
        (on("lan-1gbps,uplink_mbps"), ("NAME,FIELD=VALUE,...", "got 'uplink_mbps'")),
        (on("lan-1gbps,uplink_mbps=fast"), ("uplink_mbps", "a number, true or", "got 'fast'")),
        (on("lan-1gbps,round_trip_seconds=nan"), ("round_trip_seconds", "a number from 0 to 3600")),
        (on("lan-1gbps,full_duplex=1"), ("full_duplex", "True or False", "got 1")),
        (on(3), ("network", "a name or a NetworkProfile", "got int")),
        (lambda: mpc.compute_profile("none", threads=0), ("threads", "from 1 to 4096", "got 0")),
        (
            lambda: mpc.compute_profile("none", client_slowdown=math.inf),
            ("client_slowdown", "a number from 0.001 to 1000", "got inf"),
        ),
        (lambda: mpc.NetworkProfile(0, 100, 0.1), ("uplink_mbps", "a number", "got 0")),
    ],
)
def test_bad_profiles_name_field_and_range(call: Callable[[], Any], named: tuple[str, ...]) -> None:
    assert_refused(call, *named)


def test_minutes_that_nothing_confirms_are_named() -> None:
    report = mpc.simulate("SM", model="tiny")
    assert report.latency().unchecked == ()
    names = [note.split(":")[0] for note in report.latency("lan-1gbps", "none").unchecked]
    assert names == [
        "network lan-1gbps",
        "compute none",
        "no run confirms minutes on this network with these machines",
        "rounds",
    ]
    assert all(
        note in to_text(report, "lan-1gbps") for note in report.latency("lan-1gbps").unchecked
    )


def test_a_link_in_words_is_the_link() -> None:
    for link in (
        link_profile(20, 200), link_profile(0.3, 12.5), network_profile("paper-testbed"),
        network_profile("wan-100mbps,full_duplex=false"),
    ):  # fmt: skip
        assert network_profile(link_words(link)).values() == link.values()
