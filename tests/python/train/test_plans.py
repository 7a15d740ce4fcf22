"""Plans, forecasts and starts of runs, word for word."""

import math
import types
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.python.refusals import assert_told

from aero.internals.errors import TrainingError
from aero.train import forecast as forecast_module
from aero.train import starting
from aero.train.data.windows import validation_windows
from aero.train.one_run import build_model
from aero.train.runs.origins import Origin
from aero.train.runs.perplexity import HeldOutLoss
from aero.train.runs.planning import plan_runs
from aero.train.runs.run_folder import RunFolder
from aero.train.schedules import AnnealingCallback, annealing_at, penalty_share

from .conftest import begun, plan_one


def start(run, status="finished"):
    run.folder.write_config(run.config())
    begun(run.folder, status)


@pytest.mark.parametrize("number", [1, 3, 4, 5])
def test_the_first_three_settings_that_differ_are_named(number, tiny_recipe, tmp_path):
    start(plan_one(tiny_recipe, "SM+G", tmp_path))
    values = {"beta1": 0.5, "beta2": 0.25, "clip_norm": None, "epsilon": 0.125, "weight_decay": 0.0}
    changed = dict(list(values.items())[:number])
    recipe = replace(tiny_recipe, optimizer=replace(tiny_recipe.optimizer, **changed))
    differing = [
        f"optimizer.{name} is {getattr(tiny_recipe.optimizer, name)!r} there and {value!r} here"
        for name, value in sorted(changed.items())
    ]
    more = f" and {number - 3} more" if number > 3 else ""
    with pytest.raises(TrainingError) as error:
        plan_one(recipe, "SM+G", tmp_path)
    assert_told(error, tmp_path / "sm-g-seed0", ", ".join(differing[:3]) + more, "--output")


def test_a_plan_holds_every_fact_of_its_runs(tiny_recipe, tmp_path):
    plan = plan_runs(tiny_recipe, ["SM"], [0, 2**32 - 1], output=str(tmp_path))
    assert [run.name for run in plan] == ["SM seed 0", "SM seed 4294967295"]
    (run, _) = plan
    assert run.recipe == tiny_recipe and run.spec.label == run.label == "SM"
    assert (run.action, run.checkpoint, run.source, run.teacher) == ("train", None, None, None)
    assert (run.resume, run.steps_done, run.seed) == ("auto", 0, 0)
    config = run.config()
    assert list(config)[:3] == ["label", "seed", "name"]
    assert not {"annealing", "distillation", "from", "distill_from", "per_label"} & set(config)


def test_a_forecast_is_this_text(tiny_recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(
        forecast_module,
        "rehearse_data",
        lambda *a, **k: forecast_module.RehearsedData("a text", None),
    )
    monkeypatch.setattr(forecast_module, "rehearse_run", lambda run, tokenizer: run.label)
    monkeypatch.setattr(forecast_module, "_first_scores", lambda run, model: "starts so")
    seconds = {"SM": 0.25, "SM+R": 1.0}
    monkeypatch.setattr(forecast_module, "_timed", lambda run, model: seconds[model])
    first, second = plan_runs(tiny_recipe, ["SM", "SM+R"], [0], output=tmp_path)
    start(second, "interrupted")
    checkpoint = second.folder.checkpoints / "step-15"
    checkpoint.mkdir(parents=True)
    monkeypatch.setattr(
        forecast_module, "from_whole_checkpoint", lambda run, say: (say("!"), run)[1]
    )
    teacher = Origin(Path("/t"), Path("/t"), Path("/t"))
    second = replace(second, action="resume", checkpoint=checkpoint, teacher=teacher)
    told = forecast_module.forecast([first, second], cache_dir=tmp_path)
    blocks = [part for part in told.split("\n\n") if "label:" not in part]
    assert blocks == [
        "data: a text",
        "!",
        "SM seed 0: starts so",
        f"SM seed 0 -> {first.folder.path}: train\n"
        f"  parameters  {first.spec.parameter_count(training=True):,}\n"
        "  steps       20 of 20\n  tokens      5,120\n"
        "  time        0:21:20 (estimated without validation)",
        "!",
        "SM+R seed 0: starts so",
        f"SM+R seed 0 -> {second.folder.path}: resume\n"
        f"  parameters  {second.spec.parameter_count(training=True):,}\n"
        "  steps       5 of 20\n  tokens      1,280\n"
        "  time        0:21:20 (estimated without validation and the teacher)",
        "all together 0:42:40",
    ]


def test_a_step_is_timed_until_that_takes_a_while(tiny_recipe, tmp_path, monkeypatch):
    run, sizes, now = plan_one(tiny_recipe, "SM", tmp_path), [], [0.0]

    class Network:
        device = torch.device("cpu")
        loss = types.SimpleNamespace(backward=lambda: None)

        def train(self):
            sizes.append("train")

        def __call__(self, input_ids, labels):
            assert labels is input_ids and input_ids.max() < 320
            sizes.append(tuple(input_ids.shape))
            now[0] += 0.1 * len(input_ids) if len(sizes) % 2 else 5.0  # the first warms up
            return self

    monkeypatch.setattr(forecast_module.time, "perf_counter", lambda: now[0])
    # 256 tokens of a step are eight windows; four of them take 0.4 s, more than enough.
    assert forecast_module._timed(run, Network()) == pytest.approx(0.4 / (4 * 32))
    assert sizes == ["train", *[(n, 32) for n in (1, 1, 2, 2, 4, 4)]]
    monkeypatch.setattr(forecast_module, "_ENOUGH_SECONDS", 100.0)
    small = replace(run, recipe=replace(run.recipe, training=replace(
        run.recipe.training, micro_batch_tokens=96
    )))  # fmt: skip
    sizes.clear()
    forecast_module._timed(small, Network())
    # Micro-batches divide a step: two windows at most.
    assert sizes == ["train", *[(n, 32) for n in (1, 1, 2, 2)]]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_step_is_timed_in_the_precision_of_the_recipe(tiny_recipe, tmp_path, precision):
    run, met = plan_one(tiny_recipe, "SM", tmp_path), set()
    run = replace(run, recipe=replace(run.recipe, training=replace(
        run.recipe.training, precision=precision
    )))  # fmt: skip
    network = build_model(run)
    network.lm_head.register_forward_hook(lambda module, inputs, logits: met.add(logits.dtype))
    forecast_module._timed(run, network)
    assert met == {getattr(torch, precision)}


def test_a_network_larger_than_the_memory_is_refused(tiny_recipe, tmp_path, monkeypatch):
    run = plan_one(tiny_recipe, "SM", tmp_path)
    count = run.spec.parameter_count(training=True)
    there = {"SC_PAGE_SIZE": 16, "SC_PHYS_PAGES": count}
    monkeypatch.setattr(forecast_module.os, "sysconf", there.__getitem__)
    forecast_module._require_memory(run, torch.device("cpu"))  # as much as it takes
    there["SC_PHYS_PAGES"] -= 1
    with pytest.raises(TrainingError) as error:
        forecast_module._require_memory(run, torch.device("cpu"))
    assert_told(error, "SM seed 0", f"{count:,} parameters", f"{16 * count / 1e9:,.1f} GB")


# --- networks that a run starts from ----------------------------------------------------------


def test_other_sizes_are_told_with_the_setting_that_mends_them(tiny_recipe, tmp_path):
    wanted = plan_one(tiny_recipe, "SM", tmp_path).spec
    origin = Origin(Path("/old"), Path("/old"), Path("/old"))
    starting._require_sizes(wanted, wanted, origin)
    for name, there, setting in (
        ("vocab_size", 999, "data.vocabulary=999"),
        ("num_layers", 7, "model.num_layers=7"),
        ("hidden_width", 77, "model.hidden_width=77"),
        ("context_length", 16, "model.context_length=16"),
        ("tied_embeddings", not wanted.tied_embeddings, None),
    ):
        setting = setting or f"model.{name}={str(there).lower()}"
        with pytest.raises(TrainingError) as error:
            starting._require_sizes(wanted.replace(**{name: there}), wanted, origin)
        assert_told(error, f"--from /old has {name} {there}", getattr(wanted, name), setting)


def test_a_teacher_of_another_vocabulary_or_a_shorter_context_is_refused(
    tiny_recipe, tmp_path, monkeypatch
):
    config = types.SimpleNamespace(vocab_size=320, max_position_embeddings=32)
    network = torch.nn.Linear(1, 1)
    network.config = config
    asked = []
    monkeypatch.setattr(starting, "load_network", lambda *given: asked.append(given) or network)
    run, device = plan_one(tiny_recipe, "SM", tmp_path), torch.device("cpu")
    assert starting.teacher_of(run, device) is None
    origin = Origin(Path("/old"), Path("/old"), Path("/old"))
    run = replace(run, teacher=origin)
    taught = starting.teacher_of(run, device)
    assert (taught._teacher, taught._temperature, taught._weight) == (network, 2.0, 0.5)
    assert asked == [(origin, "--distill-from")]
    config.max_position_embeddings = 31
    with pytest.raises(TrainingError) as error:
        starting.teacher_of(run, device)
    assert_told(error, "--distill-from /old", "31", "model.context_length = 32")
    config.vocab_size = 50_257
    with pytest.raises(TrainingError) as error:
        starting.teacher_of(run, device)
    assert_told(error, "--distill-from /old", "50,257", "320")


# --- schedules, windows, losses ---------------------------------------------------------------


def test_schedules_follow_their_formulas_from_the_first_step_to_the_last():
    def of(schedule, **options):
        return [annealing_at(step, 10, schedule=schedule, **options) for step in range(1, 11)]

    assert of("linear") == pytest.approx([1 / 3, 2 / 3, *[1] * 8])  # from 0 to 0.3 by default
    half = [(1 - math.cos(math.pi * part / 5)) / 2 for part in range(1, 5)]
    found = of("cosine", start_fraction=0.2, end_fraction=0.7)
    assert found == pytest.approx([0, 0, *half, 1, 1, 1, 1])
    assert of("linear", start_fraction=0.9, end_fraction=1.0) == [0] * 9 + [1]
    assert [penalty_share(n, 3, "rising") for n in (1, 2, 3)] == [0, 0.5, 1]
    assert [penalty_share(n, 3, "falling") for n in (1, 2, 3)] == [1, 0.5, 0]
    plain = {"schedule": "linear", "start_fraction": 0.0, "end_fraction": 0.3}
    assert AnnealingCallback()._progress.keywords == plain
    AnnealingCallback(start_fraction=0.0, end_fraction=1.0)
    for start, end in ((-0.1, 0.5), (0.5, 0.5), (0.6, 0.5), (0.5, 1.1)):
        with pytest.raises(ValueError, match=f"got {start} and {end}$"):
            AnnealingCallback(start_fraction=start, end_fraction=end)


def test_windows_of_a_part_of_a_text_are_spread_over_it_or_lie_side_by_side():
    def starts(count, **options):
        return validation_windows(range(count), 10, **{"max_tokens": None, **options}).tolist()

    assert starts(45) == [0, 10, 20, 30] and starts(40) == [0, 10, 20, 30] and starts(10) == [0]
    assert starts(45, stride=10) == starts(45)
    assert starts(100, max_tokens=39) == [0, 30, 60]
    assert starts(100, max_tokens=40) == [0, 20, 50, 70]
    assert starts(45, max_tokens=40) == [0, 10, 20, 30]
    assert starts(40, stride=9) == [0, 9, 18, 27] and starts(37, stride=9) == [0, 9, 18, 27]
    assert starts(40, stride=5, max_tokens=20) == [0, 5, 10]
    assert starts(40, stride=1, max_tokens=12) == [0, 1, 2]


def test_a_perplexity_is_infinite_beyond_the_largest_float():
    for loss in (-3.0, 0.0, 709.7):
        assert HeldOutLoss(2 * loss, 2, 1).perplexity == math.exp(loss)
    for loss in (709.8, 710.5, 1e9, math.inf):
        assert HeldOutLoss(loss, 1, 1).perplexity == math.inf
    assert math.isnan(HeldOutLoss(math.nan, 1, 1).perplexity)
    assert HeldOutLoss(1.0, 1, 1).perplexity_interval is None


def test_results_of_an_earlier_end_are_removed_and_nothing_else(tmp_path):
    folder = RunFolder(tmp_path)
    results = ["evaluation.json", "analysis.json", "analysis.npz", "sample.json"]
    results += ["fixed_point.json", "model/config.json", "model.partial/config.json"]
    kept = ["config.yaml", "checkpoints/step-5/x", "checkpoints/step-10/x", "tensorboard/x"]
    late = ["checkpoints/step-11/x", "checkpoints/checkpoint-5/x", "checkpoints/other/x"]
    for name in results + kept + late:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")

    def there():
        return {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}

    folder.remove_results()
    assert there() == {*kept, *late}
    folder.remove_results()
    folder.remove_checkpoints_after(10)
    assert there() == set(kept)
    assert RunFolder(tmp_path / "nowhere").complete_checkpoints() == []
    RunFolder(tmp_path / "nowhere").remove_checkpoints_after(1)
