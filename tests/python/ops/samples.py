"""Sample calls of the operators, from their sizes in letters; conftest.py lists them.

Letters: B batch, H heads, G key heads, T queries, S keys, D head width, L layers, C model width.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from aero import ops

from . import oracle


def statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    """Of temperature, entropy and logsumexp beside tensors of `dtype`."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Arguments of one call: the differentiable tensors by name, and everything else."""

    operator: str
    tensors: dict[str, Tensor]
    options: dict[str, Any]

    def run(self, backend: str = "native") -> tuple[Tensor, ...]:
        """Without the key of the largest score."""
        results = getattr(ops, self.operator)(**self.tensors, **self.options, backend=backend)
        results = results if isinstance(results, tuple) else (results,)
        return tuple(x for x in results if x.is_floating_point())

    def double(self) -> Inputs:
        return self.mapped(lambda x: x.detach().double().requires_grad_())

    def exact(
        self, cotangents: tuple[Tensor | None, ...] | None = None
    ) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """The oracle's results and gradients."""
        return oracle.run(self.operator, self.tensors, self.options, cotangents)

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Inputs:
        return dataclasses.replace(self, tensors={n: function(x) for n, x in self.tensors.items()})

    def gradients(
        self, results: tuple[Tensor, ...], cotangents: tuple[Tensor | None, ...]
    ) -> dict[str, Tensor]:
        """Gradients of all tensors; the results whose cotangent is None are not used."""
        used = [
            (r, c.to(r.dtype)) for r, c in zip(results, cotangents, strict=True) if c is not None
        ]
        gradients = torch.autograd.grad(
            [r for r, _ in used],
            list(self.tensors.values()),
            [c for _, c in used],
            allow_unused=True,
            materialize_grads=True,
        )
        return dict(zip(self.tensors, gradients, strict=True))


@dataclasses.dataclass(frozen=True)
class Sample:
    """A named call that can be made in any dtype, always with the same numbers."""

    operator: str
    name: str
    build: Callable[[Draw], tuple[dict[str, Tensor], dict[str, Any]]]
    small: bool = True
    is_on_cuda: bool = True  #: whether the kernels for CUDA compute it

    def inputs(self, dtype: torch.dtype) -> Inputs:
        tensors, options = self.build(Draw(zlib.crc32(self.name.encode()), dtype))
        return Inputs(self.operator, {n: x.requires_grad_() for n, x in tensors.items()}, options)

    def cotangents(self, results: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        draw = Draw(1, torch.float64)
        return tuple(draw.normal(*r.shape).to(r.dtype) for r in results)


class Draw:
    """Random tensors: `dtype` for the large ones, the statistics' dtype where said so."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.dtype = dtype
        self.statistics = statistics_dtype(dtype)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64).to(self.dtype)

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        x = torch.rand(shape, generator=self.generator, dtype=torch.float64)
        return (low + (high - low) * x).to(self.statistics)

    def booleans(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator) < 0.6

    def temperature(self, shape: str, rows: dict[str, int]) -> Tensor:
        """Signs differ from value to value."""
        sizes = [1] if shape == "1" else [rows[letter] for letter in shape]
        values = self.uniform(0.3, 1.5, *sizes)
        return torch.where(self.booleans(*sizes), values, -values)

    def heads(self, layout: str, *shape: int) -> Tensor:
        """[B, heads, rows, D] values in the named memory layout."""
        x = self.normal(*shape)
        if layout == "BTHD":  # as models pass it: a transposed view
            return x.transpose(1, 2).contiguous().transpose(1, 2)
        if layout == "column":  # last dimension not contiguous
            return x.transpose(2, 3).contiguous().transpose(2, 3)
        if layout == "sliced":  # part of a fused query-key-value tensor
            wide = torch.cat([x, x.new_zeros(x.shape)], dim=-1)
            return wide[..., : shape[-1]]
        return x


MASKS: dict[str, Callable[[Draw, dict[str, int]], Tensor]] = {
    "full": lambda draw, n: draw.booleans(n["B"], n["H"], n["T"], n["S"]),
    "padding": lambda draw, n: torch.arange(n["S"]) >= torch.arange(n["B"])[:, None, None, None],
    "keys": lambda draw, n: draw.booleans(n["S"]),
    "transposed": lambda draw, n: draw.booleans(n["S"], n["T"]).T,
    "nothing": lambda draw, n: torch.zeros(1, 1, 1, 1, dtype=torch.bool),
}


def attention(
    name: str,
    *,
    temperature: str | None = None,
    mask: str | None = None,
    layout: str = "BHTD",
    small: bool = True,
    is_causal: bool = False,
    scale: float | None = None,
    **sizes: int,
) -> list[Sample]:
    """The sample for attention_entropy and, with the same rows, for temperature_softmax."""
    n = {"B": 2, "H": 2, "T": 5, "S": 7, "D": 3} | sizes
    n.setdefault("G", n["H"])
    n.setdefault("Dv", n["D"])

    def common(draw: Draw) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {} if temperature is None else {"temperature": draw.temperature(temperature, n)}
        drawn = None if mask is None else MASKS[mask](draw, n)
        return tensors, {"mask": drawn, "is_causal": is_causal}

    def fused(draw: Draw) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, options = common(draw)
        q = draw.heads(layout, n["B"], n["H"], n["T"], n["D"])
        k, v = (draw.heads(layout, n["B"], n["G"], n["S"], n[width]) for width in ("D", "Dv"))
        return {"q": q, "k": k, "v": v, **tensors}, {**options, "scale": scale}

    def softmax(draw: Draw) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, options = common(draw)
        scores = draw.heads(layout, n["B"], n["H"], n["T"], n["S"])
        return {"scores": scores, **tensors}, options

    return [
        Sample("attention_entropy", name, fused, small),
        Sample("temperature_softmax", name, softmax, small),
    ]


def wide(name: str, **rest: Any) -> Sample:
    """The sample for attention_entropy of widths that CUDA does not take."""
    return dataclasses.replace(attention(name, **rest)[0], is_on_cuda=False)


def variant(
    name: str, *, learned: dict[str, str], others: dict[str, Any] | None = None, **rest: Any
) -> Sample:
    """The sample for attention_entropy with more arguments.

    `learned`: those with gradients, and their shapes in letters, 1 for one; `others`: the others.
    """
    sample = attention(name, **rest)[0]

    def build(draw: Draw) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, options = sample.build(draw)
        sizes = dict(zip("BHTS", (*tensors["q"].shape[:3], tensors["k"].shape[2]), strict=True))
        for argument, letters in learned.items():
            shape = [sizes.get(letter, 1) for letter in letters]
            drawn = draw.normal(*shape) if argument == "bias" else draw.uniform(-1, 1, *shape)
            tensors[argument] = drawn
        return tensors, {**options, **(others or {})}

    is_on_cuda = not learned.keys() & {"bias", "alibi_slopes"}
    return dataclasses.replace(sample, build=build, is_on_cuda=is_on_cuda)


def regularization(name: str, *, thresholds: float = 0.5, **options: Any) -> Sample:
    layers, batch, heads, queries = options.pop("sizes", (2, 3, 2, 5))

    def build(draw: Draw) -> tuple[dict[str, Tensor], dict[str, Any]]:
        entropies = draw.uniform(0, 2, layers, batch, heads, queries)
        drawn = dict(options)
        if drawn.pop("masked", False):
            drawn["row_mask"] = draw.booleans(batch, queries)
            drawn["row_mask"][0] = False  # a batch entry of padding alone
        if drawn.pop("counted", False):
            rows = torch.rand(batch, queries, generator=draw.generator)
            drawn["visible_keys"] = (rows * (queries + 1)).long()
        return {
            "entropies": entropies,
            "thresholds": draw.uniform(thresholds - 0.3, thresholds + 0.3, layers, heads),
        }, drawn

    return Sample("entropy_regularization", name, build)


def ffn(
    name: str, *shape: int, scalar: bool = False, layout: str = "", small: bool = True
) -> Sample:
    width = shape[-1]

    def build(draw: Draw) -> tuple[dict[str, Tensor], dict[str, Any]]:
        x, weight = draw.normal(*shape), draw.normal(width, width) / max(width, 1) ** 0.5
        if layout == "transposed":
            x = x.transpose(0, 1).contiguous().transpose(0, 1)
            weight = weight.T.contiguous().T
        sizes = () if scalar else (1,)
        return {
            "x": x,
            "weight": weight.to(draw.dtype),
            "bias": draw.normal(width),
            "alpha": draw.uniform(0.5, 2, *sizes),
            "beta": -draw.uniform(0.5, 2, *sizes),
        }, {}

    return Sample("scaled_ffn", name, build, small)


def packed(*starts: list[int]) -> dict[str, Any]:
    """Where sequences begin, of both or of queries and keys."""
    tensors = tuple(torch.tensor(x, dtype=torch.int32) for x in starts)
    return {"cu_seqlens": tensors if len(tensors) == 2 else tensors[0]}
