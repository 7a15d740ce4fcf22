"""What the four public functions share before and after the native operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

Backend = Literal["native", "reference"]

#: Devices that have autocast. Looked up once: not every torch can trace the question in a graph,
#: and the answers do not change.
AUTOCAST_DEVICES = frozenset(
    name
    for name in ("cpu", "cuda", "hpu", "mps", "mtia", "xla", "xpu")
    if torch.amp.is_autocast_available(name)
)
#: Operator -> types of devices whose tensors its kernels take; filled by `register`.
_KERNELS: dict[str, frozenset[str]] = {}

_below_autograd = torch._C._AutoDispatchBelowAutograd
_IMPLEMENTATIONS = torch.library.Library("aero", "IMPL")  # type: ignore[no-untyped-call]


def require_tensors(operator: str, **arguments: Any) -> None:
    """Names an argument that is neither a tensor nor None, before anything is done with it.

    Raises:
        ValueError: there is one.
    """
    for name, value in arguments.items():
        if value is not None and not isinstance(value, Tensor):
            raise ValueError(f"{operator}: {name} must be a tensor, got {type(value).__name__}")


def use_native(operator: str, backend: str, **tensors: Tensor | None) -> bool:
    """Whether the native operator is asked for, which then must be able to take the tensors.

    The operator library checks shapes, dtypes and values. Only devices are checked here: a tensor
    of a foreign device never reaches the library, and one of the meta device has no values there.

    Raises:
        ValueError: the backend has an unknown name, a tensor lies where no kernel is, or two lie on
            different devices.
    """
    if backend not in ("native", "reference"):
        raise ValueError(f"{operator}: backend must be 'native' or 'reference', got {backend!r}")
    if backend == "reference":
        return False
    if all(tensor is None or tensor.is_cpu for tensor in tensors.values()):
        return True
    present = [(name, tensor) for name, tensor in tensors.items() if tensor is not None]
    for name, tensor in present:
        if tensor.device.type not in _KERNELS[operator]:
            raise ValueError(
                f"{operator}: {name} must be on the cpu, the only device with kernels of it in "
                f"this build, got {tensor.device}; move it or pass backend='reference'"
            )
        if tensor.device != (first := present[0][1].device):
            raise ValueError(
                f"{operator}: {name} must be on {first} like {present[0][0]}, got {tensor.device}"
            )
    return True


def _devices_with_kernels(operator: str) -> frozenset[str]:
    # A tensor of the meta device has no values, so it needs none.
    has_cuda = torch._C._dispatch_has_kernel_for_dispatch_key(f"aero::{operator}", "CUDA")
    return frozenset(("cpu", "meta", "cuda") if has_cuda else ("cpu", "meta"))


def cast_for_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in autocast's dtype where autocast is on; float64 stays, as in torch."""
    device = tensors[0].device.type
    if device not in AUTOCAST_DEVICES or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(
        x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in tensors
    )


def refuse_second_derivatives(operator: str) -> None:
    """Makes differentiating `operator`_backward a clear error."""

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    def backward(ctx: Any, *gradients: Tensor | None) -> None:
        raise NotImplementedError(
            f"{operator}: second derivatives are not implemented; pass backend='reference'"
        )

    torch.library.register_autograd(
        f"aero::{operator}_backward", backward, setup_context=setup_context
    )


def native_gradients(operator: str, *arguments: Any) -> tuple[Tensor, ...]:
    """Calls `operator`_backward, through autograd only where second derivatives may be asked for.

    Saved tensors are to be taken out before: checkpointing computes them anew, with autograd.
    """
    native = getattr(torch.ops.aero, f"{operator}_backward").default
    if torch.is_grad_enabled():
        return native(*arguments)  # type: ignore[no-any-return]
    with _below_autograd():
        return native(*arguments)  # type: ignore[no-any-return]


def _register_autograd(
    operator: str, backward: Callable[..., Any], setup_context: Callable[..., None]
) -> None:
    """Does what `torch.library.register_autograd` does, in less time.

    That one fills in defaults, which no operator here has, and wraps what it passes on: with the
    gradients' way through autograd 30 us of the 130 that attention of a few rows takes there and
    back, 1 to 2 % at T = 128.
    """
    native = getattr(torch.ops.aero, operator).default

    class Differentiable(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            *inputs, keys = arguments
            with _below_autograd():
                results = native.redispatch(keys, *inputs)
            setup_context(ctx, tuple(inputs), results)
            return results

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor | None) -> Any:
            return *backward(ctx, *gradients), None

    def differentiable(keys: Any, *arguments: Any) -> Any:
        keys = keys & torch._C._after_autograd_keyset
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments):
            return Differentiable.apply(*arguments, keys)  # type: ignore[no-untyped-call]
        with _below_autograd():
            return native.redispatch(keys, *arguments)

    _IMPLEMENTATIONS.impl(  # type: ignore[no-untyped-call]
        operator, differentiable, "Autograd", with_keyset=True
    )


def register(
    operator: str,
    *,
    fake: Callable[..., Any],
    fake_backward: Callable[..., Any],
    setup_context: Callable[..., None],
    backward: Callable[..., Any],
    vmap: Callable[..., Any] | None = None,
) -> None:
    """Completes the native operators `aero::operator` and `aero::operator_backward` for torch.

    Args:
        operator: the operator's name.
        fake: shapes, dtypes and strides of the forward results.
        fake_backward: the same of the gradients.
        setup_context: what the backward pass needs.
        backward: gradients of all inputs, None where there is none.
        vmap: batching rule of the forward operator.
    """
    _KERNELS[operator] = _devices_with_kernels(operator)
    torch.library.register_fake(f"aero::{operator}", fake)
    torch.library.register_fake(f"aero::{operator}_backward", fake_backward)
    _register_autograd(operator, backward, setup_context)
    refuse_second_derivatives(operator)
    if vmap is not None:
        torch.library.register_vmap(f"aero::{operator}", vmap)
