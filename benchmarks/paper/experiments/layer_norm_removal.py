"""LayerNorm removal and the foldable norm, from one trained network and beside one from scratch.

    python -m benchmarks.paper.experiments.layer_norm_removal \
        --results benchmarks/results/layer_norm_removal_HARDWARE

SM+LN+R of the demo's size sees 0.82 million tokens at 4e-3, the best rate of LayerNorm in
`norms.py`. Then it loses every LayerNorm, the final one too, in as many tokens again.

- Removal, Baroni et al. (arXiv 2507.02559): LayerNorms divide by a fixed number, one after another,
  in the order and at the shares of the steps that the authors' code has for GPT-2 small
  (`gpt2_standard`): ln_2 of every layer, ln_1 for queries and keys, ln_1 for values, the last one.
  The number is the mean deviation of the last step before. An auxiliary loss of weight 0.1 keeps
  the deviations before the last LayerNorm together (`gpt2_standard_aux`), or nothing does. The
  centring stays and folds, as in the published checkpoints. The code gives the token at ends of
  documents a number of its own for a while; our texts have no such token.
- FN, at once or annealed as `aero.conversion.begin_annealing` does.

Removed networks are measured as `aero.convert` folds them, and annealed ones as they end: what is
compared is what a private run computes. Seed 1 tries learning rates, three and then half or twice
the best while that is at an end; the next three seeds train at the best and judge. Interrupted, the
same command goes on.

Declared before the first run: removal with its auxiliary loss is compared with each of the others
by the test of `aero.report.seeds`. Its intervals hold together with 95 %, and within 2 % of
perplexity two ways are level.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset
from transformers import TrainerCallback

import aero
from aero import AeroConfig, AeroForCausalLM
from aero.conversion import begin_annealing, finish_annealing
from aero.train import AeroTrainer, AnnealingCallback, load_recipe
from aero.train.data.prepared_data import PreparedData
from aero.train.data.windows import TrainingWindows
from benchmarks.paper.experiments.norms import TOKENS, Study, evaluated, fit, run_study

FIRST_RATE, AUXILIARY_WEIGHT, SWITCHED_OFF = 4e-3, 0.1, 1e12
# Of 300 steps of `gpt2_standard`: where ln_2 goes, ln_1 for the scores, ln_1 for the values, one
# layer after another, and the last norm.
STARTS = {"ln_2": (20, 44), "scores": (44, 68), "values": (68, 104), "ln_f": (104, 104)}
STEPS = 300


class FixedNorm(nn.Module):
    """LayerNorm that can be told to divide by the mean deviation of its last training step.

    Attributes:
        deviation: that mean over batch and positions, 0-D.
        fixed: whether it divides by that.
    """

    deviation: Tensor

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps, self.fixed = norm.weight, norm.bias, norm.eps, False
        self.register_buffer("deviation", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] of [B, T, C]."""
        if self.fixed:
            return self.divided(x)
        deviation = deviations(x, self.eps)
        if self.training:
            self.deviation.copy_(deviation.detach().mean())
        return (x - x.mean(-1, keepdim=True)) / deviation * self.weight + self.bias

    def divided(self, x: Tensor) -> Tensor:
        """The same with the fixed number."""
        return (x - x.mean(-1, keepdim=True)) / self.deviation.clone() * self.weight + self.bias


class NormedProjection(nn.Module):
    """Queries, keys and values of a stream, whose norm goes from the former two first.

    They keep one number: the values' norm goes on measuring it until it is fixed too.
    """

    def __init__(self, norm: FixedNorm, projection: nn.Module) -> None:
        super().__init__()
        self.norm, self.projection, self.scores_fixed = norm, projection, False

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, 3 C] of [B, T, C]."""
        if not self.scores_fixed:
            return self.projection(self.norm(x))
        scores, values = self.projection(self.norm.divided(x)), self.projection(self.norm(x))
        return torch.cat((scores[..., : 2 * x.shape[-1]], values[..., 2 * x.shape[-1] :]), dim=-1)


def deviations(x: Tensor, eps: float) -> Tensor:
    """Standard deviation of every token, [B, T, 1]."""
    return (x.var(-1, keepdim=True, unbiased=False) + eps).sqrt()


class Removal(TrainerCallback):
    """Fixes one norm after another."""

    def __init__(self, model: AeroForCausalLM) -> None:
        transformer: Any = model.transformer
        self.places: dict[str, list[Callable[[], None]]] = {name: [] for name in STARTS}
        for block in transformer.blocks():
            norm = FixedNorm(block.ln_1)
            block.ln_1, block.ln_2 = None, FixedNorm(block.ln_2)
            block.attn.c_attn = NormedProjection(norm, block.attn.c_attn)
            self.places["ln_2"].append(partial(setattr, block.ln_2, "fixed", True))
            self.places["scores"].append(partial(setattr, block.attn.c_attn, "scores_fixed", True))
            self.places["values"].append(partial(setattr, norm, "fixed", True))
        transformer.ln_f = FixedNorm(transformer.ln_f)
        self.places["ln_f"] = [partial(setattr, transformer.ln_f, "fixed", True)]

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Before every step."""
        for name, (first, last) in STARTS.items():
            fixes = self.places[name]
            for index, fix in enumerate(fixes):
                at = (first + (last - first) * index / len(fixes)) / STEPS
                if state.global_step >= round(at * state.max_steps):
                    fix()


class EvenDeviations(AeroTrainer):
    """Adds the auxiliary loss: mean square of deviations from their mean, before the last norm."""

    def compute_loss(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """The loss of the text and the auxiliary one."""
        streams: list[Tensor] = []
        last = model.transformer.ln_f
        hook = last.register_forward_pre_hook(lambda _, inputs: streams.append(inputs[0]))
        loss = super().compute_loss(model, *args, **kwargs)
        hook.remove()
        deviation = deviations(streams[0], last.eps)[..., 0]
        target = deviation[:, 1:].detach().mean()
        return loss + AUXILIARY_WEIGHT * (deviation - target).square().mean()


def folded(model: AeroForCausalLM) -> AeroForCausalLM:
    """The network without norms that a removed one has become, as `aero.convert` folds it."""
    config = AeroConfig.from_dict({**model.config.to_dict(), "layer_norm_epsilon": SWITCHED_OFF})
    network = AeroForCausalLM(config)
    state = {}
    for name, value in model.state_dict().items():
        plain = name.replace("attn.c_attn.norm.", "ln_1.").replace("c_attn.projection.", "c_attn.")
        if not plain.endswith(".deviation"):
            state[plain] = value
    for name, value in model.state_dict().items():
        if name.endswith(".deviation"):
            gain = name.replace("attn.c_attn.norm.", "ln_1.").replace(".deviation", ".weight")
            state[gain] = state[gain] * (SWITCHED_OFF**0.5 / value)
    network.load_state_dict(state)
    return aero.convert(network, "SM+R")


def windows(data: PreparedData, seed: int) -> tuple[Dataset[Any], Dataset[Any], Dataset[Any]]:
    """Those of the first half of the tokens, of the second, and of both."""
    context = load_recipe("demo").model.context_length
    half = TOKENS // context
    both = TrainingWindows(data.train, context, count=2 * half, seed=seed)
    return Subset(both, range(half)), Subset(both, range(half, 2 * half)), both


def build(label: str, seed: int) -> AeroForCausalLM:
    """A network of the demo's size that starts as the demo's do."""
    torch.manual_seed(seed)
    vocabulary = load_recipe("demo").data.vocabulary
    return AeroForCausalLM(
        AeroConfig.from_label(label, model="mini", vocab_size=vocabulary, embedding_scale=50.0)
    )


@cache
def trained_weights(seed: int, data: PreparedData) -> dict[str, Tensor]:
    """Those of SM+LN+R after the first half of the tokens."""
    model = build("SM+LN+R", seed)
    fit(model, windows(data, seed)[0], FIRST_RATE, seed)
    return model.state_dict()


def train(name: str, rate: float, seed: int, data: PreparedData) -> float | None:
    """Goes one way from the trained network; the loss of what a private run would compute."""
    _, second, both = windows(data, seed)
    if name == SCRATCH:
        model = build("SM+FN+R", seed)
        fit(model, both, rate, seed)
        return evaluated(model, data)
    model = build("SM+LN+R", seed)
    model.load_state_dict(trained_weights(seed, data))
    if name == AT_ONCE:
        model = aero.convert(model, "SM+FN+R").train()
    if name == ANNEALED:
        model = begin_annealing(model, "SM+FN+R")
        fit(model, second, rate, seed, callbacks=[AnnealingCallback()])
        return evaluated(finish_annealing(model), data)
    if name in (REMOVED, UNAIDED):
        trainer_class = EvenDeviations if name == REMOVED else AeroTrainer
        fit(model, second, rate, seed, callbacks=[Removal(model)], trainer_class=trainer_class)
        found, unfolded = evaluated(folded(model), data), evaluated(model, data)
        if None not in (found, unfolded) and abs(found - unfolded) > 1e-3:
            raise RuntimeError(f"folding moved the loss from {unfolded} to {found}")
        return found
    fit(model, second, rate, seed)
    return evaluated(model, data)


REMOVED, UNAIDED = "removal", "removal without its auxiliary loss"
ANNEALED, AT_ONCE, SCRATCH = "FN, annealed", "FN, at once", "FN, from scratch"
FAMILIES = {
    REMOVED: "removed",
    UNAIDED: "removed",
    ANNEALED: "foldable",
    AT_ONCE: "foldable",
    SCRATCH: "foldable",
    "LayerNorm kept": "layer",
}
PAGE = (
    "# LayerNorm removal beside the foldable norm\n\n"
    "`python -m benchmarks.paper.experiments.layer_norm_removal`: `SM+LN+R` at the demo's size (L "
    "6, d 128, H 4, T 128), embeddings of variance 1, trained for 400 steps of 2,048 tokens at "
    "4e-3 in bfloat16. Then it loses every LayerNorm in 400 steps more. From scratch `SM+FN+R` "
    "has all 800 steps. What is measured has its norms folded, but for the one that keeps "
    "LayerNorm. Seed 1 tries the rates of the second half, three more seeds judge. All intervals "
    "hold together with 95 %. [What differs](../../docs/explanation/related_work.md).\n\n"
    "{hardware}, commit {git_commit}.\n"
)

STUDY = Study("way", FAMILIES, REMOVED, train, PAGE)

if __name__ == "__main__":
    run_study(STUDY, __doc__)
