"""The runs of a command, and the next step for each: train, resume or reuse.

Torch is not imported, so a typing mistake, a wrong label or a folder with another run is reported
before anything slow begins.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aero.architecture import ArchitectureSpec
from aero.internals.errors import TrainingError
from aero.train.recipes.recipe import Recipe
from aero.train.recipes.recipe_files import recipe_to_dict
from aero.train.recipes.recipe_sections import Bounds, RegularizationSection
from aero.train.runs.origins import Origin, find_origin
from aero.train.runs.run_folder import RunFolder, checkpoint_step, run_slug

# The seeds of NumPy's generators.
_SEEDS = Bounds(0, 2**32 - 1)


@dataclass(frozen=True)
class PlannedRun:
    """One run that a command means.

    Attributes:
        recipe: with the label's own settings put in.
        spec: the network.
        seed: of weights, data order and everything random.
        folder: where it is or will be.
        action: `train` from the start, `resume` from the checkpoint, or `reuse`: it has ended.
        checkpoint: the one to resume from.
        source: the trained network that it starts from; None starts with random weights.
        teacher: the network whose logits it learns from, or None.
        resume: as `plan_runs` was asked.
    """

    recipe: Recipe
    spec: ArchitectureSpec
    seed: int
    folder: RunFolder
    action: Literal["train", "resume", "reuse"] = "train"
    checkpoint: Path | None = None
    source: Origin | None = None
    teacher: Origin | None = None
    resume: str = "auto"

    @property
    def label(self) -> str:
        """The canonical label."""
        return self.spec.label

    @property
    def name(self) -> str:
        """Label and seed, for people."""
        return f"{self.label} seed {self.seed}"

    @property
    def steps_done(self) -> int:
        """Those of the checkpoint; 0 without one."""
        return 0 if self.checkpoint is None else checkpoint_step(self.checkpoint)

    def config(self) -> dict[str, object]:
        """Returns the resolved recipe as `config.yaml` holds it, without unused settings."""
        config = {"label": self.label, "seed": self.seed, **recipe_to_dict(self.recipe)}
        for key, section, origin in (
            ("from", "annealing", self.source),
            ("distill_from", "distillation", self.teacher),
        ):
            if origin is None:
                del config[section]
            else:
                config[key] = str(origin.path)
        if not self.recipe.selection.byte_weight:
            del config["selection"]
        return config


# What else a setting has an effect in, where no error of the recipe or of its way says so: whether
# a run is one of them, and their words.
_PENALTY = (lambda run: run.spec.entropy_regularized, "labels with EReg(...)")
_TEMPERATURE = (lambda run: run.spec.temperature != "none", "labels with SM(t)")
_RANDOM_START = (lambda run: run.source is None, "runs without --from")
_USED_IN: dict[str, tuple[tuple[Callable[[PlannedRun], bool], str], ...]] = {
    **{
        f"regularization.{entry.name}": (_PENALTY,)
        for entry in dataclasses.fields(RegularizationSection)
    },
    "regularization.temperature_init": (_TEMPERATURE, _RANDOM_START),
    "regularization.temperature_parametrization": (_TEMPERATURE, _RANDOM_START),
    "optimizer.temperature_rate": (_TEMPERATURE,),
    "optimizer.threshold_rate": (_PENALTY,),
    "model.initializer_range": (_RANDOM_START,),
    "model.embedding_scale": (_RANDOM_START,),
    "model.position_start": (
        (lambda run: run.spec.family == "gpt2", "presets of GPT-2's family"),
        _RANDOM_START,
    ),
    "model.hidden_width": ((lambda run: run.spec.ffn != "scaled_fused", "labels without ScFuFFN"),),
    "model.trainable_scales": (
        (lambda run: run.spec.ffn.startswith("scaled"), "labels with ScFFN or ScFuFFN"),
    ),
    "schedule.final_learning_rate": (
        (lambda run: run.recipe.schedule.shape == "cosine", "schedule.shape=cosine"),
    ),
    "schedule.warmup_fraction": (
        (lambda run: run.recipe.schedule.warmup_steps is None, "schedule.warmup_steps=null"),
    ),
    "data.tokenizer_bytes": (
        (lambda run: run.recipe.data.tokenizer == "train", "data.tokenizer=train"),
    ),
}


def require_effect(plan: Sequence[PlannedRun], settings: Iterable[str]) -> None:
    """Refuses a setting of a command line that none of its runs uses, or that it gives twice.

    Args:
        plan: all runs of the command.
        settings: `section.key=value`, as `load_recipe` took them.

    Raises:
        TrainingError: the setting would be without effect.
    """
    names = [setting.partition("=")[0].strip() for setting in settings]
    for name in names:
        if names.count(name) > 1:
            other = "; --data gives it too" if name == "data.source" else ""
            raise TrainingError(f"train: {name} must be given once, got it twice{other}")
        for uses, words in _USED_IN.get(name, ()):
            if not any(map(uses, plan)):
                labels = ", ".join(dict.fromkeys(run.label for run in plan))
                raise TrainingError(f"train: {name} has an effect in {words}, got {labels}")


def plan_runs(
    recipe: Recipe,
    labels: Sequence[str],
    seeds: Sequence[int],
    *,
    output: str | Path,
    resume: str = "auto",
    start_from: str | Path | None = None,
    distill_from: str | Path | None = None,
) -> list[PlannedRun]:
    """Returns one run per label and seed, seeds outermost.

    Args:
        recipe: the settings of the runs.
        labels: networks.
        seeds: one run each.
        output: run folders are `output/<slug>-seed<seed>`, with `-continued` or `-annealed` and
            `-distilled` before the seed where that holds.
        resume: `auto` continues interrupted runs and reuses ended ones, `never` refuses
            to touch an existing run, a path is the checkpoint to continue from.
        start_from: a run folder, a checkpoint or a Hugging Face folder with the network to start
            from; None starts with random weights.
        distill_from: the same of the teacher; None learns from the text alone.

    Raises:
        TrainingError: bad label or size, the same run twice, an existing run with another
            configuration, or a checkpoint that does not belong to the run.

    Example:
        >>> from aero.train import load_recipe, plan_runs
        >>> runs = plan_runs(load_recipe("demo"), ["SM+R"], [0, 1], output="runs")
        >>> [run.folder.path.name for run in runs]
        ['sm-r-seed0', 'sm-r-seed1']
    """
    canonical = _with_canonical_labels(recipe)
    source = None if start_from is None else find_origin(start_from, "--from")
    teacher = None if distill_from is None else find_origin(distill_from, "--distill-from")
    way = training_way(recipe, start_from=source is not None, distill_from=teacher is not None)
    runs = []
    for seed in seeds:
        _SEEDS.check("train: seed", seed)
        for label in labels:
            spec = spec_for(recipe, label)
            folder = RunFolder(Path(output) / f"{run_slug(spec.label)}{way}-seed{seed}")
            own = canonical.for_label(spec.label)
            runs.append(
                PlannedRun(
                    own, spec, seed, folder, source=source, teacher=teacher, resume=str(resume)
                )
            )
    folders = [run.folder.path for run in runs]
    for run in runs:
        if folders.count(run.folder.path) > 1:
            raise TrainingError(
                f"train: {run.name} is asked for twice; name each label and each seed once"
            )
    if resume not in ("auto", "never") and len(runs) > 1:
        raise TrainingError(
            "train: --resume PATH continues one run; give a single --label and --seed"
        )
    return [with_action(run) for run in runs]


def training_way(recipe: Recipe, *, start_from: bool = False, distill_from: bool = False) -> str:
    """Returns the part of a run folder's name for the way in which its network is trained.

    Args:
        recipe: the settings of the run.
        start_from: whether it starts from a trained network.
        distill_from: whether it learns from one.

    Raises:
        TrainingError: settings of a way that the run does not take.
    """
    for section, option, is_taken in (
        ("annealing", "--from", start_from),
        ("distillation", "--distill-from", distill_from),
    ):
        if not is_taken and getattr(recipe, section) != getattr(Recipe(), section):
            raise TrainingError(f"train: settings of {section} are for runs with {option}")
    if not recipe.selection.byte_weight and recipe.selection != Recipe().selection:
        raise TrainingError(
            "train: settings of selection are for runs with selection.byte_weight above 0"
        )
    way = ""
    if start_from:
        way = "-continued" if recipe.annealing.schedule == "none" else "-annealed"
    return f"{way}-distilled" if distill_from else way


def spec_for(recipe: Recipe, label: str) -> ArchitectureSpec:
    """Returns the network of a label at the recipe's size.

    Raises:
        TrainingError: no such label or preset, or sizes that do not fit together.
    """
    model = recipe.model
    # The names that the section shares with the network.
    values = {entry.name: getattr(model, entry.name) for entry in dataclasses.fields(model)}
    known = ArchitectureSpec.from_label("SM").to_dict()
    given = {name: value for name, value in values.items() if name in known and value is not None}
    try:
        return ArchitectureSpec.from_label(
            label, model=model.preset, vocab_size=recipe.data.vocabulary, **given
        )
    except ValueError as error:
        raise TrainingError(f"train: {error}") from error


def _with_canonical_labels(recipe: Recipe) -> Recipe:
    """Writes the labels of `per_label` the way networks print theirs."""
    renamed = {
        spec_for(recipe, label).label: settings for label, settings in recipe.per_label.items()
    }
    return dataclasses.replace(recipe, per_label=renamed)


def with_action(run: PlannedRun) -> PlannedRun:
    """Returns a run with the next step that its folder, as it is now, allows.

    Earlier decisions do not count.

    Raises:
        TrainingError: the folder holds a run with another configuration, or the checkpoint does not
            belong to it.
    """
    run = dataclasses.replace(run, action="train", checkpoint=None)
    if run.resume not in ("auto", "never"):
        checkpoint = _own_checkpoint(run, run.resume)
        return dataclasses.replace(run, action="resume", checkpoint=checkpoint)
    if not run.folder.exists():
        return run
    path = run.folder.path
    if run.resume == "never":
        raise TrainingError(
            f"train: {path} already holds a run; choose another --output, delete the folder, or "
            "use --resume auto"
        )
    _require_same_config(run)
    require_current_split(run.folder)
    if run.folder.info().status in ("finished", "diverged"):
        return dataclasses.replace(run, action="reuse")
    checkpoints = run.folder.complete_checkpoints()
    if checkpoints:
        return dataclasses.replace(run, action="resume", checkpoint=checkpoints[-1])
    return run


def _own_checkpoint(run: PlannedRun, path: str) -> Path:
    checkpoint = Path(path).resolve()
    if not (checkpoint / "trainer_state.json").is_file():
        raise TrainingError(
            "train: --resume must be auto, never or a checkpoint folder checkpoints/step-N, "
            f"got {path}"
        )
    if checkpoint.parent != run.folder.checkpoints.resolve():
        raise TrainingError(
            f"train: checkpoint {path} does not belong to the run {run.folder.path}; name that "
            "run's --label, --seed and --output"
        )
    _require_same_config(run)
    require_current_split(run.folder)
    return checkpoint


def require_current_split(folder: RunFolder) -> None:
    """Refuses a run whose corpus was split before near copies were kept out of validation.

    Raises:
        TrainingError: its numbers do not compare with those of new runs.
    """
    corpus = folder.info().corpus
    if corpus is not None and corpus.copied_share is None:
        raise TrainingError(
            f"train: {folder.path} was trained when near copies of training text could be held "
            "out, so its perplexity does not compare with that of new runs; choose another "
            "--output, or delete the folder to train it on the corpus as it is split now"
        )


def _require_same_config(run: PlannedRun) -> None:
    wanted = _flat(run.config())
    # A setting that is newer than the run had its present default then.
    defaults = {k: v for k, v in _flat(recipe_to_dict(Recipe())).items() if k in wanted}
    there = {**defaults, **_flat(run.folder.config())}
    keys = sorted(key for key in there.keys() | wanted.keys() if there.get(key) != wanted.get(key))
    if keys:
        differences = ", ".join(
            f"{key} is {there.get(key)!r} there and {wanted.get(key)!r} here" for key in keys[:3]
        )
        more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
        raise TrainingError(
            f"train: {run.folder.path} holds a run with another configuration "
            f"({differences}{more}); choose another --output, delete the folder, or use the same "
            "settings"
        )


def _flat(tree: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat
