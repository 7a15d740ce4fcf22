"""The records of a run's files: what is written reads back, what differs is named in one line."""

import json
import math

import pytest

from aero.internals.records import as_dict, as_record, changed, read_record, record_bytes
from aero.internals.run_files import (
    Analysis,
    Evaluation,
    RunInfo,
    TrainLine,
    read_metrics,
)
from aero.reading import UnreadableFileError

from .run_records import run_info

WHOLE = as_dict(run_info())


@pytest.mark.parametrize(
    ("entries", "place", "expected", "got"),
    [
        ({"label": None}, "label", "str", "null"),
        ({"seed": "7"}, "seed", "int", "str"),
        ({"seed": True}, "seed", "int", "bool"),
        ({"seed": 1.0}, "seed", "int", "float"),
        ({"seed": 1 << 63}, "seed", "int <= 9223372036854775807", ""),
        ({"corpus": {"train_tokens": -1}}, "corpus.train_tokens", "int >= 0", ""),
        ({"corpus": {"remarks": ["a", 2]}}, "corpus.remarks[1]", "str", "int"),
        ({"diverged": {}}, "diverged", "an entry step", "none"),
        ({"from": {"path": "x"}}, "from", "an entry annealing", "none"),
        ({"versions": []}, "versions", "object", "array"),
    ],
)
def test_an_entry_that_differs_is_named_with_what_was_expected(entries, place, expected, got):
    with pytest.raises(UnreadableFileError) as error:
        as_record({**WHOLE, **entries}, RunInfo, "run.json")
    line = str(error.value)
    assert line.startswith(f"run.json: {place}: expected {expected}")
    assert f"got {got}" in line or not got
    assert "\n" not in line and "`" not in line


def test_a_line_of_an_unknown_kind_is_named_by_its_number(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(record_bytes(TrainLine(step=1), indent=0) + b'{"kind": "tea", "step": 2}\n')
    with pytest.raises(
        UnreadableFileError, match=r"metrics\.jsonl, line 2: kind: expected .*'tea'"
    ):
        read_metrics(path)


def test_numbers_that_are_not_finite_are_null_and_read_back_as_none(tmp_path):
    path = tmp_path / "evaluation.json"
    path.write_bytes(record_bytes(Evaluation(loss=math.nan, perplexity=math.inf, tokens=3)))
    assert json.loads(path.read_text())["perplexity"] is None
    found = read_record(path, Evaluation)
    assert (found.loss, found.perplexity, found.tokens) == (None, None, 3)


def test_entries_of_later_versions_are_left_out_and_those_of_earlier_ones_have_defaults():
    later = {**WHOLE, "weather": "fair"}
    del later["first_score_deviations"], later["skipped_steps"], later["from"]
    assert as_record(later, RunInfo, "run.json") == run_info()
    heads = {name: [[1.0]] for name in Analysis.__struct_fields__[:3]}
    quarters = {"observed_max": [0.0] * 4, "log_context": [0.0] * 4}
    found = as_record({**heads, "quarters": quarters}, Analysis, "analysis.json")
    assert found.thresholds is None and found.nan_heads == []


def test_a_record_with_another_entry_is_another_record():
    before = run_info("running")
    after = changed(before, status="finished")
    assert (before.status, after.status) == ("running", "finished")
    with pytest.raises(TypeError, match="colour"):
        changed(before, colour="red")
