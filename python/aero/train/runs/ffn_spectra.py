"""The spectra of FFN activations while a network runs, see `aero.analysis.spectra`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor

from aero.analysis.spectra import describe_spectra, spectrum
from aero.models import AeroForCausalLM
from aero.nn import FeedForward

Spectra = list[dict[str, float | None] | None]

#: Of a record during training: two windows of the demo. Products of tokens are then smaller than
#: those of channels, and a record takes less than 1 % of the steps between two of the demo.
RECORDED_TOKENS = 256


@contextmanager
def watched_spectra(model: AeroForCausalLM, *, most_tokens: int) -> Iterator[Spectra]:
    """Fills a list with the numbers of every layer's FFN, from the next forward pass alone.

    None stands for a layer without FFN, or with one of a single layer, which has no activation.

    Args:
        model: run once inside of the context.
        most_tokens: later ones of the pass are left out.
    """
    layers = model.config.spec.num_layers
    found: Spectra = [None] * layers
    before: dict[int, Any] = {}
    handles = []

    def watch(layer: int, ffn: FeedForward) -> None:
        def see_before(module: Any, args: Any, output: Tensor) -> None:
            if found[layer] is None:
                before[layer] = _spectrum_of(output, most_tokens)

        def see_after(module: Any, args: tuple[Tensor, ...]) -> None:
            if layer in before:
                after = _spectrum_of(args[0], most_tokens)
                found[layer] = describe_spectra(before.pop(layer), after)

        handles.append(ffn.c_fc.register_forward_hook(see_before))
        handles.append(ffn.c_proj.register_forward_pre_hook(see_after))

    for layer, block in enumerate(model.transformer.h):
        for module in block.modules():
            if isinstance(module, FeedForward):
                watch(layer, module)
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _spectrum_of(activations: Tensor, most_tokens: int) -> Any:
    rows = activations.detach().flatten(0, -2)[:most_tokens].float()
    rows = rows - rows.mean(dim=0)
    tokens, channels = rows.shape
    products = rows.T @ rows if tokens >= channels else rows @ rows.T
    return spectrum(np.asarray(products.cpu()), channels)
