"""The foldable norm and its relatives, each in the place of LayerNorm in one network.

    python -m benchmarks.paper.experiments.norms --results benchmarks/results/norms_<hardware>

The network is SM+LN+R at the demo's size, with 0.82 million tokens. The final norm stays a
LayerNorm in all networks: TaperNorm's paper asks for it. In its place PowerNorm and Unified
Normalization, whose gradients are approximate, did not learn in trials of 200 steps.

Seed 1 tries learning rates for every norm, three and then half or twice the best while that is at
an end; the next three seeds train at the best and judge. Nothing is timed. Interrupted, the same
command goes on.

Declared before the first run: FN is compared with each of the others by the test of
`aero.report.seeds`. Its intervals hold together with 95 %, and within 2 % of perplexity two norms
are level.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import PrinterCallback, TrainerCallback, TrainingArguments

from aero import AeroConfig, AeroForCausalLM
from aero.internals.atomic_files import write_bytes_atomically, write_json_atomically
from aero.internals.machine import git_commit, hardware, package_versions, settle_in
from aero.report.seeds import Pool, Series
from aero.tables import markdown_table
from aero.train import AeroTrainer, load_recipe
from aero.train.data.prepared_data import PreparedData, prepare_data
from aero.train.data.windows import TrainingWindows, collate_windows, validation_windows
from aero.train.runs.perplexity import measure_loss
from aero.train.schedules import annealing_at

TOKENS, RATES, SEEDS = 819_200, (2e-3, 4e-3, 8e-3), (2, 3, 4)
# The rates are not extended beyond these.
LEAST, MOST = 2.5e-4, 3.2e-2
LEVEL = math.log(1.02)
EPS = 1e-6


class _Divided(torch.autograd.Function):
    """x / s with s held fixed; the norm says how much of its own gradient is taken off."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, deviation: Tensor, norm: ByWindow) -> Tensor:
        divided = x / deviation
        ctx.save_for_backward(divided, deviation)
        ctx.norm = norm
        return divided

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        divided, deviation = ctx.saved_tensors
        (gradient,) = gradients
        along = (gradient * divided).mean((0, 1))
        share = ctx.norm.share(along, divided.square().mean((0, 1)))
        return (gradient - share * divided) / deviation, None, None


class ByWindow(nn.Module):
    """A quadratic mean of several steps, and an approximate gradient through it.

    `"power"`: PowerNorm, Algorithm 2 of Shen et al. Their published code also divides every token
    by its own root mean square first; that would not fold, and is left out. `"unified"`: Unified
    Normalization of Yang et al. as published for language, with a window of four steps and no
    filter of outliers. Both take the batch's own statistics in the first 5 % of the steps.
    """

    MOMENTUM, WINDOW = 0.9, 4
    running: Tensor
    gradient: Tensor

    def __init__(self, width: int, kind: str, steps: int) -> None:
        super().__init__()
        self.kind, self.first, self.step = kind, steps // 20, 0
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("running", torch.ones(width))
        self.register_buffer("gradient", torch.zeros(width))
        self.squares: list[Tensor] = []
        self.gradients: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] of [B, T, C]."""
        if not self.training:
            return self.weight * x / (self.running + EPS).sqrt() + self.bias
        self.step += 1
        square = x.detach().square().mean((0, 1))
        self.squares = [*self.squares, square][-self.WINDOW :]
        used = square
        if self.step > self.first:
            window = torch.stack(self.squares).log().mean(0).exp()
            used = self.running.clone() if self.kind == "power" else window
        moved = square if self.kind == "power" else used
        keep = min(self.MOMENTUM, 1 - 1 / self.step)
        self.running.mul_(keep).add_(moved, alpha=1 - keep)
        return self.weight * _Divided.apply(x, (used + EPS).sqrt(), self) + self.bias

    def share(self, along: Tensor, square: Tensor) -> Tensor:
        """How much of x / s is taken off its gradient, [C].

        Args:
            along: mean of gradient times x / s over this step's tokens, [C].
            square: mean of (x / s)^2, [C].
        """
        before = self.gradient.clone()
        if self.kind == "power":
            self.gradient.mul_(1 - (1 - self.MOMENTUM) * square).add_(
                along, alpha=1 - self.MOMENTUM
            )
            return before
        self.gradients = [*self.gradients, along][-self.WINDOW :]
        mean = along if self.step <= self.first else torch.stack(self.gradients).mean(0)
        self.gradient.mul_(self.MOMENTUM).add_(mean, alpha=1 - self.MOMENTUM)
        return self.gradient.clone()


class Progressive(nn.Module):
    """Fades LayerNorm into something that folds during training; that alone in evaluation.

    `"prepbn"`: Guo et al.: a batch norm plus a learned share of x; the change is linear over all
    steps. `"taper"`: Kanavalau et al., by their abstract: a learned scale, which starts at the mean
    of 1 / deviation while the gate is open; the gate closes as a cosine. When it does so is our
    choice: between a fifth and four fifths of the steps.
    """

    scale: Tensor

    def __init__(self, width: int, kind: str) -> None:
        super().__init__()
        self.kind, self.progress = kind, 0.0
        self.layer = nn.LayerNorm(width)
        self.batch = nn.BatchNorm1d(width) if kind == "prepbn" else None
        self.share = nn.Parameter(torch.ones(1)) if kind == "prepbn" else None
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] of [B, T, C]."""
        if self.training and self.progress < 1.0:
            return torch.lerp(self.layer(x), self.folding(x), self.progress)
        return self.folding(x)

    def folding(self, x: Tensor) -> Tensor:
        """What is left of the norm at the end."""
        if self.batch is not None:
            return self.batch(x.flatten(0, 1)).view_as(x) + self.share * x
        if self.training and self.progress == 0.0:
            inverse = torch.rsqrt(x.detach().var(-1, unbiased=False) + EPS).mean()
            self.scale.lerp_(inverse, 0.1)
        return self.layer.weight * self.scale * x + self.layer.bias


class Progress(TrainerCallback):
    """Tells the norms how far the training is."""

    SCHEDULES: ClassVar[dict[str, dict[str, Any]]] = {
        "prepbn": {"schedule": "linear", "start_fraction": 0.0, "end_fraction": 1.0},
        "taper": {"schedule": "cosine", "start_fraction": 0.2, "end_fraction": 0.8},
    }

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Before every step."""
        for norm in kwargs["model"].modules():
            if isinstance(norm, Progressive):
                step, schedule = state.global_step + 1, self.SCHEDULES[norm.kind]
                norm.progress = annealing_at(step, state.max_steps, **schedule)


# Name -> label of the network, our module where the label's norm is replaced, family of its seeds.
NORMS: dict[str, tuple[str, str | None, str]] = {
    "FN": ("SM+FN+R", None, "foldable"),
    "LayerNorm": ("SM+LN+R", None, "layer"),
    "no norm": ("SM+R", None, "none"),
    "PowerNorm": ("SM+LN+R", "power", "foldable"),
    "Unified Normalization": ("SM+LN+R", "unified", "foldable"),
    "PRepBN": ("SM+LN+R", "prepbn", "progressive"),
    "TaperNorm": ("SM+LN+R", "taper", "progressive"),
    "DyT": ("SM+DyT+R", None, "dynamic"),
    "Derf": ("SM+Derf+R", None, "dynamic"),
}


def build(name: str, seed: int, steps: int) -> AeroForCausalLM:
    """The network with the norm of this name."""
    label, kind, _ = NORMS[name]
    torch.manual_seed(seed)
    recipe = load_recipe("demo")
    model = AeroForCausalLM(
        AeroConfig.from_label(
            label,
            model="mini",
            vocab_size=recipe.data.vocabulary,
            embedding_scale=50.0,
            final_norm="layer",
        )
    )
    if kind is None:
        return model
    for block in model.transformer.blocks():
        for place in ("ln_1", "ln_2"):
            width = getattr(block, place).weight.numel()
            progressive = kind in Progress.SCHEDULES
            new = Progressive(width, kind) if progressive else ByWindow(width, kind, steps)
            setattr(block, place, new)
    return model


def train(name: str, rate: float, seed: int, data: PreparedData) -> float | None:
    """Trains a network as `aero train` does; its loss."""
    recipe = load_recipe("demo")
    steps = TOKENS // recipe.training.tokens_per_step
    batch = recipe.training.tokens_per_step // recipe.model.context_length
    model = build(name, seed, steps)
    windows = TrainingWindows(
        data.train, recipe.model.context_length, count=steps * batch, seed=seed
    )
    fit(model, windows, rate, seed, callbacks=[Progress()])
    return evaluated(model, data)


def fit(
    model: AeroForCausalLM,
    windows: Dataset[Any],
    rate: float,
    seed: int,
    *,
    callbacks: Iterable[TrainerCallback] = (),
    trainer_class: type[AeroTrainer] = AeroTrainer,
) -> None:
    """Trains a network on windows with the demo's settings, all of them once."""
    recipe = load_recipe("demo")
    batch = recipe.training.tokens_per_step // recipe.model.context_length
    steps = len(windows) // batch  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_class(
            model=model,
            args=TrainingArguments(
                folder, max_steps=steps, per_device_train_batch_size=batch, learning_rate=rate,
                adam_beta2=recipe.optimizer.beta2, weight_decay=recipe.optimizer.weight_decay,
                max_grad_norm=recipe.optimizer.clip_norm or 0.0, lr_scheduler_type="linear",
                warmup_steps=steps // 20, seed=seed, bf16=True, use_cpu=True, report_to=[],
                disable_tqdm=True, save_strategy="no", logging_strategy="no",
                optim="adamw_torch_fused", remove_unused_columns=False,
            ),
            train_dataset=windows,
            data_collator=collate_windows,
            callbacks=[*callbacks],
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        trainer.train()


def evaluated(model: AeroForCausalLM, data: PreparedData) -> float | None:
    """The loss on validation text in float32; None if it is not finite."""
    recipe = load_recipe("demo")
    context = recipe.model.context_length
    with torch.autocast("cpu", torch.bfloat16, enabled=False):
        starts = validation_windows(
            data.validation, context, max_tokens=recipe.evaluation.final_tokens
        )
        loss = measure_loss(
            model, data.validation, starts, token_bytes=data.token_bytes,
            context_length=context, batch_tokens=4096,
        ).loss  # fmt: skip
    return loss if math.isfinite(loss) else None


@dataclass(frozen=True)
class Study:
    """Networks that differ in one thing, each at the best of its rates.

    Attributes:
        thing: in which they differ, as tables call it.
        families: name of a network -> family of its seeds.
        reference: the network that the others are compared with.
        train: (name, rate, seed, data) -> loss, None where it diverged.
        page: the text over the tables; `{hardware}` and `{git_commit}` are filled in.
    """

    thing: str
    families: Mapping[str, str]
    reference: str
    train: Callable[[str, float, int, PreparedData], float | None]
    page: str


def best_rate(runs: list[dict[str, Any]], name: str) -> float:
    """The rate of the first seed's lowest loss."""
    tried = [run for run in runs if (run["norm"], run["seed"]) == (name, 1)]
    best = min(tried, key=lambda run: math.inf if run["loss"] is None else run["loss"])
    return float(best["rate"])


def judged(study: Study, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per network: rate, losses, and its difference from the reference with interval."""
    series = {}
    for name, family in study.families.items():
        losses = {
            run["seed"]: math.inf if run["loss"] is None else run["loss"]
            for run in runs
            if run["norm"] == name and run["seed"] in SEEDS
        }
        series[name] = Series(name, losses, family)
    pool = Pool(series.values(), comparisons=len(series) - 1)
    words = {
        "holds": f"{study.reference} is better",
        "does not hold": f"{study.reference} is worse",
    }
    rows = []
    for name, one in series.items():
        found = pool.judge(series[study.reference], one, margin=LEVEL)
        rows.append(
            {
                "norm": name,
                "rate": best_rate(runs, name),
                "tried": {
                    str(run["rate"]): run["loss"]
                    for run in runs
                    if (run["norm"], run["seed"]) == (name, 1)
                },
                "losses": [one.values[seed] for seed in sorted(one.values)],
                "effect": found.effect,
                "low": found.low,
                "high": found.high,
                "verdict": ""
                if name == study.reference
                else words.get(found.verdict, found.verdict),
            }
        )
    return rows


NOT = "-"


def page(study: Study, content: dict[str, Any]) -> str:
    """The results as Markdown."""

    def shown(loss: float | str | None) -> str:
        if isinstance(loss, str):
            return loss
        return "diverged" if loss is None else f"{math.exp(loss):.2f}"

    def percent(value: float) -> str:
        return f"{100 * math.expm1(value):+.1f}"

    above = f"above {study.reference}, %"
    heads = [study.thing, "rate", "perplexity", above, "interval, %", "verdict"]
    rates = sorted({float(rate) for row in content["rows"] for rate in row["tried"]})
    cells, tried = [], []
    for row in content["rows"]:
        perplexities = [math.exp(loss) for loss in row["losses"]]
        mean, spread = statistics.mean(perplexities), statistics.stdev(perplexities)
        line = {
            study.thing: row["norm"],
            "rate": f"{row['rate']:g}",
            "perplexity": f"{mean:.2f} ± {spread:.2f}",
        }
        other = row["norm"] != study.reference
        line[above] = percent(row["effect"]) if other else ""
        ends = f"{percent(row['low'])} to {percent(row['high'])}"
        cells.append({**line, "interval, %": ends if other else "", "verdict": row["verdict"]})
        tried.append([row["norm"], *(shown(row["tried"].get(str(rate), NOT)) for rate in rates)])
    return "\n".join(
        [
            study.page.format(**content),
            markdown_table(heads, [[row[head] for head in heads] for row in cells]),
            "",
            "Perplexity of seed 1 at each rate. The lowest sets the rate; seed 1 judges nothing.",
            "",
            markdown_table([study.thing, *(f"{rate:g}" for rate in rates)], tried),
            "",
        ]
    )


PAGE = (
    "# The foldable norm and its relatives\n\n"
    "`python -m benchmarks.paper.experiments.norms`: `SM+LN+R` at the demo's size (L 6, d 128, H "
    "4, T 128), embeddings of variance 1, 400 steps of 2,048 tokens in bfloat16. Every norm takes "
    "LayerNorm's place in the blocks; the final norm stays a LayerNorm in all networks. Seed 1 "
    "tries the rates, three more seeds judge. All intervals hold together with 95 %. [What "
    "differs](../../docs/explanation/related_work.md).\n\n"
    "{hardware}, commit {git_commit}.\n"
)


def run_study(study: Study, description: str | None) -> None:
    """Trains what is missing and writes a page and its numbers."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, required=True, help="page and JSON, without suffix")
    parser.add_argument("--cache-dir", type=Path, default=Path("runs/corpora"))
    arguments = parser.parse_args()
    recipe = load_recipe("demo")
    settle_in(1)
    context = recipe.model.context_length
    data = prepare_data(recipe.data, cache_dir=arguments.cache_dir, context_length=context)
    file = arguments.results.with_suffix(".json")
    facts = {"hardware": hardware(), "versions": package_versions(), "git_commit": git_commit()}
    content = json.loads(file.read_text("utf-8")) if file.exists() else {**facts, "runs": []}
    runs = content["runs"]

    def wanted(name: str, rate: float, seed: int) -> None:
        if any((run["norm"], run["rate"], run["seed"]) == (name, rate, seed) for run in runs):
            return
        loss = study.train(name, rate, seed, data)
        runs.append({"norm": name, "rate": rate, "seed": seed, "loss": loss})
        print(runs[-1], flush=True)
        write_json_atomically(file, content)

    for name in study.families:
        rates = [*RATES]
        for rate in rates:  # which grows
            wanted(name, rate, 1)
            if rate == rates[-1] and LEAST < (best := best_rate(runs, name)) < MOST:
                ends = {min(rates): best / 2, max(rates): best * 2}
                rates += [ends[best]] if best in ends else []
    for seed in SEEDS:
        for name in study.families:
            wanted(name, best_rate(runs, name), seed)
    content["rows"] = judged(study, runs)
    write_json_atomically(file, content)
    write_bytes_atomically(file.with_suffix(".md"), page(study, content).encode())


FAMILIES = {name: family for name, (_, _, family) in NORMS.items()}
STUDY = Study("norm", FAMILIES, "FN", train, PAGE)

if __name__ == "__main__":
    run_study(STUDY, __doc__)
