"""Reports as CSV, pages and comparisons; the commands that plan."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from aero import mpc
from aero.mpc.optimization_tables import optimization_table
from aero.report import to_csv, to_html, to_text
from aero.report.cost_figures import layer_details, layer_pieces, layers, stacked_bars
from aero.report.cost_pages import gigabytes, to_fragment
from aero.report.cost_texts import layer_groups, layer_rows

REPORT = mpc.simulate("SM+LN+G", model="mini")


SVG = "{http://www.w3.org/2000/svg}"


def titled(svg: str) -> dict[str, tuple[float, float]]:
    """Title of every shape -> where it begins and ends across the picture, as shares of it."""
    found = {}
    for picture in ElementTree.fromstring(f"<all>{svg}</all>").iter(f"{SVG}svg"):
        width = float(picture.attrib["viewBox"].split()[2])
        for shape in picture.iter():
            title = shape.find(f"{SVG}title")
            if title is not None and shape.tag == f"{SVG}path":
                numbers = [float(n) for n in re.findall(r"-?[0-9.]+", shape.attrib["d"])]
                found[title.text or ""] = (min(numbers[::2]) / width, max(numbers[::2]) / width)
    return found


def test_bars_show_every_part_at_its_share() -> None:
    shown = titled(stacked_bars({"all": gigabytes(REPORT)}, "GB"))
    shares = [end - start for start, end in shown.values()]
    expected = [c.comm_bytes / REPORT.comm_bytes for c in REPORT.by_kind.values()]
    assert shares == pytest.approx(expected, abs=1e-4)
    assert [title.partition(":")[0] for title in shown] == list(REPORT.by_kind)
    assert all(title.endswith(f"{100 * x:.1f} %") for title, x in zip(shown, expected, strict=True))


def test_bars_side_by_side_share_one_scale() -> None:
    bars = {"long": {"QK": 3.0, "PV": 1.0}, "short": {"PV": 1.0}}
    shown = titled(stacked_bars(bars, "GB"))
    assert [*shown.values()] == [
        pytest.approx(ends, abs=1e-4) for ends in ((0, 0.75), (0.75, 1), (0, 0.25))
    ]
    nothing = titled(stacked_bars({"nothing": {"QK": 0.0}}, "GB"))
    assert nothing == {"QK: 0.000 GB, 0.0 %": (0.0, 0.0)}


def test_layers_are_as_wide_as_their_parts_and_operations() -> None:
    pieces = layer_pieces(REPORT)
    for row in range(4):
        drawn = [piece for piece in pieces if piece.row == row]
        assert sum(piece.width for piece in drawn) == pytest.approx(REPORT.comm_bytes)
        for before, after in pairwise(drawn):
            assert after.left == pytest.approx(before.left + before.width)
    assert sum(piece.row == 1 for piece in pieces) == 1 + len(REPORT.by_layer)
    assert sum(piece.row == 3 for piece in pieces) == len(REPORT.operations)
    picture = layers(REPORT)
    assert picture.count("<title>") == len(pieces)
    assert all(f">{name}</text>" in picture for name in ("total", "layer 0", "act"))


def test_layers_that_cost_the_same_are_drawn_and_listed_once() -> None:
    pruned = mpc.simulate("SM+ScFuFFN_i2", model="mini")
    assert [(name, first) for name, first, _ in layer_groups(pruned)] == [
        ("layers 0-3, each", 0),
        ("layers 4-5, each", 4),
    ]
    text = to_text(pruned)
    assert "layers 0-3, each" in text
    details = layer_details(pruned)
    assert details.count("<svg") == 3
    assert "layers 0-3, each: " in details
    rows = [line.split() for line in text.splitlines() if line.startswith(("outside", "layers"))]
    outside, wide, narrow = (float(row[3]) for row in rows)
    assert outside + 4 * wide + 2 * narrow == pytest.approx(pruned.comm_bytes / 1e9, abs=5e-3)
    timed = pruned.latency("wan-100mbps")
    rows = layer_rows(pruned, timed)
    assert [row["seconds"] for row in rows] == [
        f"{one.seconds:,.1f}"
        for one in (timed.outside_layers, timed.by_layer[0], timed.by_layer[5])
    ]
    assert len({row["seconds"] for row in rows}) == 3


def test_pages_load_nothing_and_have_table_and_pictures() -> None:
    page = to_html(REPORT)
    assert page.startswith("<!DOCTYPE html>")
    assert "<script" not in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert all(f"<td>{kind}</td>" in page for kind in REPORT.by_kind)
    assert "seconds" not in page
    # The bytes, all layers, the parts outside them, and the one kind of layer.
    assert page.count("<svg") == to_fragment(REPORT).count("<svg") == 4


def test_pages_on_a_network_show_its_time() -> None:
    timed = to_html(REPORT, "lan-1gbps", "paper-testbed,threads=8")
    assert timed.count("<svg") == 5
    assert to_text(REPORT.latency("lan-1gbps", "paper-testbed,threads=8")) in timed
    assert "no run confirms minutes on this network" in timed


def test_tags_of_names_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "tags.yaml"
    path.write_text("{format: 1, name: '<b>&', base: spu-2024}")
    report = mpc.simulate("SM", model="tiny", stack=path)
    swept = mpc.sweep("SM", model="tiny", stacks=[path])
    pages = to_html(report), to_fragment(report), to_html(report.compare(REPORT))
    for text in (*pages, to_html(swept)):
        assert "<b>" not in text
        assert "&lt;b&gt;&amp;" in text


def test_csv_has_a_line_per_operation() -> None:
    lines = list(csv.DictReader(io.StringIO(to_csv(REPORT, "paper-testbed"))))
    assert len(lines) == len(REPORT.operations)
    assert sum(float(line["comm_bytes"]) for line in lines) == REPORT.comm_bytes
    seconds = sum(float(line["seconds"]) for line in lines)
    assert seconds == pytest.approx(REPORT.latency().seconds, rel=1e-12)
    assert "seconds" not in to_csv(REPORT)


def test_comparisons_have_every_part_of_either_and_add_up() -> None:
    other = mpc.simulate("SM+ScFuFFN", model="mini")
    comparison = REPORT.compare(other)
    rows = {row["part"]: row for row in comparison.rows()}
    assert set(rows) == {*REPORT.by_kind, *other.by_kind, "total"}
    for side, report in (("first", REPORT), ("second", other)):
        parts = [row for part, row in rows.items() if part != "total"]
        assert sum(row[f"{side}_bytes"] for row in parts) == report.comm_bytes
        assert sum(row[f"{side}_rounds"] for row in parts) == report.rounds
    assert rows["act"]["ratio"] is None
    assert comparison.ratio == REPORT.comm_bytes / other.comm_bytes
    assert f"{comparison.ratio:.2f}" in to_text(comparison)
    assert to_fragment(comparison).count("<tr") == to_html(comparison).count("<tr") == len(rows) + 1
    assert len(to_csv(comparison).splitlines()) == len(rows) + 1
    assert to_html(comparison, "lan-1gbps").count("<svg") == 2
    json.dumps(comparison.to_dict())


def test_pages_of_generation_show_prompts_and_the_rest() -> None:
    found = mpc.simulate_generation("SM+R", model="tiny", new_tokens=3)
    page = to_html(found)
    first = found.per_token[0].comm_bytes / 1e9
    assert f"prompts, first token of each: {first:,.3f} GB" in page
    assert f"the other 2 tokens of each: {found.comm_bytes / 1e9 - first:,.3f} GB" in page
    bars = titled(page[page.index("<svg") : page.index("</svg>") + 6])
    assert max(end for _, end in bars.values()) == pytest.approx(1)
    assert len([title for title in bars if title.startswith("softmax: ")]) == 2
    assert "seconds" not in page
    assert to_fragment(found) in page
    one = to_html(mpc.simulate_generation("SM", model="tiny", new_tokens=1))
    assert "the other" not in one
    assert "and 1 more" in to_html(mpc.simulate_generation("SM", model="tiny", new_tokens=201))


def aero(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "aero.cli", "cost", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_commands_print_what_the_functions_return(tmp_path: Path) -> None:
    options = aero("optimizations", "SM", "--model", "tiny", "--size", "16", "--json")
    table = optimization_table("SM", model="tiny", sizes=[(16, None)])
    assert json.loads(options.stdout) == json.loads(json.dumps(table.to_dict()))
    generated = aero("generate", "SM", "--model", "tiny", "--new-tokens", "3")
    expected = mpc.simulate_generation("SM", model="tiny", context_length=128, new_tokens=3)
    assert generated.stdout.rstrip("\n") == to_text(expected)
    swept = aero(
        *("sweep", "--label", "SM", "--label", "SM+R", "--model", "tiny", "--csv"),
        *("--set", "context_length=8,16", "--set", "mul_share=true", "--pareto", "comm_gb"),
    )
    found = mpc.sweep(["SM", "SM+R"], model="tiny", context_length=[8, 16], mul_share=True)
    assert swept.stdout == to_csv(found.pareto("comm_gb"))
    compared = aero("compare", "SM", "SM", "--model", "tiny", "--second-stack", "blb")
    sizes = {"model": "tiny", "context_length": 128}
    both = mpc.simulate("SM", **sizes).compare(mpc.simulate("SM", stack="blb", **sizes))
    assert compared.stdout.rstrip("\n") == to_text(both)
    page = tmp_path / "page.html"
    shown = aero("show", "SM", "--model", "tiny", "--csv", "--html", str(page))
    assert shown.stdout == to_csv(mpc.simulate("SM", **sizes))
    assert page.read_text() == to_html(mpc.simulate("SM", **sizes))


def test_a_bill_without_doubts_has_no_heading_for_them():
    certain, doubted = mpc.simulate("SM+LN+G"), mpc.simulate("SM+LN+G", stack="blb")
    assert not certain.unchecked and doubted.unchecked
    for report, is_doubted in ((certain, False), (doubted, True)):
        assert ("not confirmed op by op:" in to_text(report)) == is_doubted
        assert ("Not confirmed op by op" in to_html(report)) == is_doubted


def test_a_notebook_shows_results_as_their_pages_draw_them() -> None:
    program = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
import aero, sys
found = aero.mpc.simulate("SM", model="tiny")
assert "aero.report.cost_pages" not in sys.modules
for each in (found, found.compare(found), aero.mpc.sweep("SM", model="tiny"),
             aero.mpc.simulate_generation("SM", model="tiny", new_tokens=2)):
    data, _ = shell.display_formatter.format(each)
    assert data["text/html"] == aero.report.cost_pages.to_fragment(each)
    assert data["text/plain"] == repr(each)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
