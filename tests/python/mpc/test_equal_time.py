"""Networks at equal time, and sweeps as pages with their fronts."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from aero import mpc
from aero.architecture import ArchitectureSpec
from aero.mpc.equal_time import TimedNetwork, compare_at_equal_time, timed_rows
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
            spec = ArchitectureSpec.from_label(label, model="tiny").to_dict()
            (run / "run.json").write_text(json.dumps({"spec": spec}))
            (run / "evaluation.json").write_text(json.dumps({"perplexity": perplexity}))
    return folder


def test_the_best_other_label_within_the_bounds_is_chosen() -> None:
    slow, near, worse, own = (
        TimedNetwork("A", "", 100.0, 5.0),
        TimedNetwork("B", "", 110.0, 4.0),
        TimedNetwork("C", "", 95.0, 4.5),
        TimedNetwork("A", "T=8", 100.0, 1.0),
    )
    far = TimedNetwork("D", "", 110.1, 2.0)
    found = compare_at_equal_time([slow, near, worse, own, far])
    assert found[0].best is near
    assert found[0].perplexity_change == pytest.approx(-0.2)
    assert found[0].time_ratio == pytest.approx(1.1)
    alone = compare_at_equal_time([slow, far])[0]
    assert alone.best is None
    assert alone.perplexity_change is alone.time_ratio is None
    assert alone.cells()["best that takes as long"] == "none"
    assert compare_at_equal_time([slow, far], within=0.101)[0].best is far


def test_runs_of_one_network_count_once_with_their_mean(tmp_path: Path) -> None:
    folder = make_runs(tmp_path, {"SM+R": [30.0, 34.0], "SM": [50.0]})
    found = mpc.sweep(runs=[folder], stacks=["spu-2024", "blb"], networks=["lan-1gbps"])
    networks = timed_rows(found, "lan-1gbps")
    assert {(n.name, n.perplexity, n.runs) for n in networks} == {
        ("SM+R stack=spu-2024", 32.0, 2),
        ("SM+R stack=blb", 32.0, 2),
        ("SM stack=spu-2024", 50.0, 1),
        ("SM stack=blb", 50.0, 1),
    }
    with pytest.raises(ValueError, match=r"one of the sweep's \(lan-1gbps\), got wan-100mbps"):
        timed_rows(found, "wan-100mbps")
    with pytest.raises(ValueError, match="runs with a perplexity"):
        timed_rows(mpc.sweep("SM", networks=["lan-1gbps"]), "lan-1gbps")
    with pytest.raises(ValueError, match="within must be a number from 0 to 1, got 2"):
        compare_at_equal_time(networks, within=2)


def test_pages_of_runs_show_perplexity_fronts_and_equal_time(tmp_path: Path) -> None:
    folder = make_runs(tmp_path, {"SM+R": [30.0], "SM": [50.0], "SM+G": [60.0]})
    found = mpc.sweep(runs=[folder], networks=["lan-1gbps", "wan-100mbps"])
    page = to_html(found)
    for x in ("GB of both parties", "seconds on lan-1gbps", "seconds on wan-100mbps"):
        # GELU costs more than ReLU and is worse here.
        assert f"perplexity against {x}: 2 on the front" in page
    assert page.count("<title>") == 1 + 9
    assert page.count("Equal time on") == 2
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
