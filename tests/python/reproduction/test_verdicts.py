import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aero.reproduction.targets import read_target
from aero.reproduction.verdicts import judge, pooled_spread


def claim(*conditions):
    description = {
        "title": "t",
        "paper": "p",
        "rows": ["SM+G", "SM+R", "SM"],
        "show": ["perplexity"],
        "claims": [{"claim": "c", "where": "w", "holds_if": list(conditions)}],
    }
    return read_target("probe", description).claims[0]


def verdict(condition, **rows):
    statistic = condition.partition(":")[0]
    named = {"SM+G": rows.get("g", []), "SM+R": rows.get("r", []), "SM": rows.get("s", [])}
    return judge(claim(condition), {statistic: named})


def test_a_side_may_have_another_statistic_than_the_comparison():
    tenth = claim("perplexity: SM+R < 0.1 x seconds of SM+G")
    assert str(tenth.comparisons[0].higher) == "0.1 x seconds of SM+G"
    for seconds, expected in ((400.0, "holds"), (200.0, "does not hold")):
        values = {
            "perplexity": {"SM+R": [30.0, 30.0], "SM+G": [1e9, 1e9]},
            "seconds": {"SM+R": [1e9, 1e9], "SM+G": [seconds, seconds]},
        }
        assert judge(tenth, values).verdict == expected
    assert judge(tenth, {"perplexity": {"SM+R": [30.0]}}).verdict == "not tested"


def test_a_gap_beyond_two_standard_errors_decides():
    # Logarithms: sd of each row is 0.01 / sqrt(2) here, the standard error of the gap
    # 0.00707 * sqrt(1/2 + 1/2) = 0.00707; 2 of them are 0.01414.
    low = [math.exp(3.0), math.exp(3.01)]

    def high(gap):
        return [value * math.exp(gap) for value in low]

    assert verdict("perplexity: SM+R < SM+G", r=low, g=high(0.0142)).verdict == "holds"
    assert verdict("perplexity: SM+R < SM+G", r=low, g=high(0.0141)).verdict == "undecided"
    assert verdict("perplexity: SM+R < SM+G", r=high(0.0141), g=low).verdict == "undecided"
    assert verdict("perplexity: SM+R < SM+G", r=high(0.0142), g=low).verdict == "does not hold"


def test_a_quiet_pair_is_decided_by_its_own_spread_beside_a_noisy_network():
    # sd of each 0.00707, error of the gap 0.00707; Student's bound of two degrees of freedom 4.30.
    low, noisy = [math.exp(3.0), math.exp(3.01)], [100.0, 200.0]

    def judged(gap):
        high = [value * math.exp(gap) for value in low]
        return verdict("perplexity: SM+R < SM+G", r=low, g=high, s=noisy).verdict

    assert judged(0.0305) == "holds"
    assert judged(0.0303) == "undecided"
    # Shares are decided by the spread of all.
    shares = {"r": [0.2, 0.2], "g": [0.25, 0.25], "s": [0.0, 0.5]}
    assert verdict("share_highest: SM+R < SM+G", **shares).verdict == "undecided"


def test_other_statistics_are_not_taken_as_ratios():
    judged = verdict("share_highest: SM+R < SM+G", r=[0.0, 0.0], g=[0.1, 0.1])
    assert judged.verdict == "holds"


def test_rows_with_one_seed_use_the_spread_of_the_others():
    judged = verdict("perplexity: SM+R < SM+G", r=[40.0], g=[41.0], s=[50.0, 60.0])
    assert (judged.verdict, judged.seeds, judged.spread_known) == ("undecided", 1, True)


def test_without_any_spread_the_sign_decides_and_the_verdict_says_so():
    judged = verdict("perplexity: SM+R < SM+G", r=[40.0], g=[40.1])
    assert (judged.verdict, judged.seeds, judged.spread_known) == ("holds", 1, False)


def test_a_side_without_a_run_is_not_tested():
    judged = verdict("perplexity: SM+R < SM+G", r=[40.0])
    assert (judged.verdict, judged.seeds) == ("not tested", 0)
    assert "(no run)" in judged.reasons[0]


def test_a_diverged_run_loses_against_one_that_is_finite():
    infinite = [30.0, math.inf]
    assert verdict("perplexity: SM+R < SM+G", r=[99.0], g=infinite).verdict == "holds"
    assert verdict("perplexity: SM+R < SM+G", r=infinite, g=[99.0]).verdict == "does not hold"
    assert verdict("perplexity: SM+R < SM+G", r=infinite, g=[math.inf]).verdict == "undecided"


def test_factors_and_numbers_are_sides():
    assert verdict("perplexity: SM+R < 1.02 x SM+G", r=[41.0], g=[40.5]).verdict == "holds"
    assert verdict("perplexity: SM+R < 1.02 x SM+G", r=[41.0], g=[40.0]).verdict == "does not hold"
    assert verdict("diverged: SM > 0.5", s=[1.0, 1.0]).verdict == "holds"
    assert verdict("diverged: SM > 0.5", s=[0.0, 0.0]).verdict == "does not hold"
    # One of two seeds: the mean lies on the bound.
    assert verdict("diverged: SM > 0.5", s=[0.0, 1.0]).verdict == "undecided"


def test_all_parts_of_a_chain_must_hold_and_one_failure_decides():
    chain = "perplexity: SM+R < SM+G < SM"
    rows = {"r": [1.0], "g": [2.0], "s": [3.0]}
    assert verdict(chain, **rows).verdict == "holds"
    assert verdict(chain, **{**rows, "s": [1.5]}).verdict == "does not hold"
    assert verdict(chain, **{**rows, "s": []}).verdict == "not tested"
    failed = verdict(chain, **{**rows, "r": [5.0], "s": []})
    assert (failed.verdict, failed.seeds) == ("does not hold", 1)


def test_greater_reads_as_less_with_sides_exchanged():
    less = claim("perplexity: SM+R < SM+G").comparisons
    assert claim("perplexity: SM+G > SM+R").comparisons == less


def test_the_pooled_spread_weighs_rows_by_their_degrees_of_freedom():
    # Variances 2 (one degree of freedom) and 1 (two): (2 + 2) / 3.
    assert pooled_spread([[0.0, 2.0], [4.0, 5.0, 6.0], [9.0]]) == pytest.approx(math.sqrt(4 / 3))
    assert pooled_spread([[1.0], []]) is None
    assert pooled_spread([[1.0, math.inf]]) is None


numbers = st.lists(st.floats(1.0, 1e3), min_size=1, max_size=4)


@given(numbers, numbers, numbers)
def test_a_claim_and_its_opposite_never_both_hold(left, right, other):
    rows = {"r": left, "g": right, "s": other}
    forward = verdict("perplexity: SM+R < SM+G", **rows).verdict
    backward = verdict("perplexity: SM+G < SM+R", **rows).verdict
    opposite = {"holds": "does not hold", "does not hold": "holds", "undecided": "undecided"}
    assert backward == opposite[forward]


@given(numbers, numbers, st.floats(0.1, 10.0))
def test_verdicts_on_perplexities_do_not_depend_on_their_unit(left, right, unit):
    scaled = [[unit * value for value in side] for side in (left, right)]
    one = judge(claim("perplexity: SM+R < SM+G"), {"perplexity": {"SM+R": left, "SM+G": right}})
    two = judge(
        claim("perplexity: SM+R < SM+G"), {"perplexity": {"SM+R": scaled[0], "SM+G": scaled[1]}}
    )
    gap = abs(sum(map(math.log, left)) / len(left) - sum(map(math.log, right)) / len(right))
    margin = 2 * (pooled_spread([list(map(math.log, side)) for side in (left, right)]) or 0.0)
    margin *= math.sqrt(1 / len(left) + 1 / len(right))
    # Rounding may decide what lies on the bound itself.
    if abs(gap - margin) > 1e-9:
        assert one.verdict == two.verdict
