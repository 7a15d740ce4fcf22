"""The FFNs that a trained network can do without, measured without training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from aero.models import AeroForCausalLM
from aero.models.causal_lm import carry_over
from aero.nn.linear import in_mode

Measure = Callable[[AeroForCausalLM], float]


@dataclass(frozen=True)
class PrunableFfns:
    """How much each FFN of a network is worth.

    Attributes:
        loss: of the network as it is, nats per token.
        increases: by layer, how much the loss grows without this FFN alone.
        deepest_increases: at index K - 1, how much it grows without the K deepest FFNs together;
            ends with the first one beyond the bound.
        max_loss_increase: the bound, nats per token.
    """

    loss: float
    increases: Mapping[int, float]
    deepest_increases: tuple[float, ...]
    max_loss_increase: float

    @property
    def deepest(self) -> int:
        """How many of the deepest FFNs can go together: K for `prune_ffn(model, deepest=K)`."""
        for count, increase in enumerate(self.deepest_increases):
            if not increase <= self.max_loss_increase:  # a NaN is beyond every bound
                return count
        return len(self.deepest_increases)

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers whose FFN can go alone, cheapest first."""
        harmless = [n for n, value in self.increases.items() if value <= self.max_loss_increase]
        return tuple(sorted(harmless, key=lambda layer: self.increases[layer]))

    def to_text(self) -> str:
        """The scores as a table."""
        lines = ["layer  loss without its FFN  without all from here on"]
        deepest_first = sorted(self.increases, reverse=True)
        together = {deepest_first[i]: value for i, value in enumerate(self.deepest_increases)}
        for layer, increase in sorted(self.increases.items()):
            joint = f"{together[layer]:+.4f}" if layer in together else "not measured"
            lines.append(f"{layer:5}  {increase:+20.4f}  {joint:>24}")
        return "\n".join(
            [
                *lines,
                f"loss {self.loss:.4f} with all FFNs; within {self.max_loss_increase:g} nats the "
                f"{self.deepest} deepest can go",
            ]
        )


def select_prunable_ffns(
    model: nn.Module,
    evaluation: Measure | Iterable[Tensor | Mapping[str, Any]],
    *,
    max_loss_increase: float = 0.02,
) -> PrunableFfns:
    """Measures the loss without each FFN and without the deepest ones, with no training.

    The score leaves out the gain of later training: it orders layers and finds those that cost
    nothing. The paper's own way is to train with more and more FFNs pruned: `_i1`, `_i2` and so on
    in the label.

    Args:
        model: a network that `aero.convert` takes; left unchanged.
        evaluation: held-out batches, token tensors [B, T] or arguments of the model as dictionaries
            with `input_ids`; or a function that returns a network's loss.
        max_loss_increase: how much worse a network may be, nats per token.

    Returns:
        The scores.

    Raises:
        ValueError: a negative bound, no batch, or a network without FFNs.

    Example:
        >>> import torch
        >>> from aero import AeroForCausalLM
        >>> from aero.conversion import select_prunable_ffns
        >>> from aero.models import AeroConfig
        >>> model = AeroForCausalLM(AeroConfig.from_label("SM+ScFuFFN", model="tiny"))
        >>> for block in model.transformer.blocks():  # FFNs that write nothing
        ...     _ = torch.nn.init.zeros_(block.mlp.weight)
        >>> select_prunable_ffns(model, [torch.randint(256, (2, 32))]).deepest
        2
    """
    if not max_loss_increase >= 0:
        raise ValueError(
            f"select_prunable_ffns: max_loss_increase must be >= 0, got {max_loss_increase}"
        )
    network = carry_over(model)
    present = [i for i, block in enumerate(network.transformer.blocks()) if block.mlp is not None]
    if not present:
        raise ValueError(f"select_prunable_ffns: {network.config.spec.label} has no FFN left")
    measure = evaluation if callable(evaluation) else _mean_loss_on(evaluation)
    with in_mode(network):
        loss = measure(network)
        increases, together = {}, []
        for layer in present:
            with _without_ffns(network, [layer]):
                increases[layer] = measure(network) - loss
        for count in range(1, len(present) + 1):
            with _without_ffns(network, present[-count:]):
                together.append(measure(network) - loss)
            if not together[-1] <= max_loss_increase:
                break
    return PrunableFfns(loss, increases, tuple(together), max_loss_increase)


@contextmanager
def _without_ffns(network: AeroForCausalLM, layers: Iterable[int]) -> Iterator[None]:
    blocks = [network.transformer.blocks()[layer] for layer in layers]
    kept = [(block.mlp, block.gain) for block in blocks]
    for block in blocks:
        block.mlp = block.gain = None
    try:
        yield
    finally:
        for block, (mlp, gain) in zip(blocks, kept, strict=True):
            block.mlp, block.gain = mlp, gain


def _mean_loss_on(batches: Iterable[Tensor | Mapping[str, Any]]) -> Measure:
    """The mean over all predicted tokens, -100 in `labels` left out."""
    stored = [dict(b) if isinstance(b, Mapping) else {"input_ids": b} for b in batches]
    if not stored:
        raise ValueError("select_prunable_ffns: evaluation must hold at least one batch, got none")

    @torch.no_grad()
    def measure(network: AeroForCausalLM) -> float:
        total, count = 0.0, 0
        for batch in stored:
            inputs = {n: v.to(network.device) for n, v in batch.items()}
            inputs.setdefault("labels", inputs["input_ids"])
            tokens = int(inputs["labels"][:, 1:].ne(-100).sum())
            if tokens:
                total += float(network(**inputs).lm_loss) * tokens
                count += tokens
        if not count:
            raise ValueError(
                "select_prunable_ffns: evaluation must hold a predicted token, got none; give "
                "sequences of two tokens or more whose labels are not all -100"
            )
        return total / count

    return measure
