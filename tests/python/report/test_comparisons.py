"""Comparisons follow the numbers, in both directions."""

import math

import pytest

from aero.internals.records import changed
from aero.internals.run_files import Divergence, Quarters
from aero.report.comparisons import compare_networks
from aero.report.networks import spread_of
from aero.report.report_file import (
    EntropyEntry,
    Flops,
    MatrixFlops,
    NetworkEntry,
    PrivateInference,
    RunEntry,
)

PLAIN_SPEC = {
    "norm": "none",
    "final_norm": "none",
    "ffn": "scaled_fused",
    "temperature": "none",
    "entropy_regularized": False,
    "shaped_attention": False,
    "convolution": "none",
    "convolution_taps": 1,
}


def entry(name, perplexities, spec=None, costs=None, **parts):
    """One `networks` entry with just the values that comparisons read."""
    return NetworkEntry(
        name=name,
        spec={**PLAIN_SPEC, **(spec or {})},
        flops=Flops(*2 * [MatrixFlops(ffn=1, attention=1, total=2)]),
        perplexity=spread_of(perplexities),
        runs=[
            RunEntry(seed=seed, status="finished", perplexity=perplexity, ending=None)
            for seed, perplexity in enumerate(perplexities, start=1)
        ],
        private_inference=PrivateInference(
            trained=costs or {}, gpt2=None, gpt2_one_more_layernorm=None, paper=None
        ),
        **parts,
    )


def plain(perplexities=(12.2,)):
    return entry("SM+ScFuFFN", perplexities)


def regularized(perplexities=(11.5,)):
    return entry(
        "EReg(SM(t)+ScFuFFN)",
        perplexities,
        {"temperature": "head_position", "entropy_regularized": True},
    )


def folded(perplexities=(9.0,)):
    spec = {"norm": "foldable_channel", "final_norm": "foldable"}
    return entry("SM+FN+ScFuFFN", perplexities, spec)


def with_overload(network, share, collapsed=0.0):
    rest = 1.0 - share - collapsed
    entropy = EntropyEntry(
        # On the network's own scale everything is overloaded: that must not decide.
        quarters=Quarters([0.0, 0.0, 0.0, 1.0], [collapsed, rest, 0.0, share]),
        overloaded_share={"1": share - 0.01, "2": share, "3": share + 0.02},
    )
    return changed(network, entropy=entropy)


def the(compared, quantity="perplexity"):
    (row,) = [row for row in compared if row.quantity == quantity]
    return row


def broken(network):
    text = "NaN at step 40 (layer 5, head 1)"
    runs = [
        changed(
            run,
            status="diverged",
            ending=text,
            divergence=text,
            diverged=Divergence(step=40, layer=5, head=1),
        )
        for run in network.runs
    ]
    return changed(network, perplexity=None, runs=runs)


PLAIN, BETTER, WORSE = (12.2, 12.3, 12.1), (11.5, 11.6, 11.3), (13.0, 13.2, 13.0)


def test_a_lower_perplexity_has_a_difference_an_interval_and_a_verdict():
    found = the(compare_networks([plain(PLAIN), regularized(BETTER)]))
    assert (found.network, found.against) == ("EReg(SM(t)+ScFuFFN)", "SM+ScFuFFN")
    # Differences of logarithms by seed: 0.0591, 0.0586 and 0.0684.
    assert found.difference == pytest.approx(math.exp(-0.06203) - 1, abs=1e-5)
    assert found.low < found.difference < found.high < 0
    assert (found.verdict, found.seeds) == ("lower", 3)


def test_a_higher_perplexity_is_higher():
    found = the(compare_networks([plain(PLAIN), regularized(WORSE)]))
    assert found.verdict == "higher"
    assert found.difference == pytest.approx(0.071, abs=5e-4)


def test_one_seed_decides_nothing_and_equal_networks_are_level():
    found = the(compare_networks([plain(), regularized()]))
    assert found.verdict == "undecided" and found.seeds == 1
    assert found.difference == pytest.approx(-0.057, abs=5e-4)
    assert found.low is found.high is None
    overlapping = [plain((12.0, 12.4)), regularized((11.5, 12.1))]
    assert the(compare_networks(overlapping)).verdict == "undecided"
    near = [plain(PLAIN), regularized((12.21, 12.30, 12.13))]
    assert the(compare_networks(near)).verdict == "level"


def test_every_comparison_of_a_report_widens_the_intervals_of_all():
    networks = [plain((12.2, 12.3)), regularized((11.5, 11.6)), folded((9.0, 9.1))]
    alone, beside = compare_networks(networks[:2])[0], compare_networks(networks)[0]
    # Two comparisons share the 5 % (perplexity, overload), three beside foldable norm: Student's t
    # of one degree of freedom is 25.45 at 1.25 % and 38.19 at 0.83 %, the standard error 0.00026.
    assert [alone.low, alone.high] == pytest.approx([-0.063, -0.051], abs=5e-4)
    assert [beside.low, beside.high] == pytest.approx([-0.066, -0.048], abs=5e-4)


def test_a_diverged_network_loses_once_six_seeds_say_so():
    for seeds, verdict in ((1, "undecided"), (6, "undecided"), (7, "lower")):
        found = the(compare_networks([broken(plain([0.0] * seeds)), regularized([11.5] * seeds)]))
        assert found.verdict == verdict
        assert found.difference is found.low is found.high is None
    # Two comparisons share the 5 %: seven fair coins agree with 0.8 %, six with 1.6 %.
    lost = compare_networks([plain([12.2] * 7), broken(regularized([0.0] * 7))])
    assert the(lost).verdict == "higher"


def test_networks_of_other_sizes_are_not_taken_for_the_plain_twin():
    other = entry("SM+ScFuFFN", (12.2,), {"num_heads": 2})
    assert compare_networks([other, regularized()]) == []


def test_overload_is_compared_by_the_share_in_the_last_quarter():
    for shares, verdict in (((0.5, 0.1), "lower"), ((0.1, 0.5), "higher")):
        networks = [with_overload(plain(), shares[0]), with_overload(regularized(), shares[1])]
        found = the(compare_networks(networks), "overloaded heads")
        assert found.verdict == verdict
        assert found.difference == pytest.approx(shares[1] - shares[0])
        assert found.low < found.difference < found.high


def test_foldable_norm_is_compared_with_none():
    found = the(compare_networks([plain(PLAIN), folded((9.0, 9.1, 9.0))]))
    assert (found.network, found.verdict) == ("SM+FN+ScFuFFN", "lower")
    assert the(compare_networks([plain(PLAIN), folded(WORSE)])).verdict == "higher"


def test_a_convolution_is_compared_with_none():
    shifted = entry(
        "SM+ScFuFFN+S4", (9.0, 9.1, 9.0), {"convolution": "token_shift", "convolution_taps": 4}
    )
    found = the(compare_networks([plain(PLAIN), shifted]))
    assert (found.network, found.against) == ("SM+ScFuFFN+S4", "SM+ScFuFFN")
    assert found.verdict == "lower"


def test_spread_is_the_sample_standard_deviation_and_none_for_one_seed():
    assert spread_of([1.0]).standard_deviation is None
    several = spread_of([1.0, 2.0, 3.0])
    assert (several.mean, several.standard_deviation) == (2.0, 1.0)
    assert spread_of([]) is None
