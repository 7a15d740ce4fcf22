"""How torch differentiates, batches and traces the native operators.

Values and gradients are native. Tangents (forward mode) and derivatives of gradients are those of
the plain form, which `reference` and `_gradients` hold: torch differentiates it itself. For
`torch.vmap` the mapped dimension is folded into the batch, or a loop goes over it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from aero.ops._boundary import KERNELS, refusing

Function = Callable[..., Any]


def folded(operator: str) -> Function:
    """The batching rule of an operator of attention rows: one call, all values in one batch."""
    native = getattr(torch.ops.aero, operator).default
    names = [argument.name for argument in native._schema.arguments]
    results = [result.name for result in native._schema.returns]

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        size = info.batch_size
        given = dict(zip(names, arguments, strict=True))
        if given.get("cu_seqlens_q") is not None:  # packed sequences are one batch already
            return looped(operator)(info, in_dims, *arguments)  # type: ignore[no-any-return]
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
            if name == "bias":  # its gradient is one per value, even where it is one for all
                return _expanded_mask(x, dims[name], size, batch)
            if name in ("alibi_slopes", "sinks"):
                return _fold_heads(x, dims[name], size, batch)
            return _mapped(x, dims[name], size).flatten(0, 1)

        def unfold(name: str, x: Tensor) -> Tensor:
            if x.dim() == 1:  # a gradient that is not wanted
                return x.new_empty(size, 0)
            of = name.removeprefix("d")
            if name == "dtemperature":
                shape = _shape(given[of], dims[of])
                x = x.reshape(size, batch, *x.shape[1:])
                return x.sum_to_size(size, *_of_rows(shape)).reshape(size, *shape)
            if name in ("dbias", "dalibi_slopes", "dsinks"):
                return _unfold_broadcast(x, _shape(given[of], dims[of]), size, batch)
            return x.reshape(size, batch, *x.shape[1:])

        found = native(*(fold(name, x) for name, x in given.items()))
        return tuple(map(unfold, results, found)), (0,) * len(found)

    return rule


def looped(operator: str) -> Function:
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
    mapped = _mapped(temperature, dim, size).reshape(size, *_of_rows(_shape(temperature, dim)))
    return mapped.expand(size, *rows).flatten(0, 1)


def _fold_mask(mask: Tensor, dim: int | None, size: int, batch: int) -> Tensor:
    if dim is None and (mask.dim() < 4 or mask.shape[0] == 1):
        return mask
    return _expanded_mask(mask, dim, size, batch)


def _expanded_mask(mask: Tensor, dim: int | None, size: int, batch: int) -> Tensor:
    mapped = mask[None] if dim is None else mask.movedim(dim, 0)
    mapped = mapped[(slice(None), *[None] * (5 - mapped.dim()), ...)]
    return mapped.expand(size, batch, *mapped.shape[2:]).flatten(0, 1)


def _fold_heads(x: Tensor, dim: int | None, size: int, batch: int) -> Tensor:
    """Values of heads, [H] or [B, H], as [size * B, H]."""
    mapped = _mapped(x, dim, size)
    mapped = mapped[(slice(None), *[None] * (3 - mapped.dim()), ...)]
    return mapped.expand(size, batch, mapped.shape[-1]).flatten(0, 1)


def _unfold_broadcast(x: Tensor, shape: list[int], size: int, batch: int) -> Tensor:
    """The gradient of a folded tensor, of which each mapped value had `shape`."""
    x = x.reshape(size, batch, *x.shape[1:])
    padded = [1] * (x.dim() - 1 - len(shape)) + shape
    return x.sum_to_size(size, *padded).reshape(size, *shape)


# The in-place and view rules have nothing to see in the memory that an operator allocates.
_below_autograd = torch._C._AutoDispatchBelowADInplaceOrView
_in_functorch = torch._C._are_functorch_transforms_active
_IMPLEMENTATIONS = torch.library.Library("aero", "IMPL")  # type: ignore[no-untyped-call]


def register(
    operator: str,
    *,
    fake: Function,
    fake_backward: Function,
    setup_context: Callable[..., None],
    backward: Function,
    plain: Function,
    plain_backward: Function,
    batching: Callable[[str], Function],
) -> None:
    """Completes the native operators `aero::operator` and `aero::operator_backward` for torch.

    Args:
        operator: the operator's name.
        fake: shapes, dtypes and strides of the forward results.
        fake_backward: the same of the gradients.
        setup_context: saves the values for the backward pass.
        backward: gradients of all inputs, None where there is none.
        plain: the forward results of the operator's arguments in plain PyTorch; None for one that
            has no derivative.
        plain_backward: the same of the backward operator.
        batching: gives the rule of torch.vmap for an operator's name.
    """
    KERNELS[operator] = _devices_with_kernels(operator)
    _register_autograd(operator, setup_context, backward, plain)
    _register_autograd(
        f"{operator}_backward",
        _save_arguments,
        _derivatives_of(f"{operator}_backward", plain_backward),
        plain_backward,
    )
    for name, shapes in ((operator, fake), (f"{operator}_backward", fake_backward)):
        torch.library.register_fake(f"aero::{name}", shapes)
        torch.library.register_vmap(f"aero::{name}", batching(name))


def _devices_with_kernels(operator: str) -> frozenset[str]:
    # A tensor of the meta device has no values, so it needs none.
    has_cuda = torch._C._dispatch_has_kernel_for_dispatch_key(f"aero::{operator}", "CUDA")
    return frozenset(("cpu", "meta", "cuda") if has_cuda else ("cpu", "meta"))


def native_gradients(operator: str, *arguments: Any) -> tuple[Tensor, ...]:
    """Calls `operator`_backward, through autograd only where the gradients may be differentiated.

    Saved tensors are to be taken out before: checkpointing computes them again, with autograd.
    """
    native = getattr(torch.ops.aero, f"{operator}_backward").default
    if torch.is_grad_enabled() or forward_ad._current_level >= 0 or _in_functorch():
        return native(*arguments)  # type: ignore[no-any-return]
    with _below_autograd():
        return native(*arguments)  # type: ignore[no-any-return]


def _register_autograd(
    operator: str, setup_context: Callable[..., None], backward: Function, plain: Function
) -> None:
    """Replaces `torch.library.register_autograd` in less time, with forward mode too.

    That one fills in defaults, which no operator here has, and wraps what it passes on: with the
    gradients' way through autograd 30 us of the 130 that attention of a few rows takes there and
    back, 1 to 2 % at T = 128.
    """
    native = getattr(torch.ops.aero, operator).default

    # autograd.Function itself refuses functorch's transforms; one level of them is what a kernel of
    # the dispatcher handles.
    class Differentiable(_SingleLevelFunction):
        _compiled_autograd_key = torch.autograd.Function._compiled_autograd_key

        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            *inputs, keys = arguments
            with _next_transform() if _in_functorch() else _below_autograd():
                results = native.redispatch(keys, *inputs)
            setup_context(ctx, tuple(inputs), results)
            if _in_forward_mode():
                ctx.inputs_with_tangents = inputs
            return results

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor | None) -> Any:
            return *backward(ctx, *gradients), None

        @staticmethod
        def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
            # The saved inputs carry the tangents, also those of the transforms further out.
            with forward_ad._set_fwd_grad_enabled(True):
                results = plain(*ctx.__dict__.pop("inputs_with_tangents"))
                return _tangents(results)

    def differentiable(keys: Any, *arguments: Any) -> Any:
        keys = keys & torch._C._after_autograd_keyset
        if (
            torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments)
        ) or _in_forward_mode():
            if not _in_functorch():
                return Differentiable.apply(*arguments, keys)  # type: ignore[attr-defined]
            with enable_single_level_autograd_function():
                return Differentiable.apply(*arguments, keys)  # type: ignore[attr-defined]
        with _below_autograd():
            return native.redispatch(keys, *arguments)

    _IMPLEMENTATIONS.impl(  # type: ignore[no-untyped-call]
        operator, partial(refusing, differentiable), "Autograd", with_keyset=True
    )


def _in_forward_mode() -> bool:
    """Returns whether the transform that calls looks for tangents."""
    if _in_functorch():
        transform = torch._C._functorch.peek_interpreter_stack()
        return transform is not None and transform.key() == torch._C._functorch.TransformType.Jvp
    return forward_ad._current_level >= 0


@contextmanager
def _next_transform() -> Iterator[None]:
    # autograd.Function turns both modes off in forward; the transforms further out need them.
    with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True), _below_autograd():
        yield


def _tangents(results: Any) -> Any:
    if isinstance(results, tuple):
        return tuple(map(_tangents, results))
    if results is None:  # no derivative
        return None
    tangent = forward_ad.unpack_dual(results, level=0).tangent  # type: ignore[no-untyped-call]
    return torch.zeros_like(results) if tangent is None else tangent


def _save_arguments(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*(x if isinstance(x, Tensor) else None for x in inputs))
    ctx.others = tuple(None if isinstance(x, Tensor) else x for x in inputs)
    ctx.set_materialize_grads(False)


def _derivatives_of(operator: str, plain: Function) -> Function:
    """The backward function of `operator`_backward, which `_save_arguments` prepared."""
    schema = getattr(torch.ops.aero, operator).default._schema
    # What follows from the other arguments, to which `plain` goes back.
    follows = [argument.name in ("out", "statistics") for argument in schema.arguments]

    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        arguments = [
            other if saved is None else saved
            for saved, other in zip(ctx.saved_tensors, ctx.others, strict=True)
        ]
        wanted = [i for i, known in enumerate(follows) if ctx.needs_input_grad[i] and not known]
        given = [i for i, cotangent in enumerate(cotangents) if cotangent is not None]
        if not given:
            return (None,) * len(arguments)

        def results(*inputs: Tensor) -> tuple[Tensor, ...]:
            for i, x in zip(wanted, inputs, strict=True):
                arguments[i] = x
            found = plain(*arguments)
            return tuple(found[i] for i in given)

        # Not torch.autograd.grad: the saved tensors may belong to a transform that has ended.
        pullback = torch.func.vjp(results, *(arguments[i] for i in wanted))[1]
        found = dict(zip(wanted, pullback(tuple(cotangents[i] for i in given)), strict=True))
        return tuple(found.get(i) for i in range(len(arguments)))

    return backward
