"""The steps that the four public functions share around the native operator."""

from __future__ import annotations

import math
import operator as operators
import re
from collections.abc import Callable
from numbers import Real
from typing import Any, Literal

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd import forward_ad

Backend = Literal["native", "reference"]

#: Devices that have autocast. Looked up once: not every torch can trace the question in a graph,
#: and the answers do not change.
AUTOCAST_DEVICES = frozenset(
    filter(torch.amp.is_autocast_available, ("cpu", "cuda", "hpu", "mps", "mtia", "xla", "xpu"))
)
#: Operator -> types of devices whose tensors its kernels take; each operator's file fills it in.
KERNELS: dict[str, frozenset[str]] = {}


def statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of temperature, entropy and logsumexp that goes with tensors of `dtype`."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def require_tensors(operator: str, **arguments: Any) -> None:
    """Names an argument that is no dense tensor of real numbers, before anything is done with it.

    Raises:
        ValueError: there is one; None is fine.
    """
    for name, value in arguments.items():
        if value is None:
            continue
        if not isinstance(value, Tensor):
            raise ValueError(f"{operator}: {name} must be a tensor, got {type(value).__name__}")
        if value.is_nested:
            raise ValueError(
                f"{operator}: {name} must be a dense tensor, got a nested one; "
                "pad it with torch.nested.to_padded_tensor and hide the padding with a mask"
            )
        if value.layout != torch.strided:
            raise ValueError(f"{operator}: {name} must be a dense tensor, got {value.layout}")
        if value.is_complex():  # a cast would drop the imaginary parts
            raise ValueError(f"{operator}: {name} must be real, got {value.dtype}")


def require_floats(operator: str, **tensors: Tensor | None) -> None:
    """Refuses what adds to scores or divides them and is not of floats; None is fine."""
    for name, given in tensors.items():
        if given is not None and not given.is_floating_point():
            what = "; a mask goes to mask" if given.dtype == torch.bool else ""
            raise ValueError(f"{operator}: {name} must be of floats, got {given.dtype}{what}")


def require_number(operator: str, name: str, value: Any, has_none: bool = True) -> None:
    """Refuses what is no number, or None, and one with a gradient, which would be lost."""
    if isinstance(value, Tensor) and value.requires_grad:
        raise ValueError(f"{operator}: {name} must be a number, got a tensor with a gradient")
    is_none = has_none and value is None
    if not is_none and not isinstance(value, (Real, Tensor, torch.SymFloat, torch.SymInt)):
        raise ValueError(f"{operator}: {name} must be a number, got {value!r}")


def bounds_of(where: str, window: tuple[int | None, int | None]) -> tuple[int | None, int | None]:
    """How far a window reaches to the left and to the right; None is no bound."""
    try:
        left, right = (None if n is None else operators.index(n) for n in window)
    except (TypeError, ValueError):
        left = right = -1
    if min(left or 0, right or 0) < 0:
        raise ValueError(
            f"{where}: window must be (left, right), each an integer from 0 or None, got {window}"
        )
    return left, right


def require_numbers(
    where: str, scale: float | None, softcap: float | None, dropout_p: float
) -> None:
    """Refuses numbers that the operators do not take; the operator checks the scale's value."""
    require_number(where, "scale", scale)
    require_number(where, "softcap", softcap)
    require_number(where, "dropout_p", dropout_p)
    if softcap is not None and not (math.isfinite(softcap) and softcap > 0):
        raise ValueError(f"{where}: softcap must be a finite number above 0, got {softcap}")
    if not 0 <= dropout_p < 1:
        raise ValueError(f"{where}: dropout_p must be at least 0 and below 1, got {dropout_p}")


def require_finite(operator: str, name: str, value: float | None, least: float = -math.inf) -> None:
    """Refuses a setting as the operator library does, for the backend that does without it."""
    if value is not None and not (math.isfinite(value) and value >= least):
        bound = "" if least == -math.inf else f", at least {least:g}"
        raise ValueError(f"{operator}: {name} must be a finite number{bound}, got {value:f}")


def use_native(operator: str, backend: str, **tensors: Tensor | None) -> bool:
    """True if the native operator is asked for, which then must be able to take the tensors.

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
        if tensor.device.type not in KERNELS[operator]:
            raise ValueError(
                f"{operator}: {name} must be on the cpu, the only device with kernels of it in "
                f"this build, got {tensor.device}; move it or pass backend='reference'"
            )
        if tensor.device != (first := present[0][1].device):
            raise ValueError(
                f"{operator}: {name} must be on {first} like {present[0][0]}, got {tensor.device}"
            )
    return True


# Torch 2.15 makes the library's std::invalid_argument a RuntimeError.
_REFUSAL = re.compile(r"(\w+: .+|AERO_FFN_PRODUCT) must be .+, got ", re.DOTALL)


def refusing(call: Callable[..., Any], *arguments: Any) -> Any:
    """Calls what leads to the operator library, whose refusals are ValueErrors."""
    try:
        return call(*arguments)
    except RuntimeError as error:
        raise ValueError(*error.args) if _REFUSAL.match(str(error)) else error from None


def call_native(operator: str, *arguments: Any) -> Any:
    """Calls `aero::operator`; outside the compiled graph where that would lose tangents.

    A graph enters `dual_level` without telling Python, and some compilers drop tangents silently.
    `torch.func.jvp` inside torch.compile is traced, tangents and all.
    """
    native = getattr(torch.ops.aero, operator).default
    if not torch.compiler.is_compiling():
        return refusing(native, *arguments)
    if forward_ad._current_level >= 0 and not torch._C._are_functorch_transforms_active():
        return _tangents_need_func_jvp_or_backend_reference(native, *arguments)
    return native(*arguments)


# With fullgraph=True torch's error quotes the name.
@_disable_dynamo
def _tangents_need_func_jvp_or_backend_reference(native: Any, *arguments: Any) -> Any:
    return native(*arguments)


def cast_for_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in autocast's dtype where autocast is on; float64 stays, as in torch."""
    device = tensors[0].device.type
    if device not in AUTOCAST_DEVICES or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(
        x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in tensors
    )
