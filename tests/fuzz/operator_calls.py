"""Random calls of the four operators, forward and backward, against the tests' oracle.

A call may have any dtype, size, memory layout of every tensor argument and of every gradient that
comes in, temperature, mask, number of threads, instruction set and backend. Every entry of every
result must be as near to the oracle's as rounding allows (error_bounds.py). One call in twenty has
one argument that does not fit: it must end in one line of ValueError.

Letters: B batch, H heads, G key heads, T queries, S keys, D head width, L layers, C model width.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import aero.ops
from aero._library import cpu_isa

sys.path.append(str(Path(__file__).resolve().parents[1] / "python" / "ops"))

import oracle
from bad_calls import spoil
from drawing import DTYPES, Draw
from error_bounds import Array, attention, float64, regularization, scaled_ffn, softmax
from judging import decided, judge, judge_largest, plain_scores


def _instruction_sets() -> list[str]:
    found = []
    for name in ("scalar", "avx2", "avx512", "avx512bf16", "amx"):
        os.environ["AERO_CPU_ISA"] = name
        found += [name] if cpu_isa() == name else []
    return found


INSTRUCTION_SETS = _instruction_sets()


@dataclasses.dataclass
class Call:
    """One call: the tensors that have gradients, everything else, and how to judge the results."""

    operator: str
    tensors: dict[str, Tensor]
    options: dict[str, Any]
    bounds: Callable[[list[Array]], dict[str, Array]]
    shapes: list[tuple[int, ...]]  # of the results
    ordinary: bool = True  # no NaN and no infinity among the operands
    judged_with: dict[str, Any] | None = None  # the oracle's options, where they are others
    #: Of attention: scores [B, H, T, S], -inf where hidden, and how far those of a row may be off.
    scores: Callable[[], tuple[Array, Array]] | None = None

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Call:
        options = {n: function(x) if isinstance(x, Tensor) else x for n, x in self.options.items()}
        tensors = {name: function(x) for name, x in self.tensors.items()}
        return dataclasses.replace(self, tensors=tensors, options=options)

    def __str__(self) -> str:
        def word(x: Any) -> str:
            if not isinstance(x, Tensor):
                return repr(x)
            return (
                f"{str(x.dtype)[6:]}{list(x.shape)} strides {list(x.stride())}+{x.storage_offset()}"
            )

        arguments = {**self.tensors, **self.options}
        return f"{self.operator}({', '.join(f'{n}={word(x)}' for n, x in arguments.items())})"


# --- drawing --------------------------------------------------------------------------------------


def statistics(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def rows_of(draw: Draw, heads: int) -> tuple[int, int, int, int]:
    batch = draw.choice((0, 1, 1, 1, 2, 2, 3)) if draw.chance(0.3) else draw.randint(1, 2)
    return batch, heads, draw.size(), draw.size()


def draw_softmax(draw: Draw) -> Call:
    dtype = draw.choice(DTYPES)
    sizes = rows_of(draw, draw.choice((0, 1, 1, 2, 2, 3, 4)))
    special = 0.06 if draw.chance(0.5) else 0.0
    size = draw.choice((1.0, 1.0, 1.0, 30.0, 1e4))
    tensors = {"scores": draw.operand(sizes, dtype, size, special)}
    return _rows(draw, "temperature_softmax", tensors, sizes, dtype, {})


def draw_attention(draw: Draw) -> Call:
    dtype = draw.choice(DTYPES)
    groups, per_group = draw.choice((0, 1, 1, 2, 3)), draw.choice((1, 1, 2, 3))
    batch, heads, queries, keys = rows_of(draw, groups * per_group)
    groups = draw.choice((0, 1, 2)) if heads == 0 else groups
    width = draw.size() or 1
    if draw.chance(0.03):
        width = draw.choice((80, 96, 100, 127, 128, 129, 192, 255, 256, 257, 320, 512))
    value_width = (draw.size() or 1) if draw.chance(0.3) else width
    special = 0.02 if draw.chance(0.3) else 0.0
    size = draw.choice((1.0, 1.0, 1.0, 1.0, 8.0, 1e-3))
    tensors = {
        "q": draw.operand((batch, heads, queries, width), dtype, size, special),
        "k": draw.operand((batch, groups, keys, width), dtype, 1.0, special),
        "v": draw.operand((batch, groups, keys, value_width), dtype),
    }
    scale = draw.choice((None, None, None, 1.0, 0.3, -0.7, 0.0, 1e-3, 50.0))
    sizes = (batch, heads, queries, keys)
    return _rows(draw, "attention_entropy", tensors, sizes, dtype, {"scale": scale})


def _rows(
    draw: Draw, operator: str, tensors: dict[str, Tensor], sizes: tuple[int, int, int, int],
    dtype: torch.dtype, options: dict[str, Any],
) -> Call:  # fmt: skip
    temperature = draw.temperature(sizes[:3], statistics(dtype))
    if temperature is not None:
        tensors["temperature"] = temperature
    options = {"mask": draw.mask(sizes), "is_causal": draw.chance(0.4), **options}
    ordinary = all(bool(x.isfinite().all()) for x in tensors.values())

    def bounds(cotangents: list[Array]) -> dict[str, Array]:
        visible = oracle.visible_keys(sizes, options["mask"], options["is_causal"]).numpy()
        t = temperature
        if t is not None:  # as it is after the rounding that the docstring announces
            t = t.detach().to(statistics(dtype)).double()
        t_rows = oracle.of_rows(t, torch.empty(sizes, dtype=torch.float64)).numpy()
        with np.errstate(all="ignore"):
            if operator == "temperature_softmax":
                return softmax(tensors, visible, t_rows, cotangents)[1]
            scale = options["scale"]
            scale = tensors["q"].shape[3] ** -0.5 if scale is None else scale
            return attention(tensors, visible, t_rows, scale, cotangents)[1]

    softmaxes = operator == "temperature_softmax"
    first = sizes if softmaxes else (*sizes[:3], tensors["v"].shape[3])
    call = Call(operator, tensors, options, bounds, [first, sizes[:3], sizes[:3]], ordinary)
    call.scores = None if softmaxes else lambda: plain_scores(rounded(call), call.options)
    return call


def draw_penalty(draw: Draw) -> Call:
    dtype = draw.choice((torch.float32, torch.float64))
    layers, batch, heads = (draw.choice((0, 1, 1, 2, 3)) for _ in range(3))
    queries = draw.size()
    by_row, size = draw.chance(0.5), draw.choice((1.0, 1.0, 1.0, 1e-3, 1e6))
    entropies = draw.laid_out(
        torch.from_numpy(draw.numbers.uniform(0, 5 * size, (layers, batch, heads, queries))).to(
            dtype
        )
    )
    tensors = {"entropies": entropies, "thresholds": draw.operand((layers, heads), dtype)}
    options: dict[str, Any] = {
        "margin": draw.choice((0.0, 0.0, 0.1, 0.1, 0.5, 2.0)),
        "reduction": draw.choice(("position_sum", "query_mean")),
        "max_entropy": "log_visible" if by_row else "log_context",
    }
    if by_row and draw.chance(0.6):
        counts = torch.from_numpy(draw.numbers.integers(0, 99, (batch, queries)))
        kind = draw.choice((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8))
        options["visible_keys"] = draw.laid_out(counts.to(kind))
    elif not by_row and (queries == 0 or draw.chance(0.6)):
        options["context_length"] = draw.choice((1, 2, 7, 128, 10**6))
    if draw.chance(0.5):
        options["row_mask"] = draw.booleans((batch, queries), draw.choice((0.0, 0.3, 0.7, 1.0)))

    def bounds(cotangents: list[Array]) -> dict[str, Array]:
        visible = options.get("visible_keys")
        if not by_row:
            counts = np.full((batch, queries), options.get("context_length", queries))
        elif visible is None:
            counts = np.broadcast_to(np.arange(1, queries + 1), (batch, queries))
        else:
            counts = visible.numpy().astype(np.int64)
        mask = options.get("row_mask")
        counted = np.ones((batch, queries), bool) if mask is None else mask.numpy()
        largest = np.log(np.maximum(counts, 1.0))
        means = options["reduction"] == "query_mean"
        dloss = float(cotangents[0])
        return regularization(tensors, largest, counted, options["margin"], means, dloss)

    return Call("entropy_regularization", tensors, options, bounds, [()])


def draw_ffn(draw: Draw) -> Call:
    dtype = draw.choice(DTYPES)
    own = dtype
    if dtype == torch.float32 and draw.chance(0.4):
        own = draw.choice((torch.bfloat16, torch.float16))
    width = draw.size() if draw.chance(0.98) else draw.choice((96, 128, 200))
    shape = [draw.choice((0, 1, 2, 3, 5, 17)) for _ in range(draw.choice((0, 1, 1, 2, 3)))]
    scalar: Any = draw.choice(((), (1,)))
    size = draw.choice((1.0, 1.0, 1.0, 1e-3, 30.0))
    scales = draw.numbers.uniform(0.3, 2, 2) * np.array([draw.choice((1, 1, -1, 1e-3, 100)), -1])
    kind = statistics(dtype) if draw.chance(0.9) else draw.choice((torch.float64, torch.bfloat16))
    tensors = {
        "x": draw.operand((*shape, width), dtype, size),
        "weight": draw.operand((width, width), own, max(width, 1) ** -0.5),
        "bias": draw.operand((width,), own),
        **{
            name: draw.laid_out(torch.full(scalar, float(value), dtype=kind))
            for name, value in zip(("alpha", "beta"), scales, strict=True)
        },
    }

    def bounds(cotangents: list[Array]) -> dict[str, Array]:
        return scaled_ffn(tensors, cotangents[0])

    return Call("scaled_ffn", tensors, {}, bounds, [(*shape, width)])


DRAWS = (draw_softmax, draw_attention, draw_attention, draw_penalty, draw_ffn)


# --- calling --------------------------------------------------------------------------------------


def called(
    call: Call, backend: str, wanted: list[str], cotangents: list[Tensor | None]
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Results, and the gradients of the tensors that are wanted."""
    leaves = {name: x.detach() for name, x in call.tensors.items()}
    for name in wanted:
        leaves[name].requires_grad_()
    operator = getattr(aero.ops, call.operator)
    torch.manual_seed(0)  # of the dropout
    results = operator(**leaves, **call.options, backend=backend)
    results = list(results) if isinstance(results, tuple) else [results]
    used = [(r, c) for r, c in zip(results, cotangents, strict=False) if c is not None]
    used = [(r, c) for r, c in used if r.requires_grad]
    if not used:
        return results, {}
    gradients = torch.autograd.grad(
        [r for r, _ in used], [leaves[name] for name in wanted], [c for _, c in used],
        allow_unused=True, materialize_grads=True,
    )  # fmt: skip
    return results, dict(zip(wanted, gradients, strict=True))


def check(draw: Draw, call: Call) -> int:
    """Calls, in both directions, and compares; returns the number of calls."""
    wanted = [name for name in call.tensors if draw.chance(0.8)]
    if not call.ordinary:
        wanted = []  # what a NaN does to gradients of other rows is nobody's contract
    own = next(iter(call.tensors.values())).dtype
    kinds = [own] + [statistics(own)] * (len(call.shapes) - 1)
    cotangents = [
        draw.operand(shape, kind) if wanted and draw.chance(0.8) else None
        for shape, kind in zip(call.shapes, kinds, strict=True)
    ]
    if call.scores is not None and len(call.shapes) == 4 and cotangents[3] is not None:
        cotangents[3] = cotangents[3].masked_fill(~decided(*call.scores()), 0)
    zeros = [np.zeros(shape) if c is None else float64(c)
             for shape, c in zip(call.shapes, cotangents, strict=True)]  # fmt: skip
    errors = call.bounds(zeros)
    exact, gradients = oracle.run(
        call.operator, rounded(call),
        call.options if call.judged_with is None else call.judged_with,
        cotangents if wanted else None,
    )  # fmt: skip
    calls = 0
    for _ in range(5):  # the oracle takes most of the time
        calls += compare(draw, call, wanted, cotangents, errors, (exact, gradients))
        call = call.mapped(draw.arranged)
        cotangents = [None if c is None else draw.arranged(c) for c in cotangents]
    return calls


def compare(
    draw: Draw, call: Call, wanted: list[str], cotangents: list[Tensor | None],
    errors: dict[str, Array], exact: tuple[tuple[Tensor, ...], dict[str, Tensor]],
) -> int:  # fmt: skip
    """One call there and back, beside what it must give; returns 2, or 1 without gradients."""
    backend = "native" if draw.chance(0.9) else "reference"
    threads = draw.choice((2, 3)) if draw.chance(0.03) else 1
    isa = os.environ["AERO_CPU_ISA"] = draw.choice(INSTRUCTION_SETS)
    torch.set_num_threads(threads)
    try:
        results, computed = called(call, backend, wanted, cotangents)
        if draw.chance(0.03):
            again, computed_again = called(call, backend, wanted, cotangents)
            for first, second in zip(
                [*results, *computed.values()], [*again, *computed_again.values()], strict=True
            ):
                assert torch.equal(first.nan_to_num(7), second.nan_to_num(7)), (
                    "unlike a second call"
                )
        torch.set_num_threads(1)
        if call.options.get("return_max_logits"):
            assert call.scores is not None
            *results, largest_key = results
            judge_largest(*call.scores(), results[3], largest_key)
            results = results[: len(exact[0])]
        for number, (got, want) in enumerate(zip(results, exact[0], strict=True)):
            judge(f"result {number}", got, want, errors[f"result {number}"])
        for name, got in computed.items():
            judge(f"gradient of {name}", got, exact[1][name], errors[name])
            assert got.dtype == call.tensors[name].dtype, f"gradient of {name} is {got.dtype}"
        own = next(iter(call.tensors.values())).dtype
        kinds = [own] + [statistics(own)] * (len(results) - 1)
        assert [r.dtype for r in results] == kinds, f"results are {[r.dtype for r in results]}"
    except Exception as error:
        text = " ".join(str(error).split())
        raise AssertionError(
            f"{call} {backend} on {isa} with {threads} threads: {type(error).__name__}: {text}"
        ) from error
    return 1 + bool(computed)


def rounded(call: Call) -> dict[str, Tensor]:
    """The tensors with scalars and temperatures in the dtype that they are rounded to."""
    kind = statistics(next(iter(call.tensors.values())).dtype)
    small = ("temperature", "alpha", "beta", "alibi_slopes", "sinks")
    return {name: x.to(kind) if name in small else x for name, x in call.tensors.items()}


def attack(seed: int) -> int:
    draw = Draw(seed)
    call = draw.choice(DRAWS)(draw)
    if call.operator == "attention_entropy" and draw.chance(0.4):
        call.judged_with = dict(call.options)
        call.options["return_max_logits"] = True
    if not draw.chance(0.05):
        return check(draw, call)
    spoil(draw, call)
    return 1
