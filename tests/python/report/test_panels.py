"""Figures of small networks: their text stays within them."""

import re

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from aero.architecture import ArchitectureSpec
from aero.report import panels, picture
from aero.report.networks import group_runs
from aero.report.report_file import Made, PassCost, Report, Training
from aero.report.runs import read_run

from .test_comparisons import entry


@pytest.mark.parametrize("draw", [panels.draw_heat_maps, panels.draw_thresholds])
@pytest.mark.parametrize(("num_layers", "count"), [(1, 1), (2, 3), (2, 4), (6, 1)])
def test_the_words_at_the_colour_bar_are_not_cut_off(
    draw, num_layers, count, make_run, monkeypatch
):
    labels = ("EReg(SM(t)+ScFuFFN)", "EReg(SM+LN+G)", "EReg(SM+R)", "EReg(SM+LN+R)")[:count]
    runs = [read_run(make_run(label, num_layers=num_layers)) for label in labels]
    figures = []
    monkeypatch.setattr(picture, "svg_of", lambda figure, *others: figures.append(figure) or "")
    draw(group_runs(runs))
    (figure,) = figures
    FigureCanvasAgg(figure).draw()
    bar = figure.axes[-1]
    words = bar.yaxis.label.get_window_extent()
    assert bar.yaxis.label.get_text()
    assert figure.bbox.y0 <= words.y0 and words.y1 <= figure.bbox.y1
    assert figure.bbox.x0 <= words.x0 and words.x1 <= figure.bbox.x1


def caption_of_the_front(**networks):
    """Of labels -> perplexities and the GB of a pass."""
    entries = [
        entry(
            label,
            perplexities,
            ArchitectureSpec.from_label(label, model="mini").to_dict(),
            costs={"spu-2024": PassCost(gigabytes * 1e9, 1, 1.0, {})},
        )
        for label, (perplexities, gigabytes) in networks.items()
    ]
    report = Report(
        made=Made("now"),
        training=Training(hardware=[]),
        seeds=[1],
        stacks=["spu-2024"],
        networks=entries,
    )
    return panels._front(report).caption


@pytest.mark.parametrize(("dear", "unbeaten"), [(60.0, "SM"), (50.0, "those on the dashed line")])
def test_the_caption_of_the_front_names_what_no_other_network_beats(dear, unbeaten):
    caption = caption_of_the_front(**{"SM+LN+G": ([dear], 2.5), "SM": ([55.0], 0.9)})
    assert caption.endswith(f"No other network here beats {unbeaten} in both.")


@pytest.mark.parametrize("seeds", [1, 2])
def test_the_caption_of_the_front_speaks_of_seeds_and_bars_only_where_there_are_any(seeds):
    perplexities = [50.0, 51.0][:seeds]
    caption = caption_of_the_front(**{"SM+LN+G": (perplexities, 2.5), "SM": (perplexities, 0.9)})
    assert ("seed" in caption, "bar" in caption) == (seeds > 1, seeds > 1)


def test_shares_of_heads_are_drawn_by_log_t_and_by_the_papers_measure_only_where_it_is_given():
    shares = {"log_context": [0.0, 1.0, 0.0, 0.0], "observed_max": [0.0, 0.0, 0.3, 0.7]}
    alone = panels.draw_quarters({"SM": {"log_context": shares["log_context"]}})
    both = panels.draw_quarters({"SM": shares})
    assert "largest" not in alone.svg + alone.caption
    assert "largest" in both.caption and both.svg.count("quarters of") > alone.svg.count(
        "quarters of"
    )


def test_no_picture_is_blown_up_beyond_the_letters_of_the_page():
    shares = {"log_context": [0.0, 1.0, 0.0, 0.0]}
    wide = panels.draw_quarters({"SM": shares})
    figure = Figure(figsize=(4.0, 2.0))
    figure.subplots().set_title("small")
    small = picture.svg_of(figure, "small")
    widths = [int(re.search(r"max-width: (\d+)px", svg)[1]) for svg in (wide.svg, small)]
    assert widths == [1216, 512]


def test_the_legend_of_the_quarters_is_inside_their_picture(monkeypatch):
    figures = []
    monkeypatch.setattr(picture, "svg_of", lambda figure, *others: figures.append(figure) or "")
    panels.draw_quarters({"EReg(SM(t)+ScFuFFN)": {"log_context": [0.1, 0.4, 0.3, 0.2]}})
    (figure,) = figures
    FigureCanvasAgg(figure).draw()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1
