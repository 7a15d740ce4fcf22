"""Claims judged from rows of outcomes: one comparison, and a claim of several."""

import copy
import json
import math
from functools import partial
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.python.refusals import assert_refused

from aero.internals.errors import TrainingError
from aero.report.seeds import Verdict
from benchmarks.paper.document import results_document
from benchmarks.paper.outcome import judge_again
from benchmarks.paper.targets import read_target
from benchmarks.paper.verdicts import VERDICTS, judge_claims

RESULTS = Path(__file__).parents[2] / "results"


GROUPS = {"dense": ["SM+G", "SM+R"]}


def target(*claims):
    description = {
        "title": "t",
        "paper": "p",
        "rows": ["SM+G", "SM+R", "SM", {"name": "long", "label": "SM+R", "context_length": 256}],
        "show": ["perplexity"],
        "groups": GROUPS,
        "claims": [
            {"claim": "c", "where": "w", "holds_if": claim if isinstance(claim, list) else [claim]}
            for claim in claims
        ],
    }
    return read_target("probe", description)


def rows(statistic, **values):
    """One row per network; None is a diverged run."""
    found = []
    for name, key in (("SM+G", "g"), ("SM+R", "r"), ("SM", "s"), ("long", "l")):
        seeds = dict(enumerate(values.get(key, ()), start=1))
        finite = {seed: value for seed, value in seeds.items() if value is not None}
        entry = {"values": list(finite.values()), "seeds": list(finite)} if finite else None
        cells = [
            {
                "key": f"{name}-seed{seed}",
                "seed": seed,
                "status": "diverged" if value is None else "finished",
            }
            for seed, value in seeds.items()
        ] or [{"key": f"{name}-seed1", "seed": 1, "status": "missing"}]
        found.append({"name": name, "statistics": {statistic: entry}, "cells": cells})
    return found


def judged(claim, **values):
    first = claim[0] if isinstance(claim, list) else claim
    return judge_claims(target(claim), rows(first.partition(":")[0], **values))[0]


def verdict(claim, **values):
    return judged(claim, **values).verdict


# Three networks of one family; differences of their logarithms deviate by 0.01 or less.
LOW, HIGH, HIGHER = [40.0, 40.2, 40.1], [44.0, 44.3, 44.4], [50.0, 50.1, 50.3]


def test_perplexities_are_compared_by_their_ratio_and_the_reason_gives_it_with_its_interval():
    found = judged("perplexity: SM+R < SM+G", r=LOW, g=HIGH)
    assert found.verdict == "holds"
    assert found.reasons == ("SM+R (40.1) < SM+G (44.23): +10.3 % (+9.4 to +11.2)",)
    assert verdict("perplexity: SM+G < SM+R", r=LOW, g=HIGH) == "does not hold"


def test_the_same_mean_has_an_interval_over_documents_which_judges_nothing():
    # Losses of 10, 20 and 30 tokens: per token 1, 2, 3 and 1.1, 2.3, 3.3.
    tokens, low, high = [10, 20, 30], [10.0, 40.0, 90.0], [11.0, 46.0, 99.0]
    means = [math.exp(sum(nll) / 60) for nll in (low, high)]
    found = rows("perplexity", g=[means[0]] * 2, r=[means[1], means[1] * 1.0001])
    found[0]["documents"] = {"nll": low, "tokens": tokens}
    found[1]["documents"] = {"nll": high, "tokens": tokens}
    claim = "perplexity: SM+G < SM+R"
    (judged,) = judge_claims(target(claim), found)
    (difference,) = judged.differences
    # Each document left out: how far the mean of 16 / 60 moves, to first order.
    mean = 16 / 60
    moves = [(1 - 10 * mean) / 60, (6 - 20 * mean) / 60, (9 - 30 * mean) / 60]
    reach = 4.302653 * math.sqrt(3 / 2 * sum(move**2 for move in moves))  # t, 2 degrees, 2.5 %
    assert difference.low_over_documents == pytest.approx(mean - reach, rel=1e-6)
    assert difference.high_over_documents == pytest.approx(mean + reach, rel=1e-6)
    ends = [100 * math.expm1(mean + sign * reach) for sign in (-1, 1)]
    assert f"; over documents {ends[0]:+.1f} to {ends[1]:+.1f})" in judged.reasons[0]
    assert difference.verdict == "holds"
    # A factor moves both ends, and two comparisons share the tails: t at 1.25 %.
    both = target([claim, "perplexity: SM+G < 1.5 x SM+R"])
    moved = judge_claims(both, found)[0].differences[1]
    ends = moved.low_over_documents, moved.high_over_documents
    assert sum(ends) / 2 == pytest.approx(mean + math.log(1.5))
    assert ends[1] - ends[0] == pytest.approx(2 * reach * 6.205347 / 4.302653, rel=1e-6)


@pytest.mark.parametrize(
    "other", [None, {"nll": [11.0, 46.0, 99.0], "tokens": [10, 20, 31]}, "seeds"]
)
def test_other_documents_or_seeds_have_no_interval_over_them(other):
    found = rows("perplexity", g=[10.0, 10.1], r=[11.0, 11.2])
    documents = {"nll": [10.0, 40.0, 90.0], "tokens": [10, 20, 30]}
    found[0]["documents"], found[1]["documents"] = documents, other
    if other == "seeds":
        found[1]["documents"] = documents
        found[1]["statistics"]["perplexity"]["seeds"] = [1, 3]
    (judged,) = judge_claims(target("perplexity: SM+G < SM+R"), found)
    assert math.isnan(judged.differences[0].low_over_documents)
    assert "documents" not in judged.reasons[0]


def test_factors_move_the_bound():
    assert verdict("perplexity: SM+R < 0.95 x SM+G", r=LOW, g=HIGH) == "holds"
    assert verdict("perplexity: SM+R < 0.9 x SM+G", r=LOW, g=HIGH) == "undecided"
    assert verdict("perplexity: SM+R < 0.85 x SM+G", r=LOW, g=HIGH) == "does not hold"


def test_two_networks_within_two_percent_are_level_and_a_claimed_bound_is_taken_at_its_word():
    near = [value * 1.004 for value in (40.0, 40.25, 40.05)]
    assert verdict("perplexity: SM+R < SM+G", r=LOW, g=near) == "level"
    assert verdict("perplexity: SM+G < SM+R", r=LOW, g=near) == "level"
    # These two conditions say: within 2 % of each other.
    both = ["perplexity: SM+R < 1.02 x SM+G", "perplexity: SM+G < 1.02 x SM+R"]
    assert verdict(both, r=LOW, g=near) == "holds"


def test_a_drift_too_small_to_be_of_interest_is_level_with_zero():
    drift = [0.012, 0.014, 0.013]
    assert verdict("alpha_rise: SM+R > 0.0", r=drift) == "level"
    assert verdict("alpha_rise: SM+R > 0.0", r=[value + 0.1 for value in drift]) == "holds"
    assert verdict("alpha_rise: SM+R > 0.005", r=drift) == "holds"


def test_costs_are_decided_by_their_sign_alone():
    claim = "gigabytes_approximate: SM+R < 0.1 x gigabytes of SM+G"
    for size, expected in ((0.25, "holds"), (0.26, "does not hold")):
        given_rows = rows("gigabytes_approximate", r=[size])
        given_rows[0]["statistics"]["gigabytes"] = {"values": [2.55], "seeds": [1]}
        given_rows[0]["cells"][0]["status"] = "finished"
        assert judge_claims(target(claim), given_rows)[0].verdict == expected


def test_a_run_to_the_contrary_refutes_what_every_run_does():
    assert verdict("diverged: SM > 0.5", s=[1.0, 0.0, 1.0]) == "does not hold"
    assert verdict("diverged: SM > 0.5", s=[1.0, 1.0, 1.0]) == "undecided"
    assert verdict("diverged: SM > 0.5", s=[1.0] * 6) == "holds"
    assert verdict("diverged: SM < 0.5", s=[0.0] * 6) == "holds"
    assert verdict("diverged: SM < 0.5", s=[1.0, 1.0]) == "does not hold"


def test_a_diverged_run_has_infinite_perplexity():
    assert verdict("perplexity: SM+R < SM+G", r=[30.0] * 6, g=[None] * 6) == "holds"
    assert verdict("perplexity: SM+G < SM+R", r=[30.0] * 6, g=[None] * 6) == "does not hold"
    assert verdict("perplexity: SM+R < SM+G", r=LOW, g=[44.0, None, 44.2]) == "undecided"


def test_one_seed_is_undecided_and_no_seed_is_not_tested():
    assert verdict("perplexity: SM+R < SM+G", r=LOW[:1], g=HIGHER, s=HIGH) == "undecided"
    missing = judged("perplexity: SM+R < SM+G", r=LOW)
    assert missing.verdict == "not tested" and "SM+G (no run)" in missing.reasons[0]
    # An older file may lack a row that a claim has come to name.
    older = rows("perplexity", r=LOW)[1:]
    assert judge_claims(target("perplexity: SM+R < SM+G"), older)[0].verdict == "not tested"


def test_all_parts_of_a_claim_must_hold_and_one_failure_decides():
    chain = "perplexity: SM+R < SM+G < SM"
    assert verdict(chain, r=LOW, g=HIGH, s=HIGHER) == "holds"
    assert verdict(chain, r=LOW, g=HIGH, s=[v * 1.003 for v in HIGH]) == "level"
    assert verdict(chain, r=LOW, g=HIGH, s=[44.0, 46.0, 45.0]) == "undecided"
    assert verdict(chain, r=LOW, g=HIGH) == "not tested"
    assert verdict(chain, r=HIGH, g=LOW) == "does not hold"
    assert verdict(chain, r=LOW, g=HIGHER, s=HIGH) == "does not hold"


def test_a_claim_with_an_undecided_part_is_undecided_though_another_part_is_level():
    parts = ["perplexity: SM+R < 0.905 x SM+G", "perplexity: SM+G < SM"]
    values = {"r": LOW, "g": HIGH, "s": [v * 1.003 for v in HIGH]}
    assert [verdict(part, **values) for part in parts] == ["undecided", "level"]
    assert verdict(parts, **values) == verdict(parts[::-1], **values) == "undecided"


def test_the_comparisons_of_a_target_share_its_five_percent():
    claim = "perplexity: SM+R < SM+G"
    beside = [f"perplexity: SM+R < {factor} x SM+G" for factor in (2, 3, 4)]
    found = rows("perplexity", r=LOW, g=HIGH)
    reach = {}
    for claims in ([claim], [claim, claim], [claim, *beside], [claim, "gigabytes: SM+R < SM+G"]):
        difference = judge_claims(target(*claims), found)[0].differences[0]
        reach[len(claims), claims[-1]] = difference.high - difference.effect
    once, twice, four, with_cost = reach.values()
    # Of two degrees of freedom, t of 2.5 % is 4.303 and t of 0.625 % is 8.860.
    assert four / once == pytest.approx(8.860 / 4.303, rel=1e-3)
    assert twice == with_cost == once


def test_rows_that_no_claim_uses_do_not_widen_the_spread():
    claim = "perplexity: SM+R < SM+G"
    quiet = judged(claim, r=LOW, g=HIGH)
    assert judged(claim, r=LOW, g=HIGH, s=[80.0, 119.0, 79.0]) == quiet


def without_a_row():
    description = {"title": "t", "paper": "p", "rows": ["SM+G"], "show": ["perplexity"]}
    read_target("probe", {**description, "groups": GROUPS})


@pytest.mark.parametrize(
    ("condition", "named"),
    [
        ("perplexty: SM < SM+G", "no statistic 'perplexty'"),
        ("perplexity: SM < 0.1 x gigabytes of SM+G", "mixes statistics"),
        ("share_highest: SM < 2 x SM+G", "has a factor"),
        ("perplexity: SM > 0", "above 0"),
        ("diverged: SM > 0.7", "must compare with 0.5"),
        ("diverged: SM > SM+G", "must compare with 0.5"),
        ("perplexity: 2 < 3", "two numbers"),
        ("perplexity: SM < best dense", "the best of a group in what is no cost"),
        ("gigabytes: SM < best sparse", "no row 'best sparse'"),
        (None, "probe: dense has no row 'SM+R'"),
    ],
)
def test_conditions_that_cannot_be_judged_are_refused(condition, named):
    call = partial(target, condition) if condition else without_a_row
    assert_refused(call, named, error=TrainingError)


def test_every_row_of_a_group_is_a_comparison_of_its_own():
    together, apart = (
        target(condition).claims[0].comparisons
        for condition in (
            "perplexity: SM < 1.02 x every dense",
            ["perplexity: SM < 1.02 x SM+G", "perplexity: SM < 1.02 x SM+R"],
        )
    )
    assert together == apart
    assert verdict("perplexity: SM < every dense", s=LOW, g=HIGH, r=HIGHER) == "holds"
    assert verdict("perplexity: SM < every dense", s=HIGH, g=LOW, r=HIGHER) == "does not hold"


def test_the_best_of_a_group_is_that_of_the_lowest_mean_perplexity():
    claim = "gigabytes: SM < 0.5 x best dense"

    def found(**perplexities):
        given = rows("perplexity", s=LOW, **perplexities)
        for row, size in zip(given, (3.0, 1.0, 0.9, 9.0), strict=True):
            row["statistics"]["gigabytes"] = {"values": [size], "seeds": [1]}
        return judge_claims(target(claim), given)[0]

    assert found(g=LOW, r=HIGH).verdict == "holds"
    cheap = found(g=HIGH, r=LOW)
    assert cheap.verdict == "does not hold"
    assert cheap.reasons == ("SM (0.9) < 0.5 x SM+R (0.5)",)
    # Nobody knows the best before all of the group ended.
    missing = found(g=HIGH)
    assert missing.verdict == "not tested" and "0.5 x best dense (no run)" in missing.reasons[0]


def test_greater_reads_as_less_with_sides_exchanged():
    (less,), (greater,) = (
        target(text).claims[0].comparisons
        for text in ("perplexity: SM+R < SM+G", "perplexity: SM+G > SM+R")
    )
    assert less == greater


numbers = st.lists(st.floats(1.0, 1e3), min_size=2, max_size=4)


@given(numbers, numbers, numbers)
def test_a_claim_and_its_opposite_never_both_hold(left, right, other):
    values = {"r": left, "g": right, "s": other}
    forward = verdict("perplexity: SM+R < SM+G", **values)
    opposite = {"holds": "does not hold", "does not hold": "holds"}
    backward = verdict("perplexity: SM+G < SM+R", **values)
    assert backward == opposite.get(forward, forward)


JUDGED = [
    file for file in sorted(RESULTS.glob("*.json")) if "targets" in json.loads(file.read_text())
]


@pytest.mark.parametrize("file", JUDGED, ids=lambda file: file.stem)
def test_committed_verdicts_and_pages_follow_from_the_committed_values(file):
    # Where this fails, `python -m benchmarks.paper judge --results STEM` writes both anew.
    content = json.loads(file.read_text())
    outcomes = copy.deepcopy(content["targets"])
    judge_again(outcomes)
    for ours, theirs in zip(outcomes, content["targets"], strict=True):
        assert [(c["claim"], c["verdict"], c["reasons"]) for c in ours["claims"]] == [
            (c["claim"], c["verdict"], c["reasons"]) for c in theirs["claims"]
        ]
    assert file.with_suffix(".md").read_text() == results_document(
        outcomes, command=content["command"]
    )


def test_outcomes_of_another_format_are_not_judged_again():
    with pytest.raises(TrainingError, match="table2 has format 1, not 2"):
        judge_again([{"target": "table2", "format": 1, "rows": []}])


def test_every_verdict_has_its_words():
    assert VERDICTS.keys() == {*get_args(Verdict), "holds in part"}
