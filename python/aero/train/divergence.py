"""The layer and head that went non-finite first: the guilty step runs again.

The search costs an extra forward (and perhaps backward) pass, but only once per run; watching costs
a look at the loss and the gradient norm, which are there anyway.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

# What `NonFinite.what` says where no single place is to blame.
NO_PLACE = ("norm of the gradients", "loss")
_LAYER = re.compile(r"(?:^|\.)h\.(\d+)(?:\.|$)")


@dataclass(frozen=True)
class NonFinite:
    """The first place with NaN or infinity.

    Attributes:
        layer: index of the layer, None outside of layers.
        head: index of the attention head, None where the place belongs to no single head.
        what: the place in words.
    """

    layer: int | None
    head: int | None
    what: str


def find_first_non_finite(
    model: nn.Module,
    batches: Sequence[dict[str, Tensor]],
    *,
    num_heads: int,
    head_dim: int,
) -> NonFinite:
    """Runs the batches of one optimizer step again and returns the first non-finite place.

    Forward places come before gradients; in the backward pass the layer nearest the loss comes
    first. Parameters, gradients and buffers are restored afterwards.

    Args:
        model: the network with the weights of that step.
        batches: its micro-batches, arguments of the model.
        num_heads: H.
        head_dim: d_k.

    Returns:
        The place; "norm of the gradients" if they are finite and their squares overflow; "loss" if
        running again shows nothing.
    """
    gradients = [parameter.grad for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = None
    try:
        with preserved_buffers(model):
            for batch in batches:
                found = _first_in_forward(model, batch, num_heads, head_dim)
                if found is not None:
                    return found
        return _first_gradient(model, num_heads) or _no_place(model)
    finally:
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient


@contextmanager
def preserved_buffers(model: nn.Module) -> Iterator[None]:
    """Restores all buffers at the end: a repeated forward must not move running statistics."""
    saved = [buffer.detach().clone() for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in zip(model.buffers(), saved, strict=True):
                buffer.copy_(value)


def _first_in_forward(
    model: nn.Module, batch: dict[str, Tensor], num_heads: int, head_dim: int
) -> NonFinite | None:
    """Runs forward and, if all is finite there, backward, so that gradients can be looked at."""
    found: list[NonFinite] = []

    def look(name: str, side: str, values: Any) -> None:
        for tensor in _float_tensors(values):
            if not found and not bool(torch.isfinite(tensor).all()):
                found.append(_described(name, side, tensor, num_heads, head_dim))

    def before(name: str) -> Callable[..., None]:
        return lambda module, args: look(name, "input", args)

    def after(name: str) -> Callable[..., None]:
        return lambda module, args, output: look(name, "output", output)

    handles = []
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(before(name)))
        handles.append(module.register_forward_hook(after(name)))
    try:
        loss = model(**batch).loss
    finally:
        for handle in handles:
            handle.remove()
    if found:
        return found[0]
    loss.backward()
    return None


def _described(name: str, side: str, tensor: Tensor, num_heads: int, head_dim: int) -> NonFinite:
    layer = _LAYER.search(name)
    head = None
    width = num_heads * head_dim
    # Inputs and outputs of the projections of attention are [.., H * d_k] or several of those.
    into_projection = side == "input" and name.endswith("attn.c_proj")
    # Attention without output projection; with one, that projection would have been found first.
    out_of_heads = side == "output" and name.endswith((".attn", "_attn"))
    if (into_projection or out_of_heads) and tensor.shape[-1] % width == 0:
        columns = (~torch.isfinite(tensor)).flatten(0, -2).any(dim=0).nonzero()[:, 0]
        head = int(columns.remainder(width).min()) // head_dim
    return NonFinite(int(layer.group(1)) if layer else None, head, f"{side} of {name or 'model'}")


def _first_gradient(model: nn.Module, num_heads: int) -> NonFinite | None:
    for name, parameter in reversed(list(model.named_parameters())):
        gradient = parameter.grad
        if gradient is None or bool(torch.isfinite(gradient).all()):
            continue
        layer, head = _LAYER.search(name), None
        if ("temperature" in name or "threshold" in name) and gradient.shape[0] == num_heads:
            bad = (~torch.isfinite(gradient)).reshape(num_heads, -1).any(dim=1)
            head = int(bad.nonzero()[0])
        return NonFinite(int(layer.group(1)) if layer else None, head, f"gradient of {name}")
    return None


def _no_place(model: nn.Module) -> NonFinite:
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    of_norm, of_loss = NO_PLACE
    is_finite = bool(torch.isfinite(nn.utils.get_total_norm(gradients)))
    return NonFinite(None, None, of_loss if is_finite else of_norm)


def _float_tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        if values.is_floating_point():
            yield values
    elif isinstance(values, dict):
        for value in values.values():
            yield from _float_tensors(value)
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from _float_tensors(value)
