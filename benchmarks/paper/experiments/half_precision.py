"""Asks if float16 with loss scaling makes networks reach NaN that do not in bfloat16.

    python -m benchmarks.paper.experiments.half_precision \
        --results benchmarks/results/half_precision_<hardware>

Sizes, text, optimizer, schedule and length are those of the mini scale of the study; the
networks train under autocast. float16 has torch's loss scaling: a step with an infinite gradient is
skipped and halves the scale. Nothing is timed.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from aero import AeroConfig, AeroForCausalLM
from aero.models.initialization import decay_parameter_names
from aero.train.data.prepared_data import PreparedData, prepare_data
from aero.train.data.windows import TrainingWindows
from aero.train.recipes.recipe import Recipe
from benchmarks.paper.cells import plan_target
from benchmarks.paper.experiments.start_of_training import command_line, publish

# The paper's Figure 6 follows the first; the second is as deep as the paper's.
NETWORKS = (("SM", 6), ("SM", 12), ("SM+ScFuFFN", 6), ("SM+LN+G", 6))
PRECISIONS = (torch.bfloat16, torch.float16)
LARGEST = torch.finfo(torch.float16).max
PRODUCTS = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default}


class WideProducts(TorchDispatchMode):
    """Computes products of half precision in float32 and rounds them once, as GPUs do.

    torch's own products sum in float32 too. On a processor without instructions for half precision
    they take twice as long in bfloat16, and fifteen times as long in float16.
    """

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        """Widens what a product reads, and leaves every other operator alone."""
        if function not in PRODUCTS or (precision := arguments[0].dtype) not in PRECISIONS:
            return function(*arguments, **keywords or {})
        return function(*(value.float() for value in arguments), **keywords or {}).to(precision)


def train(
    label: str, layers: int, precision: torch.dtype, recipe: Recipe, data: PreparedData, seed: int
) -> dict[str, Any]:
    """Trains a network until its loss is not finite, or to the end; what it met."""
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "model": "mini", "vocab_size": recipe.data.vocabulary, "num_layers": layers
    }  # fmt: skip
    model = AeroForCausalLM(AeroConfig.from_label(label, **sizes))
    settings, decayed = recipe.optimizer, {*decay_parameter_names(model)}
    parameters = [
        {
            "params": [
                value for name, value in model.named_parameters() if (name in decayed) is on
            ],
            "weight_decay": settings.weight_decay if on else 0.0,
        }
        for on in (True, False)
    ]
    optimizer = torch.optim.AdamW(
        parameters, lr=settings.learning_rate, betas=(settings.beta1, settings.beta2)
    )
    scaler = torch.amp.GradScaler("cpu", enabled=precision == torch.float16)
    length, steps, warmup = recipe.model.context_length, recipe.steps, recipe.warmup_steps
    batch = recipe.training.tokens_per_step // length
    windows = TrainingWindows(data.train, length, count=batch * steps, seed=seed)
    losses: list[float] = []
    largest_state = largest_gradient = 0.0
    skipped, broken = 0, None
    for step in range(steps):
        for group in optimizer.param_groups:
            left = (steps - step) / (steps - warmup)
            group["lr"] = settings.learning_rate * min((step + 1) / warmup, left)
        chosen = windows.__getitems__(range(batch * step, batch * (step + 1)))
        ids = torch.from_numpy(chosen.astype("int64"))
        with torch.autocast("cpu", dtype=precision):
            output = model(ids, labels=ids, output_hidden_states=True)
        state = max(float(stream.detach().abs().max()) for stream in output.hidden_states)
        loss = float(output.loss.detach())
        if not (math.isfinite(loss) and math.isfinite(state)):
            broken = step + 1
            break
        largest_state = max(largest_state, state)
        losses.append(loss)
        scaler.scale(output.loss).backward()
        scaler.unscale_(optimizer)
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm or math.inf))
        if math.isfinite(norm):
            largest_gradient = max(largest_gradient, norm)
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < scale
        optimizer.zero_grad()
    return {
        "label": label,
        "layers": layers,
        "precision": str(precision).removeprefix("torch."),
        "nan_at_step": broken,
        "skipped_steps": skipped,
        "largest_of_the_stream": largest_state,
        "largest_gradient_norm": largest_gradient,
        "loss": statistics.fmean(losses[-20:]) if losses else None,
    }


def row(run: dict[str, Any]) -> str:
    """A run as a row of the page."""
    broken = "no" if run["nan_at_step"] is None else f"step {run['nan_at_step']}"
    values = [
        f"`{run['label']}`", str(run["layers"]), run["precision"], broken,
        str(run["skipped_steps"]), f"{run['largest_of_the_stream']:.3g}",
        f"{run['largest_gradient_norm']:.3g}", "" if run["loss"] is None else f"{run['loss']:.3f}",
    ]  # fmt: skip
    return f"| {' | '.join(values)} |"


PAGE = """# Half precision and NaN

`python -m benchmarks.paper.experiments.half_precision`: the networks of the study's mini scale, \
{steps} steps of {tokens_per_step:,} tokens at rate {learning_rate:g}, under autocast, seed \
{seed}. Matrix products sum in float32. Embeddings start at 0.02, as published. float16 has \
torch's loss scaling from 65,536; a step whose gradient is not finite is skipped. The largest \
element of the residual stream is that of all layers and steps. float16 ends at {largest:,.0f}. \
The loss is the mean of the last 20 steps. \
[What it means](../../docs/paper.md#why-claims-fail).

{hardware}, commit {git_commit}.

| network | layers | autocast | NaN | skipped steps | largest of the stream | largest gradient \
norm | loss |
| --- | ---: | --- | --- | ---: | ---: | ---: | ---: |"""


def main() -> None:
    """Trains every network in both precisions, and writes a page and its numbers."""
    given = command_line(__doc__)
    torch.set_num_threads(1)
    recipe = plan_target("figure6", "mini").cells[0].recipe
    context = recipe.model.context_length
    data = prepare_data(recipe.data, cache_dir=given.cache_dir, context_length=context)
    runs = []
    for label, layers in NETWORKS:
        for precision in PRECISIONS:
            with WideProducts():
                runs.append(train(label, layers, precision, recipe, data, given.seed))
            print(row(runs[-1]), flush=True)
    publish(
        given, PAGE, [*map(row, runs)], runs, data,
        steps=recipe.steps, tokens_per_step=recipe.training.tokens_per_step,
        learning_rate=recipe.optimizer.learning_rate, largest=LARGEST,
    )  # fmt: skip


if __name__ == "__main__":
    main()
