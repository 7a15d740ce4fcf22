import dataclasses
import math

import pytest
import yaml
from tests.python.refusals import assert_refused

from aero.internals.errors import TrainingError
from aero.train.recipes.recipe import (
    AnnealingSection,
    EvaluationSection,
    ModelSection,
    OptimizerSection,
    Recipe,
    RegularizationSection,
    ScheduleSection,
    TrainingSection,
)
from aero.train.recipes.recipe_files import load_recipe, recipe_names, recipe_to_dict
from aero.train.starting import batch_split
from benchmarks.paper.cells import plan_target

NOT_FINITE = ["nan", "inf", "-inf"]


def test_codeparrot_is_the_published_setting():
    recipe = load_recipe("codeparrot")
    assert recipe.optimizer == OptimizerSection(1e-3, 0.9, 0.999, 1e-8, 0.1, 1.0)
    assert (recipe.schedule.shape, recipe.warmup_steps) == ("linear", -(-recipe.steps // 20))
    assert recipe.training.tokens_per_step == 128 * 128 == 16_384
    assert recipe.model.context_length == 128
    assert recipe.regularization.temperature_init == 1e-2
    assert recipe.regularization.entropy_weight == 1e-5
    assert recipe.regularization.margin == 0.10


def test_languini_is_the_published_setting():
    recipe = load_recipe("languini")
    optimizer = recipe.optimizer
    assert (optimizer.learning_rate, optimizer.beta1, optimizer.beta2) == (6e-4, 0.9, 0.95)
    assert (optimizer.weight_decay, optimizer.clip_norm) == (0.0, None)
    assert recipe.schedule.shape == "cosine"
    assert (recipe.warmup_steps, recipe.schedule.final_learning_rate) == (200, 6e-6)
    assert recipe.training.tokens_per_step == 128 * 512 == 65_536
    assert (recipe.model.context_length, recipe.data.vocabulary) == (512, 16_384)
    assert recipe.model.tied_embeddings is False
    assert recipe.model.embedding_scale == "sqrt_width"
    assert recipe.regularization.temperature_init == 1e-1
    assert recipe.regularization.entropy_weight == 5e-5


def test_the_demo_trains_on_the_standard_library():
    recipe = load_recipe("demo")
    assert recipe.data.source == "stdlib"
    assert (recipe.model.context_length, recipe.data.vocabulary) == (128, 1024)


def test_embeddings_start_at_variance_one_where_no_publication_is_reproduced():
    assert load_recipe("demo").model.embedding_scale == "unit"
    assert load_recipe("codeparrot").model.embedding_scale == "none"
    for scale in ("mini", "small"):
        recipe = plan_target("table8", scale).cells[0].recipe
        assert recipe.model.embedding_scale == "none"
        assert recipe.optimizer == load_recipe("codeparrot").optimizer
        assert recipe.regularization.temperature_init == 1e-2
    front = plan_target("front", "mini").cells[0].recipe
    assert front.model.embedding_scale == "unit"


def test_the_demo_balances_penalty_and_loss_as_the_paper_does():
    demo, paper = load_recipe("demo"), load_recipe("codeparrot")
    weights = [r.regularization.entropy_weight * r.training.tokens_per_step for r in (demo, paper)]
    assert weights[0] == pytest.approx(weights[1])


@pytest.mark.parametrize("name", recipe_names())
def test_a_resolved_recipe_read_back_is_the_same(name, tmp_path):
    recipe = load_recipe(name)
    path = tmp_path / "resolved.yaml"
    path.write_text(yaml.safe_dump(recipe_to_dict(recipe)))
    assert load_recipe("demo" if name != "demo" else "languini", config=path) == recipe


def test_a_margin_may_be_given_by_the_name_of_its_publication():
    assert RegularizationSection(tolerance_margin="listing").margin == 0.10
    assert RegularizationSection(tolerance_margin="authors_code").margin == 0.20


def given(setting):
    return lambda folder: load_recipe("demo", settings=[setting])


def written(content):
    def load(folder):
        (folder / "bad.yaml").write_text(content)
        return load_recipe("demo", config=folder / "bad.yaml")

    return load


NUMBER = "expected finite numbers"


@pytest.mark.parametrize(
    ("load", "named"),
    [
        (given("training.tokns=5"), ("'training.tokns'", "did you mean 'training.tokens'")),
        (given("optimiser.learning_rate=1"), ("'optimiser'", "did you mean 'optimizer'")),
        (given("training.tokens"), ("--set", "section.key=value", "got 'training.tokens'")),
        (given("tokens=3"), ("--set", "section.key=value", "got 'tokens=3'")),
        (given("training.tokens=["), ("training.tokens", "expected valid YAML")),
        (given("optimizer.learning_rate=fast"), ("learning_rate", "a number", "got 'fast'")),
        (given("optimizer.learning_rate=.nan"), (NUMBER, "got .nan")),
        (given("optimizer.learning_rate=-1"), ("optimizer.learning_rate", "> 0", "got -1")),
        (given("training.tokens=1.5"), ("training.tokens", "a whole number", "got 1.5")),
        (given("training.tokens=true"), ("training.tokens", "a whole number", "got True")),
        (given("data.validation_fraction=0.9"), ("data.validation_fraction", "<= 0.5", "got 0.9")),
        (given("training.nan_policy=hope"), ("nan_policy", "stop, skip, continue", "got 'hope'")),
        (given("training.tokens_per_step=100"), ("multiple of model.context_length = 128", "100")),
        (given("per_label.x.y=1"), ("per_label",)),
        (given("training.tokens=1e30"), ("training.tokens", "<= 1e+15", "got 1000000")),
        (given("optimizer.learning_rate=.inf"), (NUMBER, "got .inf")),
        (given("optimizer.beta1=1.0"), ("optimizer.beta1", "< 1", "got 1.0")),
        (given("regularization.threshold_init=.inf"), (NUMBER, "got .inf")),
        (given("regularization.tolerance_margin=.nan"), (NUMBER, "got .nan")),
        (given("evaluation.tokens=127"), ("evaluation.tokens", "one window", "127")),
        (written("- 1"), ("bad.yaml", "a mapping or null", "got a list")),
        (written("training: 3"), ("training", "a section")),
        (written("training: {tokens: ["), ("expected valid YAML", "line 1")),
        (written("trainig: {}"), ("did you mean 'training'", "'trainig'")),
        (written("per_label: {SM: 3}"), ("per_label.SM",)),
        (written("per_label: {SM: {learning_rate: 1}}"), ("'per_label.SM.learning_rate'",)),
        (given("training.learning_rate=1"), ("did you mean 'optimizer.learning_rate'",)),
        (given("per_label.SM={max_entrop: x}"), ("'per_label.SM.max_entrop'", "max_entropy'")),
        (lambda folder: Recipe(model=ModelSection(preset=3)), ("model.preset", "a word", "3")),
        (
            lambda folder: Recipe(model=ModelSection(num_layers=1.5)),
            ("model.num_layers", "null", "1.5"),
        ),
        (
            lambda folder: Recipe(regularization=RegularizationSection(tolerance_margin="paper")),
            ("regularization.tolerance_margin", "a number", "authors_code", "'paper'"),
        ),
        (
            lambda folder: Recipe(schedule=ScheduleSection(shape="flat")),
            ("schedule.shape", "linear, cosine", "'flat'"),
        ),
        (
            lambda folder: Recipe(annealing=AnnealingSection(start_fraction=0.5, end_fraction=0.5)),
            ("annealing.start_fraction", "< annealing.end_fraction = 0.5", "0.5"),
        ),
        (
            lambda folder: Recipe(evaluation=EvaluationSection(final_tokens=127)),
            ("evaluation.final_tokens", "model.context_length = 128", "127"),
        ),
        (
            lambda folder: batch_split(Recipe(), 3),
            ("training.tokens_per_step", "multiple of 3 processes x 128", "4096"),
        ),
        (lambda folder: load_recipe("dmeo"), ("did you mean 'demo'", "got 'dmeo'")),
        (lambda folder: load_recipe("demo", config=folder / "no"), ("no: cannot", "No such file")),
    ],
)  # fmt: skip
def test_what_no_recipe_can_be_is_named(load, named, tmp_path):
    assert_refused(lambda: load(tmp_path), "train: ", *named, error=TrainingError)


SETTINGS = [
    pytest.param(section.name, entry, id=f"{section.name}.{entry.name}")
    for section in dataclasses.fields(Recipe)
    if dataclasses.is_dataclass(section.default_factory)
    for entry in dataclasses.fields(section.default_factory)
]


@pytest.mark.parametrize(("section", "entry"), SETTINGS)
def test_every_number_has_two_bounds_and_is_refused_beyond_them(section, entry):
    if not {"int", "float"} & set(entry.type.split(" | ")):
        assert entry.type.split(" | ")[0] in ("str", "bool"), entry.type
        return
    bounds = entry.metadata["bounds"]
    assert math.isfinite(bounds.least) and math.isfinite(bounds.most)
    below, above = bounds.least - 1, bounds.most + 1
    values = [below, above] if "int" in entry.type else [below, above, *map(float, NOT_FINITE)]
    values += [float(bounds.least)] if bounds.above else []
    values += [float(bounds.most)] if bounds.below else []
    for value in values:
        with pytest.raises(TrainingError, match=f"{section}.{entry.name} must be [<>]"):
            load_recipe("demo", settings=[f"{section}.{entry.name}={value!r}"])
        changed = dataclasses.replace(getattr(Recipe(), section), **{entry.name: value})
        with pytest.raises(TrainingError, match=f"{section}.{entry.name} must be [<>]"):
            Recipe(**{section: changed})


def test_numbers_may_be_written_without_a_decimal_point():
    recipe = load_recipe("demo", settings=["optimizer.learning_rate=1e-3", "training.tokens=1e6"])
    assert recipe.optimizer.learning_rate == 1e-3
    assert recipe.training.tokens == 1_000_000
    # A whole number for a fraction is a fraction: products of it must not become integers.
    value = load_recipe("demo", settings=["regularization.temperature_init=1"]).regularization
    assert isinstance(value.temperature_init, float)


def test_settings_beat_the_config_file_which_beats_the_recipe(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("training: {tokens: 5, nan_policy: skip}\n")
    recipe = load_recipe("demo", config=path, settings=["training.tokens=7"])
    assert (recipe.training.tokens, recipe.training.nan_policy) == (7, "skip")
    assert recipe.training.tokens_per_step == 2048


def test_settings_of_one_label_hold_for_it_alone(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("per_label:\n  EReg(SM(t)+ScFuFFN): {entropy_weight: 1e-3}\n")
    recipe = load_recipe("demo", config=path)
    special = recipe.for_label("ereg(sm(t)+scfuffn)")
    assert special.regularization.entropy_weight == 1e-3
    assert special.per_label == {}
    other = recipe.for_label("SM(t)")
    assert other.regularization == recipe.regularization


def test_a_setting_on_the_command_line_beats_those_of_a_label(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "per_label:\n  SM: {entropy_weight: 1e-3, threshold_init: 0.3}\n"
        "regularization: {entropy_weight: 1e-4}\n"
    )
    recipe = load_recipe("demo", config=path)
    assert recipe.for_label("SM").regularization.entropy_weight == 1e-3
    recipe = load_recipe("demo", config=path, settings=["regularization.entropy_weight=1e-2"])
    section = recipe.for_label("SM").regularization
    assert (section.entropy_weight, section.threshold_init) == (1e-2, 0.3)


def test_a_budget_smaller_than_a_step_is_one_step():
    recipe = Recipe(training=TrainingSection(tokens=10, tokens_per_step=256))
    assert recipe.steps == 1
