"""Lambda over the steps of a run."""

import json

import pytest

from aero.train.recipes.recipe_files import load_recipe
from aero.train.runs.planning import plan_runs
from aero.train.schedules import PenaltyScheduleCallback, penalty_share
from aero.train.training import train_runs

from .conftest import metrics, tiny_settings

STEPS, LAMBDA = 5, 3e-4


@pytest.mark.parametrize("schedule", ["constant", "falling", "rising"])
def test_every_step_has_the_penalty_of_its_schedule(schedule, corpus, cache_dir, tmp_path):
    settings = [
        *tiny_settings(corpus),
        f"training.tokens={256 * STEPS}",
        "training.tokens_per_step=256",
        f"regularization.entropy_weight={LAMBDA}",
        f"regularization.penalty_schedule={schedule}",
        "logging.every_steps=1",
    ]
    recipe = load_recipe("demo", settings=settings)
    (run,) = plan_runs(recipe, ["EReg(SM(t)+ScFuFFN)"], [0], output=tmp_path)
    train_runs([run], cache_dir=cache_dir, say=lambda text: None)
    records = [record for record in metrics(run.folder) if record["kind"] == "train"]
    assert len(records) == STEPS
    for number, record in enumerate(records):
        part = number / (STEPS - 1)
        share = {"constant": 1.0, "falling": 1.0 - part, "rising": part}[schedule]
        together = record["lm_loss"] + LAMBDA * share * record["entropy_loss"]
        # Losses near 6 in float32: 5e-7 each.
        assert record["loss"] == pytest.approx(together, abs=3e-6)
        assert LAMBDA * record["entropy_loss"] > 1e-4  # more than the tolerance, so shares differ
    config = json.loads((run.folder.model / "config.json").read_text())
    assert config["entropy_weight"] == LAMBDA


def test_a_single_step_and_a_wrong_word_are_met() -> None:
    assert [penalty_share(1, 1, name) for name in ("constant", "falling", "rising")] == [1, 1, 0]
    with pytest.raises(ValueError, match="schedule must be one of constant, falling, rising, got"):
        PenaltyScheduleCallback(1e-5, "cosine")
