"""torch.vmap for the native operators: fold the mapped dimension into the batch, or loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Rule = Callable[..., Any]


def folded(operator: str) -> Rule:
    """The batching rule of an operator of attention rows: one call, all values in one batch."""
    native = getattr(torch.ops.aero, operator).default
    names = [argument.name for argument in native._schema.arguments]
    results = [result.name for result in native._schema.returns]

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        size = info.batch_size
        given = dict(zip(names, arguments, strict=True))
        dims = dict(zip(names, in_dims, strict=True))
        first = "q" if "q" in given else "scores"
        batch, heads, queries, _ = _shape(given[first], dims[first])
        rows = (batch, heads, queries)

        def fold(name: str, x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            if name == "temperature":
                return _fold_temperature(x, dims[name], size, rows)
            if name == "mask":
                return _fold_mask(x, dims[name], size, batch)
            return _mapped(x, dims[name], size).flatten(0, 1)

        def unfold(name: str, x: Tensor) -> Tensor:
            if x.dim() == 1:  # a gradient that is not wanted
                return x.new_empty(size, 0)
            x = x.reshape(size, batch, *x.shape[1:])
            if name != "dtemperature":
                return x
            shape = _shape(given["temperature"], dims["temperature"])
            return x.sum_to_size(size, *_of_rows(shape)).reshape(size, *shape)

        found = native(*(fold(name, x) for name, x in given.items()))
        return tuple(map(unfold, results, found)), (0,) * len(found)

    return rule


def looped(operator: str) -> Rule:
    """A batching rule: one call of `aero::operator` for each mapped value."""
    native = getattr(torch.ops.aero, operator).default

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        size = info.batch_size

        def one(x: Any, dim: int | None, i: int) -> Any:
            if dim is None:
                return x
            # Of no values there is still the shape of the results to be found.
            return x.select(dim, i) if size else x.new_ones(_shape(x, dim))

        calls = [
            native(*(one(x, dim, i) for x, dim in zip(arguments, in_dims, strict=True)))
            for i in range(max(size, 1))
        ]
        if isinstance(calls[0], Tensor):
            return torch.stack(calls)[:size], 0
        return tuple(torch.stack(c)[:size] for c in zip(*calls, strict=True)), (0,) * len(calls[0])

    return rule


def _shape(x: Tensor, dim: int | None) -> list[int]:
    # Of one mapped value.
    return [n for d, n in enumerate(x.shape) if d != dim]


def _mapped(x: Tensor, dim: int | None, size: int) -> Tensor:
    return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


def _of_rows(shape: list[int]) -> list[int]:
    # A temperature of any legal shape against [B, H, T]: one dimension is heads, not rows.
    return [1, *shape, 1] if len(shape) == 1 else [*[1] * (3 - len(shape)), *shape]


def _fold_temperature(
    temperature: Tensor, dim: int | None, size: int, rows: tuple[int, int, int]
) -> Tensor:
    mapped = _mapped(temperature, dim, size)
    mapped = mapped.reshape(size, *_of_rows(_shape(temperature, dim)))
    return mapped.expand(size, *rows).flatten(0, 1)


def _fold_mask(mask: Tensor, dim: int | None, size: int, batch: int) -> Tensor:
    if dim is None and (mask.dim() < 4 or mask.shape[0] == 1):
        return mask
    mapped = mask[None] if dim is None else mask.movedim(dim, 0)
    mapped = mapped[(slice(None), *[None] * (5 - mapped.dim()), ...)]
    return mapped.expand(size, batch, *mapped.shape[2:]).flatten(0, 1)
