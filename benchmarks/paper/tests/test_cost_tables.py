"""The paper's tables and figures next to ours, and the findings."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from benchmarks.paper import cost_rows as savings
from benchmarks.paper.cost_tables import CostTables, reproduce_costs
from benchmarks.paper.equal_time import compare_at_equal_time
from benchmarks.paper.finding import Finding

# Printed 6.29 GB where the row above it and the operators left out give 6.36; and 72.10 where
# Table 7's neighbours give 71.26.
OUTLIERS = {(4, "SM+ScFuFFN_i6"), (7, "SOTA:SM+ScFFN")}


@pytest.fixture(scope="module")
def found() -> CostTables:
    return reproduce_costs()


def finding(found: CostTables, name: str) -> Finding:
    return next(finding for finding in found.findings if finding.name == name)


def test_25_of_27_communication_cells_come_out(found: CostTables) -> None:
    off = {
        (row.gigabytes.table, row.gigabytes.label)
        for row in found.rows
        if abs(row.gigabytes.one_more_layernorm_ratio - 1) > 0.0015
    }
    assert len(found.rows) == 27
    assert off == OUTLIERS


def test_minutes_come_out_within_a_tenth(found: CostTables) -> None:
    assert all(abs(row.minutes_ratio - 1) < 0.103 for row in found.rows)


def test_flops_come_out_but_for_two_cells(found: CostTables) -> None:
    off = {
        (row.gigabytes.table, row.gigabytes.label)
        for row in found.rows
        if not (row.flops_ffn.agrees and row.flops_attention.agrees)
    }
    # 1.2B are 8 fused FFNs instead of 11; 7.25B is printed as 7.3B.
    assert off == {(4, "SOTA:SM+ScFuFFN_i1"), (7, "SM+ScFuFFN")}


def test_the_text_has_every_cell_and_every_finding(found: CostTables) -> None:
    text = found.to_text()
    for row in found.rows:
        part = text.partition(f"Table {row.gigabytes.table}: ")[2].partition("\nTable ")[0]
        lines = [x for x in part.splitlines() if x.startswith(f"{row.gigabytes.label} ")]
        line, flops = lines[:2]
        assert f"{row.gigabytes.one_more_layernorm_ratio:.4f}" in line
        assert f"{row.paper_minutes:.2f}" in line
        assert f"{row.minutes_ratio:.3f}" in line
        assert row.flops_ffn.printed in flops
    assert all(finding.text in text for finding in found.findings)


def test_the_text_has_the_figures_and_networks_at_equal_time(found: CostTables) -> None:
    text = found.to_text()
    for title, steps in found.figures.items():
        lines = text.partition(title)[2].splitlines()
        first = steps[0]
        for step, row in zip(steps, savings.step_rows(steps), strict=True):
            assert row["times less"] == f"{first.gigabytes / step.gigabytes:.2f}"
            line = next(x for x in lines if x.startswith(f"{step.label} "))
            assert all(cell in line for cell in row.values())
    bars = [line.count("█") for line in text.splitlines() if "█" in line]
    assert bars[0] == max(bars) == 24
    assert bars[4] == round(24 * 6.34 / 25.23)
    # Table 4: 4.00, 3.97 and 4.00 against 3.50, 3.48 and 3.48.
    changes = [row["change"] for row in savings.equal_time_rows(next(iter(found.figures.values())))]
    assert changes == ["-12.5 %", "-12.3 %", "-13.0 %"]
    assert "-12.3 %" in text


def test_json_has_every_cell(found: CostTables) -> None:
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert len(data["rows"]) == 27
    assert data["rows"][0]["gigabytes"]["paper"] == 25.32
    assert data["rows"][0]["minutes"]["ratio"] == found.rows[0].minutes_ratio
    assert {len(steps) for steps in data["figures"].values()} == {9, 7}


def test_findings_name_stack_network_outliers_and_secrets(found: CostTables) -> None:
    stack = finding(found, "stack")
    assert "are those of the stack spu-2024: 25 of 27 cells" in stack.text
    assert stack.values["openbumblebee"]["close_with_one_more_layernorm"] == 0

    outliers = finding(found, "byte outliers").text
    assert "Table 4 SM+ScFuFFN_i6: 6.29 GB printed, 6.36 ours" in outliers
    assert "0.14, is what they save at T = 256 (0.130)" in outliers
    assert "Table 7 SOTA:SM+ScFFN: 72.10 GB printed, 71.26 ours" in outliers
    assert "LayerNorm are 72.09" in outliers

    network = finding(found, "network")
    assert "cannot give" in network.text
    assert "16.9 minutes of sending, 8.21 printed" in network.text
    assert network.values == {"cells": 27, "sending_alone": 18, "sending_and_rounds": 27}

    bed = finding(found, "test bed").values
    assert bed["mean"] == pytest.approx(0.0264, abs=1e-4)
    assert bed["worst"] == pytest.approx(0.1021, abs=1e-4)

    # From the profiles that the minutes are made with.
    assert (
        "4.8 s per GB of both parties (an effective 1.67 Gbit/s), 6.0 ms per round, 54 s per "
        "million ciphertext-plaintext products in the embedding and 30 s elsewhere, and 46.7 s per "
        "1e9 OTs"
    ) in finding(found, "test bed").text
    assert "repeat those without to the last digit" in finding(found, "secrets").text
    assert "(the paper: 4.0 and 1.94;" in finding(found, "savings").text

    secrets = finding(found, "secrets").values["128"]
    assert secrets["temperature"] == pytest.approx(0.33, abs=0.005)
    assert secrets["alpha_beta"] == pytest.approx(2 * secrets["temperature"], rel=1e-6)

    savings = finding(found, "savings").values
    assert {name: round(value["bytes"], 1) for name, value in savings.items()} == {
        "spu-2024": 4.0, "spu-0.9.5": 3.5, "openbumblebee": 2.0
    }  # fmt: skip


def test_on_another_stack_the_findings_say_so() -> None:
    found = reproduce_costs(stack="openbumblebee")
    assert finding(found, "byte outliers").text == (
        "27 of 27 communication cells are not those of openbumblebee."
    )
    with pytest.raises(ValueError, match="stack must be"):
        reproduce_costs(stack="spu")


def test_figures_go_step_by_step_down_from_the_baseline(found: CostTables) -> None:
    for title, steps in found.figures.items():
        aero = [step for step in steps if not step.label.startswith("SOTA")]
        for before, after in pairwise(aero):
            assert after.gigabytes < before.gigabytes, title
            assert after.minutes < before.minutes, title
    without_norm = next(s for s in found.figures["Figure 1: GPT-2, T = 128"] if s.label == "SM+R")
    # 3.41 and 1.42 times less than 25.32 GB and 8.21 minutes, the paper says.
    assert (without_norm.paper_gigabytes, without_norm.paper_minutes) == (7.43, 5.78)
    assert without_norm.gigabytes == pytest.approx(7.43, rel=0.02)
    assert without_norm.minutes == pytest.approx(5.78, rel=0.04)


@pytest.mark.parametrize("length", [128, 2048, 8192])
@pytest.mark.parametrize(
    ("figure", "size", "width"), [("Figure 20", "124M", 768), ("Figure 21", "2.8B", 2560)]
)
def test_shares_of_the_ffn_are_those_of_appendix_e(
    found: CostTables, figure: str, size: str, width: int, length: int
) -> None:
    """FLOPs per token and layer: 16 d^2 in an FFN, 8 d^2 + 3 T d in attention."""
    title = next(title for title in found.flop_shares if figure in title)
    ffn, attention = 16 * width**2, 8 * width**2 + 3 * length * width
    assert found.flop_shares[title][size][length] == pytest.approx(ffn / (ffn + attention))


def test_claims_on_flops_are_judged_size_by_size(found: CostTables) -> None:
    names = ("flops below 8d/3", "flops to 1K", "flops of GPT-2", "flops of Pythia", "flops at 8K")
    verdicts = [finding(found, name).verdict for name in names]
    assert verdicts == ["holds", "holds in part", "holds in part", "holds in part", "holds"]
    # 16 d / (24 d + 3 T) is 57.1 % for d = 768 and T = 1,024.
    assert "GPT-2 124M at T = 1,024 (57.1%)" in finding(found, "flops to 1K").text
    # T = 2,048 = 8 d / 3 is the smallest GPT-2's very limit.
    assert "not of 124M (50.0%)" in finding(found, "flops of GPT-2").text
    assert "not of 70M (44.4%), 160M (50.0%)" in finding(found, "flops of Pythia").text


def test_every_size_is_in_the_text(found: CostTables) -> None:
    text = found.to_text()
    for title, sizes in found.flop_shares.items():
        part = text.partition(title)[2]
        assert all(f"\n{size} " in part for size in sizes)


def test_figure_1_compares_at_equal_time_as_the_paper_does(found: CostTables) -> None:
    """Table 4: at the time of each of He and Hofmann's networks AERO's is 12 to 13 % better."""
    steps = found.figures["Figure 1: GPT-2, T = 128"]
    pairs = compare_at_equal_time(savings.timed_steps(steps))
    changes = [e.perplexity_change for e in pairs if e.network.label.startswith("SOTA:")]
    assert changes == pytest.approx([3.50 / 4.00 - 1, 3.48 / 3.97 - 1, 3.48 / 4.00 - 1])


def test_the_tables_are_one_line_where_they_are_shown_by_python(found: CostTables) -> None:
    assert repr(found) == "<CostTables of 27 rows on spu-2024>"
