"""Calls with one argument that does not fit: each must end in one line of ValueError."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from drawing import Draw
from torch import Tensor

import aero.ops

# What is done to one tensor; None where it cannot be done to this one.
CHANGES: dict[str, Callable[[Draw, Tensor], Any]] = {
    "one more dimension": lambda draw, x: x[None],
    "two more dimensions": lambda draw, x: x[None, None],
    "more entries": lambda draw, x: grown(x, draw) if x.dim() else None,
    "whole numbers": lambda draw, x: torch.zeros(x.shape, dtype=torch.int64),
    "complex numbers": lambda draw, x: torch.zeros(x.shape, dtype=torch.complex64),
    "eight bits": lambda draw, x: torch.zeros(x.shape, dtype=torch.float8_e4m3fn),
    "sparse": lambda draw, x: torch.ones(x.shape, dtype=x.dtype).to_sparse() if x.dim() else None,
    "on meta": lambda draw, x: x.to("meta"),
    "a number": lambda draw, x: 1.0,
    "a list": lambda draw, x: x.tolist(),
    "an array": lambda draw, x: x.double().numpy(),
    "text": lambda draw, x: "0",
}


def grown(x: Tensor, draw: Draw) -> Tensor:
    shape = list(x.shape)
    shape[draw.randrange(x.dim())] += draw.choice((1, 97))
    return torch.ones(shape, dtype=x.dtype)


def values_nobody_may_pass(draw: Draw, call: Any) -> tuple[str, Any] | None:
    """A temperature or alpha of the right shape with one value that has no meaning."""
    name = {"scaled_ffn": "alpha"}.get(call.operator, "temperature")
    tensor = call.tensors.get(name)
    rows = next(iter(call.tensors.values())).shape[:3]
    if tensor is None or not tensor.numel() or (name == "temperature" and 0 in rows):
        return None  # no row, no value that is looked at
    spoiled = tensor.clone(memory_format=torch.contiguous_format)
    bad = 0.0 if name == "alpha" else draw.choice((0.0, -0.0, math.nan))
    spoiled.view(-1)[draw.randrange(spoiled.numel())] = bad
    return name, spoiled


def fits(call: Any, name: str, changed: Tensor, before: Tensor) -> bool:
    """Whether a tensor of another shape is as good as the one before."""
    if changed.dtype != before.dtype or changed.device != before.device or changed.is_sparse:
        return False
    shape = tuple(changed.shape)
    if name == "x":
        return shape[-1:] == tuple(before.shape[-1:])
    if name in ("q", "scores", "entropies") and len(shape) == 4:
        return True  # the others may fit these sizes too
    if name == "v" and len(shape) == 4:  # of any width
        return shape[:3] == tuple(before.shape[:3])
    if name in ("alpha", "beta"):
        return shape in ((), (1,))
    if name in ("temperature", "mask"):
        own, keys = next(iter(call.tensors.values())).shape[:3], call.tensors.get("k")
        full = (*own, (call.tensors["scores"].shape[3] if keys is None else keys.shape[2]))
        if name == "temperature":
            return shape in ((), (1,), full[1:2], full[1:3], full[:3])
        ends = zip(reversed(shape), reversed(full), strict=False)
        return len(shape) <= 4 and all(n in (1, m) for n, m in ends)
    return shape == tuple(before.shape)


def spoil(draw: Draw, call: Any) -> None:
    """Changes one argument of a call that was fine and sees that it is refused."""
    arguments = {**call.tensors, **{n: x for n, x in call.options.items() if isinstance(x, Tensor)}}
    change = draw.choice((*CHANGES, "bad value", "backend"))
    if change == "backend":
        name, bad = "backend", draw.choice(("cuda", "", None, "Native"))
    elif change == "bad value":
        found = values_nobody_may_pass(draw, call)
        if found is None:
            return
        name, bad = found
    else:
        name = draw.choice(list(arguments))
        if change in ("whole numbers", "eight bits") and name in IS_CAST:
            return
        if change == "eight bits" and name == "mask":
            return  # numbers to add to the scores
        if change == "on meta" and len(arguments) == 1:
            return  # all of a call may lie there
        bad = CHANGES[change](draw, arguments[name])
        if bad is None or (isinstance(bad, Tensor) and fits(call, name, bad, arguments[name])):
            return
    changed = {**call.tensors, **call.options, name: bad}
    if draw.chance(0.5):
        changed = {
            n: x.detach().requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x
            for n, x in changed.items()
        }
    try:
        getattr(aero.ops, call.operator)(**changed)
    except ValueError as error:
        text = str(error)
        assert text.startswith(f"{call.operator}: "), f"{change} of {name}: {text}"
        assert "\n" not in text and len(text) < 500, f"{change} of {name}: {text}"
    else:
        raise AssertionError(f"{call}: {change} of {name} was accepted")


# Any real number is rounded to the dtype of the statistics, and counts are whole anyway.
IS_CAST = ("temperature", "alpha", "beta", "thresholds", "visible_keys")
