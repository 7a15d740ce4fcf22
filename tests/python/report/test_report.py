"""The report as a reader meets it: whole, self-contained, and with the runs' own numbers."""

import html.parser
import json
import re
import statistics

import matplotlib
import pytest
from typer.testing import CliRunner

from aero import mpc
from aero.architecture import ArchitectureSpec
from aero.cli import app
from aero.mpc.simulation import cheetah_stack_names
from aero.paper import PUBLIC
from aero.report import write_report
from aero.report.contents import read_seed_spread
from aero.report.document import next_steps, summary_table
from aero.report.report_file import read_report
from aero.report.writing import write_results

from .conftest import content_of, network


class Page(html.parser.HTMLParser):
    """Collects the addresses that a browser would fetch, and the tags left open."""

    void = frozenset({"meta", "img", "br", "link", "input", "hr"})

    def __init__(self):
        super().__init__()
        self.requests, self.images, self.open = [], [], []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        for name in ("src", "href", "data", "poster", "srcset"):
            if name in attributes:
                (self.images if tag == "image" else self.requests).append(attributes[name])
        if tag in ("script", "link", "iframe", "object", "img"):
            self.requests.append(tag)
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.handle_endtag(tag) if tag not in self.void else None

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_asks_nothing_of_the_network(demo):
    text = demo.html.read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == []
    assert [address for address in page.requests if not address.startswith("#")] == []
    assert all(image.startswith("data:image/png;base64,") for image in page.images)
    links = {*re.findall(r"https?://[^\"]*", text)}
    assert links <= {"http://www.w3.org/2000/svg"}  # a name, which nobody fetches
    assert not re.search(r"@import|url\((?!#)", text)
    assert "width=device-width" in text


def test_every_figure_is_a_file_and_in_the_page(demo, demo_runs):
    names = {path.stem for path in demo.figures}
    assert names == {
        "loss_curves",
        "entropy_heat_maps",
        "quarter_shares",
        "layerwise_entropy",
        "thresholds",
        "temperatures_ereg-sm-t-scfuffn",
        "bytes",
        "front",
        *(f"attention_{path.name.removesuffix('-seed1')}" for path in demo_runs.iterdir()),
    }
    text = demo.html.read_text(encoding="utf-8")
    markdown = demo.markdown.read_text(encoding="utf-8")
    for path in demo.figures:
        svg = path.read_text(encoding="utf-8")
        assert svg.startswith("<svg")
        assert svg in text
        assert f"](figures/{path.name})" in markdown


def test_perplexities_are_those_of_the_evaluations(demo, demo_perplexity):
    markdown = demo.markdown.read_text(encoding="utf-8")
    for label, perplexity in demo_perplexity.items():
        entry = network(demo, label)
        assert entry["perplexity"]["mean"] == perplexity
        assert entry["perplexity"]["standard_deviation"] is None
        assert f"| {label} | {perplexity:.2f} | " in markdown


def test_bytes_are_those_of_the_simulator_at_both_sizes(demo, demo_perplexity):
    for label in demo_perplexity:
        costs = network(demo, label)["private_inference"]
        for stack in cheetah_stack_names():
            trained = mpc.simulate(label, model="mini", stack=stack, **PUBLIC)
            assert costs["trained"][stack]["comm_bytes"] == trained.comm_bytes
            assert sum(costs["trained"][stack]["by_kind"].values()) == trained.comm_bytes
            options = {"final_norm": "none"} if "LN" in label else {}
            at_gpt2 = mpc.simulate(label, context_length=128, stack=stack, **options, **PUBLIC)
            assert costs["gpt2"][stack]["comm_bytes"] == at_gpt2.comm_bytes
            assert costs["gpt2"][stack]["rounds"] == at_gpt2.rounds


def test_the_papers_bytes_stand_beside_ours_and_one_more_layernorm_meets_them(demo):
    for label, published in (("SM+LN+G", 25.32), ("SM+ScFuFFN", 6.43)):
        costs = network(demo, label)["private_inference"]
        assert costs["paper"]["comm_gigabytes"] == published
        assert costs["gpt2_one_more_layernorm"] / 1e9 == pytest.approx(published, rel=2e-3)
    assert network(demo, "SM+FN+R")["private_inference"]["paper"] is None


def test_counts_are_those_of_the_architecture(demo):
    spec = ArchitectureSpec.from_label("EReg(SM(t)+ScFuFFN)", model="mini")
    entry = network(demo, spec.label)
    assert entry["parameters"] == spec.parameter_count()
    assert entry["parameters_in_training"] == spec.parameter_count(training=True)
    assert entry["flops"]["executed"]["total"] == spec.flops("executed").total
    assert ArchitectureSpec.from_dict(entry["spec"]) == spec


def test_comparisons_cover_the_penalty_its_overload_and_folding(demo):
    compared = content_of(demo)["comparisons"]
    assert {row["verdict"] for row in compared} == {"undecided"}  # one seed each
    assert [(row["network"], row["quantity"]) for row in compared] == [
        ("EReg(SM(t)+ScFuFFN)", "perplexity"),
        ("EReg(SM(t)+ScFuFFN)", "overloaded heads"),
        ("SM+FN+ScFuFFN", "perplexity"),
    ]
    shown = f"{100 * compared[0]['difference']:+.1f} %"
    for path in (demo.html, demo.markdown):
        assert shown in path.read_text(encoding="utf-8")


def test_the_summary_fits_a_terminal_and_has_a_line_per_network(demo, three_seeds):
    for paths in (demo, three_seeds):
        assert paths.summary == summary_table(read_report(paths.json))
        assert max(map(len, paths.summary.splitlines())) <= 100
    line = next(line for line in demo.summary.splitlines() if line.startswith("EReg("))
    costs = network(demo, "EReg(SM(t)+ScFuFFN)")["private_inference"]
    assert "11.50" in line
    assert line.endswith(
        f"{costs['trained']['spu-2024']['comm_bytes'] / 1e9:.3g}      "
        f"{costs['gpt2']['spu-2024']['comm_bytes'] / 1e9:.3g}"
    )


def test_seeds_give_mean_and_sample_standard_deviation(three_seeds):
    entry = network(three_seeds, "SM+ScFuFFN")
    values = [12.2, 12.3, 12.4]
    assert entry["perplexity"]["values"] == pytest.approx(values)
    assert entry["perplexity"]["standard_deviation"] == pytest.approx(statistics.stdev(values))
    assert "12.30 ± 0.10" in three_seeds.html.read_text(encoding="utf-8")
    assert "12.30 ± 0.10" in three_seeds.summary


def test_a_single_seed_says_so_and_quotes_the_spread(demo):
    for path in (demo.html, demo.markdown):
        text = path.read_text(encoding="utf-8")
        assert "One seed (1)" in text
        assert "12.30 ± 0.10" in text
        assert "differ from those of this report" not in text
    assert content_of(demo)["seed_spread"]["seeds"] == [1, 2, 3]


def test_a_label_deeper_than_gpt2_has_no_cost_at_that_size(make_run, tmp_path, no_figures):
    run = make_run("SM+ScFuFFN_i13", num_layers=14)
    paths = write_report([run], tmp_path / "report")
    assert network(paths, "SM+ScFuFFN_i13")["private_inference"]["gpt2"] is None


def test_titles_and_names_are_escaped(make_run, tmp_path, no_figures):
    run = make_run("SM+ScFuFFN", info={"hardware": "<script>alert(1)</script>"})
    paths = write_report([run], tmp_path / "report", title="a < b & c")
    text = paths.html.read_text(encoding="utf-8")
    assert "<script>" not in text
    assert "<title>a &lt; b &amp; c</title>" in text


def test_a_name_that_would_end_a_cell_or_a_line_breaks_no_table(make_run, tmp_path, no_figures):
    source = {"label": None, "path": "runs/a|b\nc", "annealing": {"schedule": "none"}}
    runs = [make_run("SM+ScFuFFN", info={"from": source}), make_run("SM+LN+G")]
    lines = write_report(runs, tmp_path / "report").markdown.read_text("utf-8").splitlines()
    rules = [index for index, line in enumerate(lines) if line.startswith("| ---")]
    assert len(rules) == 3
    for index in rules:
        table = lines[index - 1 : index + 3]
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1
        assert any(line.startswith("| SM+ScFuFFN, continued from a\\|b c | ") for line in table)


def test_a_full_disk_keeps_the_earlier_report(make_run, tmp_path, no_figures, monkeypatch):
    run, folder = make_run("SM+ScFuFFN"), tmp_path / "report"
    before = {
        path: path.read_bytes()
        for path in write_report([run], folder).html.parent.iterdir()
        if path.is_file()
    }

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_report([run], folder, title="another")
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_figures_of_an_earlier_report_do_not_stay(make_run, tmp_path, no_figures):
    stale = tmp_path / "report" / "figures" / "stale.png"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"")
    write_report([make_run("SM+ScFuFFN")], tmp_path / "report")
    assert not stale.exists()


def test_the_first_screen_names_the_best_network_its_bytes_and_its_time(demo, demo_perplexity):
    text = demo.html.read_text(encoding="utf-8")
    first = text[: text.index("<h2>")]
    best = min(demo_perplexity, key=demo_perplexity.get)
    cost = mpc.simulate(best, model="mini")
    for part in (
        f"<dt>Best network</dt><dd>{best}<",
        f"<dd>{demo_perplexity[best]:.2f}<",
        f"<dd>{cost.comm_bytes / 1e9:.2f} GB<",
        f"<dd>{cost.latency().seconds:.0f} s<",
        'aria-label="Perplexity against the bytes of one private pass"',
        ">better<",
        *(f">{label}</text>" for label in demo_perplexity),
    ):
        assert part in first
    assert "<p" in first and text.index("<figure>") < text.index("<h2>")


def test_the_page_explains_its_labels_and_shows_how_training_went_first(demo):
    text = demo.html.read_text(encoding="utf-8")
    assert text.index("<code>FN</code> a normalization") < text.index("<th>SM+LN+G</th>")
    # Words that no network here has are left out.
    assert "<code>DyT</code>" not in text
    assert text.index("How training went") < text.index("<h2>Comparisons")
    assert text.index('aria-label="Loss over optimizer steps') < text.index("<h2>Comparisons")
    markdown = demo.markdown.read_text(encoding="utf-8")
    assert markdown.index("- `FN` a normalization") < markdown.index("## Comparisons")
    assert markdown.index("loss_curves.svg") < markdown.index("## Comparisons")


def test_the_report_ends_with_commands_that_can_be_typed(demo):
    show = "aero show sm-ln-g-seed1 sm-fn-r-seed1"  # the best beside the baseline
    compare = "aero cost compare SM+LN+G SM+FN+R"
    text = demo.html.read_text(encoding="utf-8")
    end = text[text.index("What to do next") :]
    assert "<h2>" not in end and show in end and compare in end
    assert show in demo.markdown.read_text(encoding="utf-8")
    steps = next_steps(read_report(demo.json), {"sm-fn-r-seed1": "runs/my runs/sm-fn-r-seed1"})
    assert [*steps] == ["aero show sm-ln-g-seed1 'runs/my runs/sm-fn-r-seed1'", compare]
    done = CliRunner().invoke(app, compare.split()[1:])
    assert done.exit_code == 0, done.output


def test_a_network_alone_is_shown_and_priced_alone(make_run, tmp_path, no_figures):
    paths = write_report([make_run("SM+ScFuFFN")], tmp_path / "report")
    assert [*next_steps(read_report(paths.json))] == [
        "aero show sm-scfuffn-seed1",
        "aero cost show SM+ScFuFFN",
    ]


def test_networks_of_a_family_share_a_colour_in_every_figure(demo):
    figures = {path.stem: path.read_text(encoding="utf-8") for path in demo.figures}
    for name in ("front", "loss_curves"):
        # LayerNorm, foldable norm, no norm, no norm with the penalty.
        colors = set(re.findall(r"#(?:0072b2|d55e00|009e73|cc79a7|e69f00|56b4e9)", figures[name]))
        assert colors == {"#0072b2", "#d55e00", "#009e73", "#cc79a7"}
    assert "foldable norm" in figures["front"] and "no norm, entropy penalty" in figures["front"]


def test_every_network_continues_the_same_line_and_its_heads_have_titles(demo, demo_perplexity):
    text = demo.html.read_text(encoding="utf-8")
    for label in demo_perplexity:
        assert (
            f"<h3>{label}</h3><pre><b>the cat &lt;sat&gt; on</b> {label} wrote this</pre>" in text
        )
    # The made-up heads look at all tokens alike.
    assert text.count("<title>layer 5, head 3, at ' on': 1.39 of 1.39 nats; looks at") == 5
    markdown = demo.markdown.read_text(encoding="utf-8")
    assert "the cat <sat> on SM+LN+G wrote this\n" in markdown


def test_drawing_leaves_matplotlibs_settings_alone(demo):
    assert matplotlib.rcParams["axes.titleweight"] == matplotlib.rcParamsDefault["axes.titleweight"]


def test_a_results_file_stands_alone_and_can_be_quoted(three_seeds, tmp_path):
    report = read_report(three_seeds.json)
    json_path, markdown_path = write_results(report, tmp_path / "demo_box_202601")
    assert json_path.name == "demo_box_202601.json"
    assert read_seed_spread(json_path) == report
    markdown = markdown_path.read_text(encoding="utf-8")
    assert "12.30 ± 0.10" in markdown
    assert "![" not in markdown


def test_nothing_says_where_the_corpus_lay(make_run, tmp_path, no_figures):
    corpus = {"name": "stdlib", "sha256": "ab", "folder": "/somewhere/private"}
    paths = write_report([make_run("SM+G", info={"corpus": corpus})], tmp_path / "report")
    for path in (paths.html, paths.markdown, paths.json):
        assert "/somewhere/private" not in path.read_text(encoding="utf-8")


def test_a_report_shows_whether_networks_use_their_context(make_run, tmp_path, no_figures):
    runs = [make_run("SM+LN+G", 1), make_run("SM+LN+G", 2), make_run("SM+FN+R", 1)]
    for run, first in zip(runs[:2], (4.0, 5.0), strict=True):
        file = run / "evaluation.json"
        context = {
            "by_position": [
                {"first": 1, "last": 1, "loss": first}, {"first": 2, "last": 3, "loss": None},
            ],
            "repeated": {"loss": 1.0, "tokens": 3},
            "new": {"loss": first - 1, "tokens": 4},
        }  # fmt: skip
        file.write_text(json.dumps({**json.loads(file.read_text()), "context": context}))
    paths = write_report(runs, tmp_path / "out")
    assert "| SM+LN+G | 4.50 | - | 1.00 | 3.50 |" in paths.markdown.read_text()
    page = paths.html.read_text()
    assert "<summary>Use of context</summary>" in page and "<td>4.50</td><td>-</td>" in page
    without = write_report(runs[2:], tmp_path / "without")
    assert "Use of context" not in without.markdown.read_text() + without.html.read_text()


def test_a_report_shows_how_many_directions_the_ffns_use(make_run, tmp_path, no_figures):
    runs = [make_run("SM+LN+G", 1), make_run("SM+LN+G", 2), make_run("SM+FN+R", 1)]
    names = [f"{name}_{side}" for side in ("before", "after") for name in
             ("entropy", "participation", "enrichment")] + ["jensen_shannon"]  # fmt: skip
    for run, first in zip(runs[:2], (2.0, 4.0), strict=True):
        file = run / "analysis.json"
        # Of the second layer, which has none, nothing counts.
        layers = [{name: first + place for place, name in enumerate(names)}, None]
        file.write_text(json.dumps({**json.loads(file.read_text()), "ffn_spectra": layers}))
    paths = write_report(runs, tmp_path / "out")
    assert "| SM+LN+G | 3 | 4 | 5 | 6 | 7 | 8 | 9 |" in paths.markdown.read_text()
    assert "<summary>Directions that FFNs use</summary>" in paths.html.read_text()
    (entry, _) = json.loads(paths.json.read_text())["networks"]
    assert entry["ffn_spectra"][0]["participation_after"] == 7.0
    assert entry["ffn_spectra"][1] is None
    without = write_report(runs[2:], tmp_path / "without")
    assert "Directions that FFNs" not in without.markdown.read_text() + without.html.read_text()
