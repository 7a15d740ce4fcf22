"""Private bytes in the loss: what the gates do over the steps, and the network that is left."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch
from tests.python.refusals import assert_refused
from transformers import TrainerControl, TrainerState
from typer.testing import CliRunner

from aero import cli, mpc
from aero.internals.errors import TrainingError
from aero.models import AeroForCausalLM
from aero.report.runs import read_run
from aero.train.one_run import build_model
from aero.train.recipes.recipe import Recipe, SelectionSection
from aero.train.recipes.recipe_files import load_recipe
from aero.train.runs.planning import plan_runs
from aero.train.selection import byte_penalty
from aero.train.training import train_runs

from .conftest import assert_same_ending, metrics, plan_one, stopped_at, tiny_settings

LABEL, WEIGHT = "SM+LN+G", 50.0


@pytest.fixture(scope="module")
def recipe(corpus):
    """Gates of all parts, of which only so dear a price leaves next to nothing."""
    settings = [
        f"selection.byte_weight={WEIGHT}",
        "selection.parts=heads+ffns+activation+windows",
        "selection.gate_rate=20",
        "logging.every_steps=1",
        "logging.entropy_every_steps=1",
    ]
    return load_recipe("demo", settings=[*tiny_settings(corpus), *settings])


@pytest.fixture(scope="module")
def run(recipe, cache_dir, tmp_path_factory):
    planned = plan_one(recipe, LABEL, tmp_path_factory.mktemp("selection"))
    train_runs([planned], cache_dir=cache_dir, say=lambda text: None)
    return planned.folder


def gates_by_step(folder):
    """Step -> all its gates, heads first, then FFNs, the activation and windows."""
    names = ("gate_heads", "gate_ffns", "gate_activation", "gate_windows")
    lines = [line for line in metrics(folder) if line["kind"] == "entropy"]
    return {line["step"]: [line["learned"][name] for name in names] for line in lines}


def test_gates_wait_learn_within_0_and_1_and_end_at_an_end(run):
    found = gates_by_step(run)
    ones = [[1.0] * count for count in (2, 2, 1, 7)]
    assert all(gates == ones for step, gates in found.items() if step <= 4)
    between = {
        value
        for step, parts in found.items()
        if 4 < step < 10
        for gates in parts
        for value in gates
        if 0 < value < 1
    }
    assert between
    ends = [parts for step, parts in found.items() if step >= 10]
    assert len(ends) == 11 and all(parts == ends[0] for parts in ends)
    assert {value for gates in ends[0] for value in gates} <= {0.0, 1.0}


def test_the_loss_has_the_weighted_share_of_the_bytes_that_gates_keep(run):
    blocks = {"attention_block": 16}  # half of the context, for the windows
    whole = mpc.simulate(
        LABEL, model="tiny", context_length=32, vocab_size=320, **blocks
    ).comm_bytes
    info = json.loads((run.path / "run.json").read_text())
    left = mpc.simulate(read_run(run.path).spec, **blocks).comm_bytes
    assert info["spec"]["num_pruned_ffns"] == 2
    assert left < 0.8 * whole
    for line in metrics(run):
        if line["kind"] == "train":
            added = line["loss"] - line["lm_loss"]
            if line["step"] <= 5:  # the fifth step's loss comes before its change of gates
                assert added == pytest.approx(WEIGHT, rel=1e-5)
            if line["step"] > 10:
                assert added == pytest.approx(WEIGHT * left / whole, rel=1e-4)


def test_the_run_and_its_network_are_those_that_are_left(run):
    info = json.loads((run.path / "run.json").read_text())
    model = AeroForCausalLM.from_pretrained(run.model)
    assert info["label"] == model.config.spec.label
    assert info["selected_from"] == {"label": LABEL, "num_heads": 2}
    assert info["spec"] == model.config.spec.to_dict()
    assert model.config.gated_parts is None and model.transformer.gates is None
    assert (info["status"], info["slug"]) == ("finished", "sm-ln-g")
    read = read_run(run.path)
    assert read.spec == model.config.spec
    assert read.way == f"chosen from {LABEL} by private bytes"
    assert json.loads((run.path / "evaluation.json").read_text())["perplexity"] > 1


def test_price_and_conversion_take_the_network_that_is_left(run, tmp_path):
    spec = AeroForCausalLM.from_pretrained(run.model).config.spec
    shown = CliRunner().invoke(cli.app, ["cost", "show", str(run.model), "--json"])
    assert json.loads(shown.output)["comm_bytes"] == mpc.simulate(spec).comm_bytes
    arguments = [str(run.model), "--label", spec.label, "--output", str(tmp_path / "out")]
    done = CliRunner().invoke(cli.app, ["convert", *arguments])
    assert done.exit_code == 0, done.output
    assert AeroForCausalLM.from_pretrained(tmp_path / "out").config.spec == spec


def test_a_report_shows_the_run(run, tmp_path):
    done = CliRunner().invoke(cli.app, ["report", str(run.path), "--output", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert f"chosen from {LABEL}" in (tmp_path / "out" / "report.html").read_text()


def test_a_resumed_run_ends_as_an_uninterrupted_one(run, recipe, cache_dir, tmp_path):
    for step in (5, 10, 15):
        output = tmp_path / str(step)
        output.mkdir()
        stopped_at(run, step, output / run.path.name)
        planned = plan_one(recipe, LABEL, output)
        assert planned.action == "resume"
        train_runs([planned], cache_dir=cache_dir, say=lambda text: None)
        assert_same_ending(planned.folder, run)


def test_micro_batches_share_the_price_of_a_step(recipe, run, cache_dir, tmp_path):
    shared = replace(recipe, training=replace(recipe.training, micro_batch_tokens=64))
    planned = plan_one(shared, LABEL, tmp_path)
    train_runs([planned], cache_dir=cache_dir, say=lambda text: None)
    first = next(line for line in metrics(planned.folder) if line["kind"] == "train")
    assert first["loss"] - first["lm_loss"] == pytest.approx(WEIGHT, rel=1e-5)


def test_a_price_of_next_to_nothing_keeps_all_parts(recipe, cache_dir, tmp_path):
    cheap = replace(recipe, selection=replace(recipe.selection, byte_weight=1e-30, gate_rate=0.0))
    planned = plan_one(cheap, LABEL, tmp_path)
    train_runs([planned], cache_dir=cache_dir, say=lambda text: None)
    assert json.loads((planned.folder.path / "run.json").read_text())["label"] == LABEL


def test_a_run_without_selection_says_nothing_of_it(tiny_recipe, tmp_path):
    config = plan_one(tiny_recipe, LABEL, tmp_path).config()
    assert "selection" not in config


def test_what_cannot_be_chosen_is_refused_before_the_corpus(recipe, cache_dir, tmp_path):
    def refused(word, label=LABEL, **changes):
        changed = replace(recipe, selection=replace(recipe.selection, **changes))
        with pytest.raises(TrainingError, match=word):
            plan = plan_runs(changed, [label], [0], output=tmp_path)
            train_runs(plan, cache_dir=tmp_path / "none", say=lambda text: None)
        assert not (tmp_path / "none").exists()

    refused("selection.stack.*spu", stack="spu-2042")
    refused("all its FFNs", label="SM+LN+G_i1", parts="ffns")
    refused("gelu or relu", label="SM+ScFuFFN", parts="activation")
    refused("byte_weight above 0", byte_weight=0.0)
    with pytest.raises(TrainingError, match=r"selection\.start_fraction must be <"):
        Recipe(selection=SelectionSection(start_fraction=0.7))
    with pytest.raises(TrainingError, match=r"selection\.parts must be one of heads"):
        Recipe(selection=SelectionSection(parts="width"))


def test_the_largest_head_stays_where_all_gates_fall(recipe):
    from transformers import TrainerControl, TrainerState

    from aero.nn.gates import Gates
    from aero.train.selection import BytePenalty

    gates = Gates(["heads"], 3, 2, 32)
    with torch.no_grad():
        gates.heads.copy_(torch.tensor([0.1, 0.3, -2.0]))
    penalty = BytePenalty(None, gates, 1.0, 0.2, 0.5)
    state = TrainerState(global_step=9, max_steps=20)
    penalty.on_optimizer_step(None, state, TrainerControl())
    assert gates.heads.tolist() == [0.0, 1.0, 0.0]


def test_what_cannot_be_selected_is_one_line_before_a_network_is_built(recipe, tmp_path):
    window = partial(replace, recipe.selection, start_fraction=0.4, end_fraction=0.41)
    linear = plan_one(recipe, "SM+ScFuFFN", tmp_path)
    assert_refused(
        lambda: replace(recipe, selection=window()), "a step between", error=TrainingError
    )
    assert_refused(lambda: build_model(linear), "selection.parts", error=TrainingError)


def test_the_price_has_no_gradient_in_steps_in_which_gates_do_not_learn(recipe, tmp_path):
    planned = plan_one(recipe, LABEL, tmp_path)
    model = build_model(planned)
    penalty = byte_penalty(planned, model)
    state, control = TrainerState(), TrainerControl()
    state.max_steps = 10
    begin, end = recipe.selection.start_fraction, recipe.selection.end_fraction
    for step in range(10):
        state.global_step = step
        penalty.on_step_begin(None, state, control)
        assert penalty.loss().requires_grad is (10 * begin < step + 1 <= 10 * end)
