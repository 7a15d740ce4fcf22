"""How networks start: streams, scores, entropies, gradients at step 0, 10, 30, 100, by rule.

    python -m benchmarks.paper.experiments.start_of_training \
        --results benchmarks/results/start_of_training_<hardware>

An interrupted command goes on where it stopped, unless the code has changed since.

Every network has the demo's size, data, learning rate and warm-up, and no weight decay. Each rule
changes one thing of how it starts. Nothing is timed. docs/explanation/start.md derives the
results.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from aero import AeroConfig, AeroForCausalLM
from aero.internals.atomic_files import write_bytes_atomically, write_json_atomically
from aero.internals.machine import git_commit, hardware, package_versions
from aero.internals.records import as_dict
from aero.train import load_recipe
from aero.train.data.prepared_data import PreparedData, prepare_data
from aero.train.data.windows import TrainingWindows
from aero.train.starting import score_deviations

WIDTH, LAYERS, TOKENS, BATCH = 128, 6, 128, 16
STEPS = (0, 10, 30, 100)
PLAIN, PENALIZED = "SM+ScFuFFN", "EReg(SM(t)+ScFuFFN)"
UNIT = {"embedding_scale": 50.0}
# Fields of AeroConfig that a rule changes, and factors of initial weights.
RULES: dict[str, dict[str, Any]] = {
    "none": {},
    "embeddings x sqrt(d) = 11.3": {"embedding_scale": math.sqrt(WIDTH)},
    "embeddings x 50, variance 1": UNIT,
    "all weights of 1 / sqrt(d)": {"initializer_range": 1 / math.sqrt(WIDTH)},
    "residual branches x sqrt(2 L)": {"branches": math.sqrt(2 * LAYERS)},
    "q and k x 10": {"scores": 10.0},
    "final LayerNorm": {"final_norm": "layer"},
    "final LayerNorm, embeddings x 50": {"final_norm": "layer", **UNIT},
    "t from 0.01": {"temperature_init": 0.01},
    "t from 0.01, embeddings x 50": {"temperature_init": 0.01, **UNIT},
    "t from 0.1, embeddings x 50": {"temperature_init": 0.1, **UNIT},
    "t from 1, embeddings x 50": {"temperature_init": 1.0, **UNIT},
}
NORMALIZED = ("qk", "qk+ffn", "qkv+ffn", "qkvo+ffn")
# With the two networks above, every word of the labels.
OTHERS = (
    "SM", "SM+G", "SM+R", "SM+LR(layer)", "SM+LR(global)", "SM+WNFFN", "SM+SNFFN",
    *(f"SM+{norm}FFN({layers})" for norm in ("WN", "SN") for layers in NORMALIZED),
    "SM+FuFFN", "SM+ScFFN", "SM+LN", "SM+LN+G", "SM+LN+R", "SM+LN+ScFuFFN", "SM+FN+G", "SM+FN+R",
    "SM+FN+ScFuFFN", "SM+FN(scalar)+ScFuFFN", "SM+DyT+G", "SM+Derf+G", "SM(t)+ScFuFFN",
    "SM(t:head)+ScFuFFN", "SM(t:scalar)+ScFuFFN", "EReg(SM(t)+FN+ScFuFFN)", "SOTA:SM+ScFuFFN",
    "SM+ScFuFFN_i3",
)  # fmt: skip
CELLS = [
    *((PLAIN, rule) for rule in RULES if not rule.startswith("t from")),
    *((PENALIZED, rule) for rule in RULES if rule.startswith("t from")),
    *((label, rule) for label in OTHERS for rule in ("none", "embeddings x 50, variance 1")),
    # Their final norm is a function of each element too.
    *((label, "final LayerNorm, embeddings x 50") for label in ("SM+DyT+G", "SM+Derf+G")),
]


def build(label: str, rule: str, seed: int) -> AeroForCausalLM:
    """The network of a label, started by a rule."""
    torch.manual_seed(seed)
    fields: dict[str, Any] = dict(RULES[rule])
    branches, scores = fields.pop("branches", 1.0), fields.pop("scores", 1.0)
    sizes: dict[str, Any] = {"model": "mini", "vocab_size": 1024, "num_layers": LAYERS}
    model = AeroForCausalLM(AeroConfig.from_label(label, **sizes, **fields))
    if label == PLAIN:
        with torch.no_grad():
            for block in model.transformer.blocks():
                block.attn.c_attn.weight[: 2 * WIDTH].mul_(scores)
                block.attn.c_proj.weight.mul_(branches)
                block.mlp.weight.mul_(branches)
    return model


def weights_of_attention(attention: nn.Module) -> list[Tensor]:
    """Weights of q, k and v, joined or not, with gradients kept. A normalized one is a result."""
    names = [name for name in ("c_attn", "q_attn", "k_attn", "v_attn") if hasattr(attention, name)]
    weights = [getattr(attention, name).weight for name in names]
    for weight in weights:
        weight.retain_grad()
    return weights


def measured(model: AeroForCausalLM, ids: Tensor) -> dict[str, list[float]]:
    """What each layer sees in one forward and backward pass over tokens [B, T], as in training."""
    buffers = [buffer.clone() for buffer in model.buffers()]
    scores = score_deviations(model, ids)
    with parametrize.cached():
        weights = [weights_of_attention(block.attn) for block in model.transformer.blocks()]
        output = model(ids, labels=ids, output_hidden_states=True)
        output.loss.backward()
    most = torch.arange(2, ids.shape[1] + 1).log()
    gradients = [torch.cat([weight.grad for weight in layer]) for layer in weights]
    found = {
        "stream": [rms(stream) for stream in output.hidden_states[:LAYERS]],
        "scores": scores,
        "entropy": [float((e.detach()[..., 1:] / most).mean()) for e in output.entropies],
        "gradient_qk": [rms(gradient[: 2 * WIDTH]) for gradient in gradients],
        # Shaped attention has no v.
        "gradient_v": [rms(of_v) for g in gradients if (of_v := g[2 * WIDTH :]).numel()],
    }
    model.zero_grad()
    for buffer, value in zip(model.buffers(), buffers, strict=True):
        buffer.copy_(value)
    return {name: [float(f"{value:.4g}") for value in found[name]] for name in found}


def rms(x: Tensor) -> float:
    """Root mean square."""
    return float(x.detach().square().mean().sqrt())


def train(label: str, rule: str, data: PreparedData, seed: int) -> dict[str, Any]:
    """Trains a network for a hundred steps; what it sees at STEPS, the last ten steps' loss."""
    model, recipe = build(label, rule, seed), load_recipe("demo")
    rate = recipe.optimizer.learning_rate
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    probe = torch.from_numpy(data.validation[: 4 * TOKENS].astype("int64")).view(4, TOKENS)
    windows = TrainingWindows(data.train, TOKENS, count=BATCH * (STEPS[-1] + 1), seed=seed)
    assert recipe.optimizer.clip_norm is not None
    steps, losses = {}, []
    for step in range(STEPS[-1] + 1):
        if step in STEPS:
            steps[str(step)] = measured(model, probe)
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / recipe.warmup_steps)
        chosen = windows.__getitems__(range(BATCH * step, BATCH * (step + 1)))
        ids = torch.from_numpy(chosen.astype("int64"))
        output = model(ids, labels=ids)
        output.loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), recipe.optimizer.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(output.lm_loss.detach()))
    return {"label": label, "rule": rule, "steps": steps, "loss": sum(losses[-10:]) / 10}


HEADS = [
    "network", "rule", "stream", "scores", "gradient of q, k over v's",
    "entropy / log n, step 0", "step 10", "step 30", "step 100", "stream, step 100", "loss",
]  # fmt: skip


def row(run: dict[str, Any]) -> str:
    """First and last layer of everything, before the first step where no step is named."""
    start, last = run["steps"]["0"], run["steps"][str(STEPS[-1])]

    def ends(values: list[float]) -> str:
        return f"{values[0]:.2g} / {values[-1]:.2g}" if values else "-"

    ratios = [qk / v for qk, v in zip(start["gradient_qk"], start["gradient_v"], strict=False)]
    entropies = [ends(run["steps"][str(step)]["entropy"]) for step in STEPS]
    scores = [max(value, 0.001) for value in start["scores"]]
    cells = [ends(start["stream"]), ends(scores), ends(ratios), *entropies, ends(last["stream"])]
    return (
        "| " + " | ".join([f"`{run['label']}`", run["rule"], *cells, f"{run['loss']:.3f}"]) + " |"
    )


def command_line(description: str) -> argparse.Namespace:
    """The folders of results and corpora, and the seed."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, required=True, help="page and JSON, without suffix")
    parser.add_argument("--cache-dir", type=Path, default=Path("runs/corpora"))
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def publish(
    given: argparse.Namespace,
    page: str,
    lines: list[str],
    runs: list[dict[str, Any]],
    data: PreparedData,
    **facts: Any,
) -> None:
    """Writes runs and facts as JSON, and a page that says the facts above the lines of a table."""
    facts = {
        "hardware": hardware(),
        "versions": package_versions(),
        "git_commit": git_commit(),
        "corpus": as_dict(data.record()),
        "seed": given.seed,
        **facts,
    }
    write_json_atomically(given.results.with_suffix(".json"), {**facts, "runs": runs})
    text = "\n".join([page.format(**facts), *lines, ""])
    write_bytes_atomically(given.results.with_suffix(".md"), text.encode())


def held_runs(given: argparse.Namespace) -> list[dict[str, Any]]:
    """The first runs of the results, where this code made them with this seed."""
    path = given.results.with_suffix(".json")
    held = json.loads(path.read_text("utf-8")) if path.exists() else {}
    alike = held.get("git_commit") == git_commit() and held.get("seed") == given.seed
    return list(held["runs"]) if alike else []


def main() -> None:
    """Trains every cell; a page and its numbers are written after each."""
    given = command_line(__doc__)
    torch.set_num_threads(1)
    recipe = load_recipe("demo")
    data = prepare_data(recipe.data, cache_dir=given.cache_dir, context_length=TOKENS)
    runs = held_runs(given)
    lines = ["| " + " | ".join(HEADS) + " |", "| --- | --- |" + " ---: |" * (len(HEADS) - 2)]
    for label, rule in CELLS[len(runs) :]:
        runs.append(train(label, rule, data, given.seed))
        print(row(runs[-1]), flush=True)
        publish(
            given, PAGE, [*lines, *map(row, runs)], runs, data,
            learning_rate=recipe.optimizer.learning_rate, warmup_steps=recipe.warmup_steps,
        )  # fmt: skip


PAGE = (
    "# How networks start\n\n"
    "`python -m benchmarks.paper.experiments.start_of_training`: a hundred steps of 2,048 tokens "
    "at the demo's size (L 6, d 128, H 4, T 128), rate {learning_rate:g} after {warmup_steps} "
    "steps of warm-up, seed {seed}. Values of the first / the last layer, before the first step "
    "where no step is named; the loss is the mean of the last ten of 101 steps. Scores are "
    "deviations read from entropies, 0.001 at least. [What it "
    "means](../../docs/explanation/start.md).\n\n"
    "{hardware}, commit {git_commit}.\n"
)

if __name__ == "__main__":
    main()
