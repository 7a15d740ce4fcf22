"""Sweeps as pages with their fronts."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure
from tests.python.run_records import run_info

from aero import mpc
from aero.internals.records import record_bytes
from aero.mpc.network_sweep import SweepResult
from aero.report import to_html
from aero.report.cost_pages import to_fragment
from aero.report.picture import svg_of

SVG = "{http://www.w3.org/2000/svg}"


def make_runs(folder: Path, perplexities: dict[str, list[float]]) -> Path:
    for label, values in perplexities.items():
        for seed, perplexity in enumerate(values):
            run = folder / f"{label}-{seed}"
            run.mkdir()
            (run / "run.json").write_bytes(record_bytes(run_info(label=label)))
            (run / "evaluation.json").write_text(json.dumps({"perplexity": perplexity}))
    return folder


def test_pages_of_runs_show_perplexity_fronts(tmp_path: Path) -> None:
    folder = make_runs(tmp_path, {"SM+R": [30.0], "SM": [50.0], "SM+G": [60.0]})
    found = mpc.sweep(runs=[folder], networks=["lan-1gbps", "wan-100mbps"])
    page = to_html(found)
    for x in ("GB of both parties", "seconds on lan-1gbps", "seconds on wan-100mbps"):
        # GELU costs more than ReLU and is worse here.
        assert f"perplexity against {x}: 2 on the front" in page
    assert page.count("<title>") == 1 + 9
    assert "<script" not in page
    assert to_html(found) == page
    assert to_fragment(found) in page
    assert "no combination" in to_fragment(SweepResult(()))


def test_pages_of_labels_show_costs_alone(tmp_path: Path) -> None:
    plain = to_html(mpc.sweep(["SM", "SM+R"], model="tiny"))
    assert "rounds against GB of both parties" in plain
    assert "perplexity" not in plain
    many = mpc.sweep(["SM"], model="tiny", context_length=list(range(1, 503)))
    assert "and 2 more" in to_html(many)
    with pytest.raises(ValueError, match="at least one combination"):
        to_html(SweepResult(()))


def test_pictures_name_the_front_and_every_point_on_hovering() -> None:
    found = mpc.sweep(["SM+LN+G", "SM+R"], model="tiny", context_length=[8, 16])
    page = to_html(found)
    root = ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])
    titles = [title.text or "" for title in root.iter(f"{SVG}title")]
    assert len(titles) == 4
    for row in found.rows:
        size = f"context_length {row.values['context_length']}"
        (title,) = [x for x in titles if x.startswith(f"label {row.label}, {size},")]
        assert f"comm_gb {row.comm_gb:,.4g}" in title
    # Every use of a marker that has a title lies inside the picture, cheaper ones further left.
    places = {
        use.find(f"{SVG}title").text: (float(use.attrib["x"]), float(use.attrib["y"]))
        for use in root.iter(f"{SVG}use")
        if use.find(f"{SVG}title") is not None
    }
    width, height = (float(x) for x in root.attrib["viewBox"].split()[2:])
    assert all(0 < x < width and 0 < y < height for x, y in places.values())
    across = [
        places[t][0]
        for t in sorted(places, key=lambda t: float(t.split("comm_gb ")[1].split(",")[0]))
    ]
    assert across == sorted(across)
    words = [text.text for text in root.iter(f"{SVG}text")]
    assert {"GB of both parties", "rounds", "SM+LN+G", "SM+R"} <= {*words}


def test_shapes_without_a_title_each_are_an_error() -> None:
    figure = Figure()
    figure.subplots().plot([1, 2], [1, 2], "o", gid="dots")
    assert svg_of(figure, "two dots", {"dots": ["a", "<b>"]}).count("<title>") == 2
    with pytest.raises(ValueError, match="zip"):
        svg_of(figure, "two dots", {"dots": ["a"]})
