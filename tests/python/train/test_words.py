"""What people are told of a disk, a recipe and the hub: one test of each kind of error."""

import errno
import math
import types
from dataclasses import replace

import pytest
from tests.python.refusals import assert_told

from aero.internals.errors import StopRequestedError, TrainingError, disk_errors
from aero.train.data import hub
from aero.train.recipes.recipe import (
    EvaluationSection,
    OptimizerSection,
    Recipe,
    RegularizationSection,
    ScheduleSection,
    TrainingSection,
)
from aero.train.recipes.recipe_files import _as_number, load_recipe
from aero.train.recipes.recipe_sections import Bounds

NO_ROOM, REFUSED = "no space left", "cannot write"


class OddError(RuntimeError):
    """No error of the system's."""


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (OSError(errno.ENOSPC, "full"), TrainingError, NO_ROOM),
        (OSError(errno.EDQUOT, "quota"), TrainingError, NO_ROOM),
        (OSError(errno.EFBIG, "big"), TrainingError, NO_ROOM),
        (OddError("Io: No space left on device"), TrainingError, NO_ROOM),
        (OddError("Io: File too large"), TrainingError, NO_ROOM),
        (OddError("Io: os error 28"), TrainingError, NO_ROOM),
        (OddError("enforce fail at inline_container.cc"), TrainingError, NO_ROOM),
        (OSError(errno.EACCES, "closed"), TrainingError, f"{REFUSED} a note to /here: closed"),
        (OSError("only words"), TrainingError, f"{REFUSED} a note to /here: only words"),
        (OddError("shapes"), OddError, "shapes"),
        (TrainingError("No space left"), TrainingError, "No space left"),
        (StopRequestedError("os error 28"), StopRequestedError, "os error 28"),
    ],
)  # fmt: skip
def test_a_disk_that_refuses_is_said_in_one_sentence(error, kind, text):
    with pytest.raises(kind) as found, disk_errors("a note", "/here", "go on"):
        raise error
    assert type(found.value) is kind
    if found.value is error:
        assert str(error) == text
    else:
        assert_told(found, "train: ", text, "a note", "/here", "go on")


@pytest.mark.parametrize(
    ("bounds", "value", "complaint"),
    [
        (Bounds(0, 1), 0, None),
        (Bounds(0, 1), 1, None),
        (Bounds(0, 1), -0.5, "must be >= 0, got -0.5"),
        (Bounds(0, 1), 1.5, "must be <= 1, got 1.5"),
        (Bounds(0, 1, above=True), 0, "must be > 0, got 0"),
        (Bounds(0, 1, above=True), 1, None),
        (Bounds(0, 1, below=True), 1, "must be < 1, got 1"),
        (Bounds(0, 1, below=True), 0, None),
        (Bounds(0, 1), math.nan, "must be >= 0, got nan"),
        (Bounds(0, 10**15), math.inf, "must be <= 1e+15, got inf"),
        (Bounds(0, 2**32 - 1), 2**32, "must be <= 4,294,967,295, got 4294967296"),
    ],
)
def test_a_number_outside_of_its_range_is_told_the_end(bounds, value, complaint):
    assert bounds.complaint(value) == complaint
    if complaint is None:
        bounds.check("x", value)
    else:
        with pytest.raises(TrainingError) as error:
            bounds.check("x", value)
        assert_told(error, "x ", complaint)


# --- recipes ----------------------------------------------------------------------------------


def test_nothing_is_suggested_where_nothing_is_near():
    for settings in (["training.zzz=1"], ["zzz.x=1"]):
        with pytest.raises(TrainingError) as error:
            load_recipe("demo", settings=settings)
        assert "did you mean" not in str(error.value)


def test_a_section_is_a_mapping(tmp_path):
    (tmp_path / "a.yaml").write_text("training: [1]")
    with pytest.raises(TrainingError) as error:
        load_recipe("demo", config=tmp_path / "a.yaml")
    assert_told(error, "training", "key: value", "[1]")
    (tmp_path / "a.yaml").write_text("")
    assert load_recipe("demo", config=tmp_path / "a.yaml") == load_recipe("demo")
    (tmp_path / "a.yaml").write_text("name: 7")
    assert load_recipe("demo", config=tmp_path / "a.yaml").name == "7"


def test_the_ends_of_what_a_recipe_allows():
    recipe = Recipe(
        optimizer=OptimizerSection(learning_rate=1),
        evaluation=EvaluationSection(tokens=128, final_tokens=128),
        regularization=RegularizationSection(tolerance_margin=0),
        training=TrainingSection(tokens=4096 * 7 + 4095),
        schedule=ScheduleSection(warmup_fraction=0.29),
    )
    assert (recipe.steps, recipe.warmup_steps, recipe.windows_per_step) == (7, 3, 32)
    assert replace(recipe, schedule=ScheduleSection(warmup_steps=0)).warmup_steps == 0
    assert recipe.regularization.margin == 0 and recipe.for_label("SM") == recipe


@pytest.mark.parametrize(
    ("value", "hint", "number"),
    [
        ("1e-3", float, 1e-3),
        ("1e6", int, 10**6),
        ("1e6", int | None, 10**6),
        ("1.5", int, 1.5),
        ("fast", float, "fast"),
        ("7", str, "7"),
        ("0.5", float | str, 0.5),
        ("listing", float | str, "listing"),
        (1, float, 1.0),
        (1, float | None, 1.0),
        (1, float | str, 1.0),
        (1, int, 1),
        (2.0, int, 2),
        (2.5, int, 2.5),
        (2.0, float, 2.0),
        (True, float, True),
        (None, int | None, None),
    ],
)
def test_a_number_is_of_the_kind_that_a_setting_wants(value, hint, number):
    found = _as_number(value, hint)
    assert found == number and type(found) is type(number)


# --- the hub ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionError("no route\nlong"), "no route"),
        (ValueError("  \n "), "ValueError"),
        (KeyError(), "KeyError"),
        (None, None),
    ],
)
def test_a_hub_that_has_no_answer_is_told_with_its_reason(error, reason, monkeypatch):
    def refuse(name):
        assert name == "a/b"
        raise error

    datasets = None if error is None else types.SimpleNamespace(load_dataset_builder=refuse)
    monkeypatch.setitem(__import__("sys").modules, "datasets", datasets)
    with pytest.raises(TrainingError) as found:
        hub.require_dataset("a/b")
    assert_told(found, "'a/b'", reason or "pip install datasets")


def test_the_text_of_a_hub_dataset_is_its_first_text_field(monkeypatch, tmp_path):
    class Rows(list):
        column_names = ("content", "id", "text")

    rows = Rows([{"text": "ä", "content": "no"}, {"text": "b", "content": "no"}])
    datasets = types.SimpleNamespace(load_dataset=lambda name, split: rows)
    monkeypatch.setitem(__import__("sys").modules, "datasets", datasets)
    path = hub.download_dataset("a/b/c", tmp_path / "new" / "hub")
    assert path == tmp_path / "new" / "hub" / "a--b--c.jsonl"
    assert path.read_text() == '{"text": "\\u00e4"}\n{"text": "b"}\n'
    rows.column_names = ("id", "words")
    with pytest.raises(TrainingError) as error:
        hub.download_dataset("a/b", tmp_path)
    assert_told(error, "'a/b'", "text or content", "id, words")
