"""Reports as CSV, pages and comparisons; the commands that plan."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from aero import mpc
from aero.mpc.drawing import layers, stacked_bar

REPORT = mpc.simulate("SM+LN+G", model="mini")


def widths(svg: str, colourless: bool = False) -> list[float]:
    """Widths of the rectangles in the order of drawing; their sum is the picture's width."""
    root = ElementTree.fromstring(svg)
    rectangles = root.iter("{http://www.w3.org/2000/svg}rect")
    return [
        float(r.attrib["width"])
        for r in rectangles
        if (r.attrib["fill"] == "#e0e0e0") == colourless
    ]


def test_the_bar_shows_every_part_at_its_share() -> None:
    shown = widths(stacked_bar(REPORT))
    expected = [960 * c.comm_bytes / REPORT.comm_bytes for c in REPORT.by_kind.values()]
    assert shown == pytest.approx(expected, abs=0.01)


def test_layers_are_as_wide_as_their_operations() -> None:
    assert len(widths(layers(REPORT))) == len(REPORT.operations)
    assert sum(widths(layers(REPORT))) == pytest.approx(960, abs=0.01 * len(REPORT.operations))
    grey = widths(layers(REPORT), colourless=True)
    assert len(grey) == 2 + len(REPORT.by_layer)
    assert sum(grey) == pytest.approx(2 * 960, abs=0.1)


def test_pages_load_nothing_and_have_table_and_pictures() -> None:
    page = REPORT.to_html()
    assert page.startswith("<!DOCTYPE html>")
    assert "<script" not in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert all(f"<td>{kind}</td>" in page for kind in REPORT.by_kind)
    assert REPORT._repr_html_() in page or page.count("<svg") == 2
    assert REPORT._repr_html_().count("<svg") == 2


def test_csv_has_a_line_per_operation() -> None:
    lines = list(csv.DictReader(io.StringIO(REPORT.to_csv())))
    assert len(lines) == len(REPORT.operations)
    assert sum(float(line["comm_bytes"]) for line in lines) == REPORT.comm_bytes


def test_comparisons_have_every_part_of_either_and_add_up() -> None:
    other = mpc.simulate("SM+ScFuFFN", model="mini")
    comparison = REPORT.compare(other)
    rows = {row["part"]: row for row in comparison.rows()}
    assert set(rows) == {*REPORT.by_kind, *other.by_kind, "total"}
    for side, report in (("first", REPORT), ("second", other)):
        parts = [row for part, row in rows.items() if part != "total"]
        assert sum(row[f"{side}_bytes"] for row in parts) == report.comm_bytes
        assert sum(row[f"{side}_flights"] for row in parts) == report.flights
    assert rows["act"]["ratio"] is None
    assert comparison.ratio == REPORT.comm_bytes / other.comm_bytes
    assert f"{comparison.ratio:.2f}" in comparison.to_text()
    assert comparison._repr_html_().count("<tr>") == len(rows) + 1
    assert len(comparison.to_csv().splitlines()) == len(rows) + 1
    json.dumps(comparison.to_dict())


def aero(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "aero.cli", "cost", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_commands_print_what_the_functions_return(tmp_path: Path) -> None:
    options = aero("options", "SM", "--model", "tiny", "--size", "16", "--json")
    table = mpc.option_table("SM", model="tiny", sizes=[(16, None)])
    assert json.loads(options.stdout) == json.loads(json.dumps(table.to_dict()))
    generated = aero("generate", "SM", "--model", "tiny", "--new-tokens", "3", "--set", "gelu=tanh")
    expected = mpc.simulate_generation("SM", model="tiny", context_length=128, new_tokens=3)
    assert generated.stdout.rstrip("\n") == expected.to_text()
    swept = aero(
        *("sweep", "--label", "SM", "--label", "SM+R", "--model", "tiny", "--csv"),
        *("--set", "context_length=8,16", "--set", "mul_share=true", "--pareto", "comm_gb"),
    )
    found = mpc.sweep(["SM", "SM+R"], model="tiny", context_length=[8, 16], mul_share=True)
    assert swept.stdout == found.pareto("comm_gb").to_csv()
    compared = aero("compare", "SM", "SM", "--model", "tiny", "--second-stack", "blb")
    sizes = {"model": "tiny", "context_length": 128}
    both = mpc.simulate("SM", **sizes).compare(mpc.simulate("SM", stack="blb", **sizes))
    assert compared.stdout.rstrip("\n") == both.to_text()
    page = tmp_path / "page.html"
    shown = aero("show", "SM", "--model", "tiny", "--csv", "--html", str(page))
    assert shown.stdout == mpc.simulate("SM", **sizes).to_csv()
    assert page.read_text() == mpc.simulate("SM", **sizes).to_html()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sweep"], "labels or runs must name at least one network"),
        (["sweep", "--label", "SM", "--set", "width"], "--set must be FIELD=VALUE, got 'width'"),
        (["generate", "SM", "--set", "gelu=tanh,segment"], "--set gelu must have one value, got 2"),
        (["options", "SM", "--size", "x"], "size must be T or T:V in tokens, got 'x'"),
        (["show", "SM", "--stack", "none.yaml"], "none.yaml: cannot be read"),
    ],
)
def test_bad_commands_end_with_one_line(arguments: list[str], message: str) -> None:
    done = aero(*arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
