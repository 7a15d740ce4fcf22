"""Findings follow the numbers, in both directions."""

import copy
import math

import pytest

from aero.report.networks import spread_of
from aero.report.run_findings import find

STACKS = ["spu-2024", "openbumblebee"]
PLAIN_SPEC = {
    "norm": "none",
    "final_norm": "none",
    "ffn": "scaled_fused",
    "temperature": "none",
    "entropy_regularized": False,
    "shaped_attention": False,
}


def entry(name, perplexities, spec=None, *, gigabytes=(0.88, 0.44), gpt2=(6.34, 3.54), paper=None):
    """One `networks` entry with just the values that findings read."""
    return {
        "name": name,
        "spec": {**PLAIN_SPEC, **(spec or {})},
        "perplexity": spread_of(perplexities),
        "runs": [
            {
                "seed": seed,
                "status": "finished",
                "perplexity": perplexity,
                "ending": None,
                "diverged": None,
            }
            for seed, perplexity in enumerate(perplexities, start=1)
        ],
        "entropy": None,
        "temperature": None,
        "private_inference": {
            "trained": {
                stack: {"comm_bytes": size * 1e9}
                for stack, size in zip(STACKS, gigabytes, strict=True)
            },
            "gpt2": {
                stack: {"comm_bytes": size * 1e9} for stack, size in zip(STACKS, gpt2, strict=True)
            },
            "paper": paper,
        },
    }


def baseline(perplexities=(9.1,)):
    return entry(
        "SM+LN+G",
        perplexities,
        {"norm": "layer", "ffn": "gelu"},
        gigabytes=(2.47, 0.95),
        gpt2=(25.1, 6.98),
        paper={"perplexity": 2.69, "comm_gigabytes": 25.32},
    )


def plain(perplexities=(12.2,)):
    return entry("SM+ScFuFFN", perplexities, paper={"perplexity": 3.48, "comm_gigabytes": 6.43})


def regularized(perplexities=(11.5,)):
    return entry(
        "EReg(SM(t)+ScFuFFN)",
        perplexities,
        {"temperature": "head_position", "entropy_regularized": True},
        paper={"perplexity": 3.21, "comm_gigabytes": 6.43},
    )


def folded(perplexities=(9.0,), **options):
    spec = {"norm": "foldable_channel", "final_norm": "foldable"}
    return entry("SM+FN+ScFuFFN", perplexities, spec, **options)


def with_overload(network, share, collapsed=0.0):
    network = copy.deepcopy(network)
    rest = 1.0 - share - collapsed
    network["entropy"] = {
        # On the network's own scale everything is overloaded: that must not decide.
        "quarters": {
            "observed_max": [0.0, 0.0, 0.0, 1.0],
            "log_context": [collapsed, rest, 0.0, share],
        },
        "overloaded_share": {"1": share - 0.01, "2": share, "3": share + 0.02},
        "collapsed_log_context": [[0, 0]],
        "overloaded_log_context": [[1, 2]],
    }
    return network


def the(findings, name):
    (found,) = [finding for finding in findings if finding.name == name]
    return found


def broken(network):
    network = copy.deepcopy(network)
    record = {"step": 40, "layer": 5, "head": 1}
    network["perplexity"] = None
    text = "NaN at step 40 (layer 5, head 1)"
    for run in network["runs"]:
        run.update(status="diverged", ending=text, divergence=text, diverged=record)
    return network


PLAIN, BETTER, WORSE = (12.2, 12.3, 12.1), (11.5, 11.6, 11.3), (13.0, 13.2, 13.0)


def test_a_lower_perplexity_with_regularization_holds_and_names_effect_and_interval():
    found = the(find([plain(PLAIN), regularized(BETTER)], STACKS), "ereg_beats_plain")
    assert found.verdict == "holds"
    # Differences of logarithms by seed: 0.0591, 0.0586 and 0.0684.
    assert found.values["relative_gain"] == pytest.approx(1 - math.exp(-0.06203), abs=1e-5)
    for part in ("11.47", "12.20", "6.0 % lower (-", "3 seeds", "3.21 against 3.48"):
        assert part in found.text


def test_a_higher_perplexity_with_regularization_does_not_hold():
    found = the(find([plain(PLAIN), regularized(WORSE)], STACKS), "ereg_beats_plain")
    assert found.verdict == "does not hold"
    assert "7.1 % higher" in found.text
    assert "does not hold at this scale" in found.text


def test_one_seed_decides_nothing_and_equal_networks_are_level():
    found = the(find([plain(), regularized()], STACKS), "ereg_beats_plain")
    assert found.verdict == "undecided" and "one seed" in found.text
    assert "5.7 % lower than" in found.text
    overlapping = [plain((12.0, 12.4)), regularized((11.5, 12.1))]
    assert the(find(overlapping, STACKS), "ereg_beats_plain").verdict == "undecided"
    near = [plain(PLAIN), regularized((12.21, 12.30, 12.13))]
    found = the(find(near, STACKS), "ereg_beats_plain")
    assert found.verdict == "level" and "the two are level" in found.text


def test_every_comparison_of_a_report_widens_the_intervals_of_all():
    networks = [plain((12.2, 12.3)), regularized((11.5, 11.6)), folded((9.0, 9.1))]
    alone = the(find(networks[:2], STACKS), "ereg_beats_plain").text
    beside = the(find(networks, STACKS), "ereg_beats_plain").text
    # Two comparisons share the 5 % (perplexity, overload), three beside foldable norm: Student's t
    # of one degree of freedom is 25.45 at 1.25 % and 38.19 at 0.83 %, the standard error 0.00026.
    assert "5.7 % lower (-6.3 to -5.1 %" in alone and "5.7 % lower (-6.6 to -4.8 %" in beside


def test_a_diverged_network_loses_once_six_seeds_say_so():
    for seeds, verdict in ((1, "undecided"), (6, "undecided"), (7, "holds")):
        found = find([broken(plain([0.0] * seeds)), regularized([11.5] * seeds)], STACKS)
        won = the(found, "ereg_beats_plain")
        assert won.verdict == verdict
        assert "NaN at step 40 (layer 5, head 1)" in won.text
    # Two comparisons share the 5 %: seven fair coins agree with 0.8 %, six with 1.6 %.
    lost = find([plain([12.2] * 7), broken(regularized([0.0] * 7))], STACKS)
    assert the(lost, "ereg_beats_plain").verdict == "does not hold"


def test_networks_of_other_sizes_are_not_taken_for_the_plain_twin():
    other = plain()
    other["spec"]["num_heads"] = 2
    names = [finding.name for finding in find([other, regularized()], STACKS)]
    assert "ereg_beats_plain" not in names


def test_overload_is_compared_by_the_share_in_the_last_quarter():
    networks = [with_overload(plain(), 0.5), with_overload(regularized(), 0.1)]
    found = the(find(networks, STACKS), "ereg_relieves_overload")
    assert found.verdict == "holds"
    assert "10 %" in found.text
    networks = [with_overload(plain(), 0.1), with_overload(regularized(), 0.5)]
    assert the(find(networks, STACKS), "ereg_relieves_overload").verdict == "does not hold"


def test_networks_with_a_third_of_their_heads_at_one_end_are_named():
    networks = [with_overload(plain(), 0.45, 0.33), with_overload(baseline(), 0.2, 0.1)]
    (found,) = [f for f in find(networks, STACKS) if f.name == "entropy_extremes"]
    assert found.values["network"] == "SM+ScFuFFN"
    assert "45 % overloaded (L1 H2)" in found.text
    assert "collapsed" not in found.text


def test_folded_norm_must_help_and_cost_nothing():
    better = [plain(PLAIN), folded((9.0, 9.1, 9.0))]
    assert the(find(better, STACKS), "folded_norm_is_free").verdict == "holds"
    dearer = folded((9.0, 9.1, 9.0), gigabytes=(0.89, 0.44))
    found = the(find([plain(PLAIN), dearer], STACKS), "folded_norm_is_free")
    assert found.verdict == "does not hold"
    assert "0.890 and 0.880 GB" in found.text
    worse = folded(WORSE)
    assert (
        the(find([plain(PLAIN), worse], STACKS), "folded_norm_is_free").verdict == "does not hold"
    )


def test_byte_factor_is_given_on_each_stack_and_compared_with_the_papers():
    found = the(find([baseline(), plain(), regularized()], STACKS), "byte_factor_by_stack")
    assert found.verdict == "holds in part"
    assert found.values == pytest.approx(
        {"spu-2024": 25.1 / 6.34, "openbumblebee": 6.98 / 3.54, "paper": 25.32 / 6.43}
    )
    for part in (
        "EReg(SM(t)+ScFuFFN)",
        "25.1 against 6.34 GB on spu-2024, a factor of 4.0",
        "a factor of 2.0",
        "3.94",
    ):
        assert part in found.text
    assert "holds on spu-2024, not on openbumblebee" in found.text


def test_byte_factor_that_no_stack_confirms_does_not_hold():
    lean = plain()
    lean["private_inference"]["gpt2"]["spu-2024"]["comm_bytes"] = 12e9
    found = the(find([baseline(), lean], STACKS), "byte_factor_by_stack")
    assert found.verdict == "does not hold"
    assert "holds on none of them" in found.text


def test_distance_to_the_baseline_gives_both_prices():
    found = the(find([baseline(), plain()], STACKS), "distance_to_baseline")
    assert found.values["SM+ScFuFFN"]["byte_factor"] == pytest.approx(2.47 / 0.88)
    assert "SM+ScFuFFN +34.1 % perplexity for 2.81x fewer bytes" in found.text


def test_divergence_is_a_finding_of_its_own():
    found = the(find([broken(plain())], STACKS), "diverged")
    assert found.values["step"] == 40
    assert found.text == "SM+ScFuFFN, seed 1: NaN at step 40 (layer 5, head 1)."


def test_spread_is_the_sample_standard_deviation_and_none_for_one_seed():
    assert spread_of([1.0])["standard_deviation"] is None
    several = spread_of([1.0, 2.0, 3.0])
    assert (several["mean"], several["standard_deviation"]) == (2.0, 1.0)
    assert spread_of([]) is None


def test_temperatures_at_or_below_zero_are_counted():
    network = regularized()
    network["temperature"] = {"not_positive": 4, "minimum": -0.0021}
    found = the(find([network], STACKS), "temperatures_below_zero")
    assert "4 learned temperatures are zero or negative, down to -0.0021" in found.text
    network["temperature"]["not_positive"] = 0
    assert find([network], STACKS) == []
