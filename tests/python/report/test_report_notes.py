"""What a report says of runs that lack something, ended early or do not compare."""

import json
from functools import partial
from pathlib import Path

import pytest
from tests.python.refusals import assert_refused

from aero.internals.records import changed
from aero.report import write_report
from aero.report.contents import _temperature_notes
from aero.report.report_file import TemperatureEntry, read_report

from .conftest import content_of, network
from .test_comparisons import entry

ROOT = Path(__file__).parents[3]


def test_temperatures_at_or_below_zero_are_noted():
    def noted(temperature):
        return _temperature_notes([entry("A", (12.2,), temperature=temperature)])

    (note,) = noted(TemperatureEntry(not_positive=4, minimum=-0.0021))
    assert "4 learned temperatures are zero or negative, down to -0.0021" in note
    assert noted(TemperatureEntry(not_positive=0, minimum=0.1)) == noted(None) == []


def test_a_spread_over_other_networks_is_marked(make_run, tmp_path, three_seeds, no_figures):
    run = make_run("SM+ScFuFFN", num_heads=2)
    paths = write_report([run], tmp_path / "report", seed_spread=three_seeds.json)
    assert "differ from those of this report" in paths.html.read_text(encoding="utf-8")


def test_a_spread_from_before_there_were_convolutions_is_of_the_same_networks(
    make_run, tmp_path, three_seeds, no_figures
):
    older = json.loads(three_seeds.json.read_text(encoding="utf-8"))
    for one in older["networks"]:
        del one["spec"]["convolution"], one["spec"]["convolution_taps"]
    path = tmp_path / "older.json"
    path.write_text(json.dumps(older))
    paths = write_report([make_run("SM+ScFuFFN")], tmp_path / "report", seed_spread=path)
    assert "differ from those of this report" not in paths.html.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is missing"),
        ("{", "expected valid JSON"),
        ('{"format": 7}', "must be a report.json of format 1"),
        ('{"format": 1}', "expected an entry made, got none"),
    ],
)
def test_a_spread_that_is_none_is_refused(make_run, tmp_path, no_figures, content, message):
    path = tmp_path / "spread.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=message):
        write_report([make_run("SM+ScFuFFN")], tmp_path / "report", seed_spread=path)
    assert not (tmp_path / "report").exists()


def test_runs_that_do_not_belong_together_are_refused(make_run, tmp_path, no_figures):
    run = make_run("SM+ScFuFFN")
    single = write_report([run], tmp_path / "single").json
    cut = make_run("SM+LN+G")
    sample = json.loads((cut / "sample.json").read_text())
    sample["attention"][0][0][1] = [1.0]
    (cut / "sample.json").write_text(json.dumps(sample))
    for runs, options, *named in (
        ([run], {"seed_spread": single}, "spread", "of several seeds", "got [1]"),
        ([cut], {}, "attention", "[L][H] = [6][4] triangles of 4"),
    ):
        assert_refused(partial(write_report, runs, tmp_path / "report", **options), *named)


def test_reports_of_earlier_versions_are_read_and_damaged_ones_say_where(three_seeds, tmp_path):
    content = json.loads(three_seeds.json.read_text(encoding="utf-8"))
    report = read_report(three_seeds.json)
    del content["comparisons"]
    for one in content["networks"]:
        del one["way"], one["context"], one["ffn_spectra"]
    path = tmp_path / "older.json"
    path.write_text(json.dumps({**content, "findings": [{"text": "of before comparisons"}]}))
    assert read_report(path) == changed(report, comparisons=[])
    content["networks"][1]["runs"][0]["seed"] = "one"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"networks\[1\]\.runs\[0\]\.seed: expected int, got str"):
        read_report(path)


def test_committed_reports_are_read():
    results = (ROOT / "benchmarks" / "results").glob("*.json")
    reports = [path for path in results if '"seed_spread"' in path.read_text(encoding="utf-8")]
    assert reports
    for path in reports:
        assert all(network.runs for network in read_report(path).networks)


def test_missing_pieces_are_marked_and_named(make_run, tmp_path):
    run = make_run("SM+ScFuFFN", evaluated=False, analyzed=False)
    paths = write_report([run], tmp_path / "report")
    assert {path.stem for path in paths.figures} == {
        "loss_curves",
        "layerwise_entropy",
        "bytes",
    }
    text = paths.html.read_text(encoding="utf-8")
    for part in (
        "not evaluated",
        "aero evaluate",
        "aero analyze",
        "No figure here: layer by head entropy heat maps",
        "No learned temperatures",
    ):
        assert part in text
    assert "not evaluated" in paths.summary


def test_a_diverged_run_is_shown_with_step_layer_and_head(make_run, tmp_path):
    runs = [make_run("SM", diverged_at=33), make_run("SM+ScFuFFN")]
    paths = write_report(runs, tmp_path / "report")
    entry = network(paths, "SM")
    assert entry["perplexity"] is None
    assert entry["runs"][0]["diverged"]["step"] == 33
    for path in (paths.html, paths.markdown):
        assert "NaN at step 33 (layer 5, head 0)" in path.read_text(encoding="utf-8")
    assert "NaN at step 33" in paths.summary
    # The paper's own SM diverged too, and its column says so.
    assert entry["private_inference"]["paper"]["diverged"] is True
    assert "<td>NaN</td>" in paths.html.read_text(encoding="utf-8")


def test_a_seed_that_diverged_is_counted_beside_those_that_did_not(make_run, tmp_path, no_figures):
    runs = [make_run("SM+G", 1), make_run("SM+G", 2, diverged_at=12), make_run("SM+G", 3)]
    paths = write_report(runs, tmp_path / "report")
    text = paths.markdown.read_text(encoding="utf-8")
    assert "(2 of 3; NaN at step 12 (layer 5, head 0))" in text


def test_an_interrupted_run_is_left_out_of_the_comparison(make_run, tmp_path, no_figures):
    run = make_run("SM+ScFuFFN", info={"status": "interrupted", "steps_done": 20})
    paths = write_report([run, make_run("EReg(SM(t)+ScFuFFN)")], tmp_path / "report")
    (compared,) = content_of(paths)["comparisons"]
    assert (compared["quantity"], compared["verdict"]) == ("perplexity", "not tested")
    assert any("was interrupted at step 20 of 60" in note for note in content_of(paths)["notes"])


def test_unlike_corpora_vocabularies_and_token_counts_are_noted(make_run, tmp_path, no_figures):
    runs = [
        make_run("SM+ScFuFFN"),
        make_run("SM+FN+R", info={"corpus": {"name": "other", "sha256": "cd"}}),
        make_run("SM+LN+R", vocab_size=512, info={"steps_done": 50}),
    ]
    notes = " ".join(content_of(write_report(runs, tmp_path / "report"))["notes"])
    assert "different texts" in notes
    assert "vocabularies differ" in notes
    assert "different numbers of training tokens" in notes


def test_secret_temperatures_are_priced_in_a_note(demo):
    (note,) = [note for note in content_of(demo)["notes"] if "temperatures" in note]
    # One product per query element, 12 layers x 128 x 768 of 279.3 + 3.15 bytes, and the scale's
    # truncation of 12 heads' temperatures in place of theirs.
    added = 12 * 128 * (768 * 279.3 + 12 * 3.15) / 1e9
    assert pytest.approx(0.330, abs=5e-4) == added
    assert "they add 0.330 GB" in note


def test_a_perplexity_that_is_not_finite_is_said_and_not_averaged(make_run, tmp_path, no_figures):
    runs = [make_run("SM+G", 1), make_run("SM+R", 1)]
    broken = json.loads((runs[0] / "evaluation.json").read_text())
    broken.update(loss=None, perplexity=None, bits_per_byte=None)
    (runs[0] / "evaluation.json").write_text(json.dumps(broken))
    paths = write_report(runs, tmp_path / "report")
    assert network(paths, "SM+G")["perplexity"] is None
    assert "not finite" in paths.summary


def test_the_interval_over_documents_stands_beside_the_spread_over_seeds(
    make_run, tmp_path, no_figures
):
    runs = [make_run("SM+G"), make_run("SM+R")]
    values = json.loads((runs[0] / "evaluation.json").read_text())
    interval = {"documents": 58, "perplexity_interval": [9.871, 10.649]}
    (runs[0] / "evaluation.json").write_text(json.dumps({**values, **interval}))
    paths = write_report(runs, tmp_path / "report")
    (note,) = [note for note in content_of(paths)["notes"] if note.startswith("±")]
    assert "over seeds" in note and "over 58 documents sm-g-seed1 9.87 to 10.65." in note
    assert network(paths, "SM+G")["runs"][0]["perplexity_interval"] == [9.871, 10.649]


def evaluated(run, **changes):
    file = run / "evaluation.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    return run


@pytest.mark.parametrize(
    "changes", [{"tokens": 4064}, {"tokens": 131_072 - 127}, {"windows": "stride 64"}]
)
def test_unequal_parts_of_one_text_are_refused(changes, make_run, tmp_path, no_figures):
    whole, part = make_run("SM+G", 1), evaluated(make_run("SM+R", 1), **changes)
    write_report([part], tmp_path / "alone")
    with pytest.raises(ValueError, match=r"^report: .*unequal parts of one text") as error:
        write_report([whole, part], tmp_path / "report")
    assert str(whole) in str(error.value) and str(part) in str(error.value)
    assert not (tmp_path / "report").exists()


def test_windows_of_another_length_predict_other_tokens_of_the_same_text(
    make_run, tmp_path, no_figures
):
    # 1,040 windows of 128 tokens, 260 of 512, of 133,120 tokens; the last window may be cut off.
    runs = [evaluated(make_run("SM+G"), tokens=1040 * 127)]
    for number, windows in enumerate((260, 259)):
        longer = make_run("SM+R", number, context_length=512)
        runs.append(evaluated(longer, tokens=windows * 511))
    notes = content_of(write_report(runs[:2], tmp_path / "report"))["notes"]
    (note,) = [note for note in notes if "evaluated differently" in note]
    assert "132080 tokens" in note and "132860 tokens" in note
    with pytest.raises(ValueError, match="unequal parts of one text"):
        write_report(runs, tmp_path / "report")


def test_evaluations_on_different_texts_are_noted(make_run, tmp_path, no_figures):
    corpus = {"name": "stdlib", "sha256": "ab" * 32, "train_tokens": 2_000_000}
    runs = [make_run("SM+G", 1), make_run("SM+R", 1, info={"corpus": corpus})]
    paths = write_report([runs[0], evaluated(runs[1], windows="stride 64")], tmp_path / "report")
    (note,) = [note for note in content_of(paths)["notes"] if "evaluated differently" in note]
    assert "stride 64 windows" in note
    assert "disjoint windows" in note


def test_a_report_says_which_runs_no_checksum_vouches_for(make_run, tmp_path, no_figures):
    notes = content_of(write_report([make_run("SM+G")], tmp_path / "report"))["notes"]
    (note,) = [note for note in notes if "checksums" in note]
    assert "sm-g-seed1 (all files)" in note


def test_a_run_that_went_on_after_nan_says_so(make_run, tmp_path, no_figures):
    record = {"step": 7, "layer": 1, "head": None, "what": "scores"}
    run = make_run("SM+G", info={"diverged": record, "skipped_steps": 3})
    paths = write_report([run], tmp_path / "report")
    text = paths.html.read_text(encoding="utf-8")
    assert "finished, after NaN at step 7 (layer 1) and 3 skipped steps" in text
    assert network(paths, "SM+G")["perplexity"]["mean"] == 10.0


def test_a_run_whose_scaled_gradients_overflowed_says_so(make_run, tmp_path, no_figures):
    paths = write_report([make_run("SM+LN+G", info={"skipped_steps": 2})], tmp_path / "report")
    assert "finished, after 2 skipped steps<" in paths.html.read_text(encoding="utf-8")
