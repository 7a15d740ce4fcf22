"""Random calls of the four operators under torch's transforms, against the tests' oracle.

Attention is drawn with and without its variants.

Every transform of docs/reference/transforms.md that needs no compiler is applied to a call with
random sizes, layouts, masks and options, and in the same way to the oracle, which torch
differentiates itself. `vmap` also goes over any dimension of some arguments and not of others.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import operator_calls
import oracle
import torch
import transforms
from drawing import Draw
from judging import decided
from torch import Tensor
from torch.func import grad, vmap
from torch.utils._pytree import tree_leaves
from variant_calls import draw_variants

import aero.ops


class Mild(Draw):
    """Small sizes, and numbers whose third derivatives a float64 still knows."""

    def size(self, most: int = 70) -> int:
        return self.choice((1, 2, 3, 3, 4, 5))

    def operand(
        self, shape: Sequence[int], dtype: torch.dtype, size: float = 1.0, special: float = 0.0
    ) -> Tensor:
        return self.laid_out(self.normal(shape, torch.float64))

    def temperature(self, sizes: tuple[int, int, int], dtype: torch.dtype) -> Tensor | None:
        t = super().temperature(sizes, torch.float64)
        return None if t is None else t.double().sign() * (0.7 + t.double().abs() % 1)


def drawn(draw: Draw) -> operator_calls.Call:
    """A call in float64, without dimensions of zero and small enough for a Hessian."""
    numbers = 0
    while not 0 < numbers < 300:
        call = draw.choice((*operator_calls.DRAWS, draw_variants, draw_variants))(draw)
        sizes = [x.numel() for x in call.tensors.values()]
        numbers = sum(sizes) * all(sizes)
    if call.operator == "scaled_ffn":
        for name in ("alpha", "beta"):
            call.tensors[name] = call.tensors[name].double().sign() * (0.7 + draw.random())
    if call.operator == "entropy_regularization":
        call.tensors["entropies"] = call.tensors["entropies"] % 5
    if abs(call.options.get("scale") or 1.0) > 2:
        call.options["scale"] = 2.0
    mask = call.options.get("mask")
    if mask is not None and mask.is_floating_point():  # the sine of a huge logsumexp is anything
        call.options["mask"] = mask.masked_fill(mask < -1e4, -math.inf)
    call = call.mapped(lambda x: draw.arranged(x.double() if x.is_floating_point() else x))
    if call.judged_with is not None and call.options.get("mask") is not None:
        call.judged_with["mask"] = call.options["mask"]
    return call


def of(
    call: operator_calls.Call, run: Any, tangents: list[Tensor], options: dict[str, Any]
) -> transforms.Call:
    """The call as a function of its float tensors alone."""
    clear = decided(*call.scores()) if call.options.get("return_max_logits") else None

    def function(*tensors: Tensor) -> tuple[Tensor, ...]:
        arguments = dict(zip(call.tensors, tensors, strict=True))
        torch.manual_seed(0)  # of the dropout
        results = run(**arguments, **options)
        results = results if isinstance(results, tuple) else (results,)
        results = [y for y in results if y.is_floating_point()]
        if clear is not None:  # keys of equal scores have whichever derivatives
            results[3] = torch.where(clear, results[3], 0)
        # The logsumexp of a row without keys is -inf.
        return tuple(y.nan_to_num(neginf=0.0) for y in results)

    return transforms.Call(function, tuple(call.tensors.values()), tuple(tangents))


def vmapped(draw: Draw, call: operator_calls.Call) -> Any:
    """`vmap`, or `vmap(grad)`, over a new dimension of some arguments, wherever it lies."""
    size, places, batched = draw.randint(1, 3), [], []
    for x in call.tensors.values():
        place = draw.choice((None, *range(x.dim() + 1)))
        places.append(place)
        if place is not None:
            x = torch.stack([x * (1 + 0.1 * n) for n in range(size)], place)
        batched.append(draw.arranged(x))
    if all(place is None for place in places):
        places[0], batched[0] = 0, draw.arranged(torch.stack([batched[0]] * size))
    derive = draw.chance(0.5)

    def transform(one: transforms.Call) -> Any:
        function = grad(one.scalar, one.all) if derive else one.function
        randomness = "same" if call.options.get("dropout_p") else "error"
        return vmap(function, tuple(places), randomness=randomness)(*batched)

    return f"vmap{'(grad)' * derive} over {places}", transform


def attack(seed: int) -> int:
    draw = Mild(seed)
    call = drawn(draw)
    tangents = [draw.operand(x.shape, x.dtype) for x in call.tensors.values()]
    backend = draw.choice(("native", "native", "native", "reference"))
    options = call.options | {"backend": backend}
    judged_with = call.options if call.judged_with is None else call.judged_with
    isa = os.environ["AERO_CPU_ISA"] = draw.choice(operator_calls.INSTRUCTION_SETS)
    left_out = transforms.NO_RANDOMNESS if call.options.get("dropout_p") else ()
    every = sorted((name, each) for name, each in transforms.EAGER.items() if name not in left_out)
    chosen = [vmapped(draw, call), *draw.sample(every, 2)]
    for name, transform in chosen:
        try:
            run, known = (getattr(module, call.operator) for module in (aero.ops, oracle))
            found = tree_leaves(transform(of(call, run, tangents, options)))
            exact = tree_leaves(transform(of(call, known, tangents, judged_with)))
            assert len(found) == len(exact), f"{len(found)} results, the oracle has {len(exact)}"
            for number, (got, want) in enumerate(zip(found, exact, strict=True)):
                if want is None:  # as torch has the tangent of what depends on nothing
                    assert got is None or not got.any(), f"{number}: {got}, must be zero"
                    continue
                size = max(1.0, float(want.abs().max()) if want.numel() else 0.0)
                torch.testing.assert_close(
                    got, want, rtol=1e-7, atol=1e-9 * size, msg=lambda m, n=number: f"{n}: {m}"
                )
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            raise AssertionError(f"{name} of {call} {backend} on {isa}: {text}") from error
    return len(chosen)
