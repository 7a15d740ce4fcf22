"""Linear layers, and their products on a CPU, each by the library that computes it fastest there.

Also embeddings that share weight and gradient with the head, and in which mode and pass a module
computes. Other forms of weights: `weight_forms.py`.

Letters: B batch, T tokens, C width, V vocabulary; in products N rows, K summed over, M columns.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Start = Literal["normal", "residual", "zero"]

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

# Below this number of multiplications the call itself costs more than oneDNN saves.
_MINIMUM_PRODUCTS = 2**18

# A weight of this size, 1 MB of float32, stays in the second-level cache.
_CACHED_ELEMENTS = 2**18


class Linear(nn.Linear):
    """`torch.nn.Linear` that computes with `linear`; same parameters, same results to rounding.

    Args:
        in_features: width of the inputs.
        out_features: width of the outputs.
        bias: whether there is one.
        start: how a model initializes the weight: ``"normal"``, ``"residual"`` for a layer that
            writes to the residual stream (smaller in deeper networks) or ``"zero"``. On its own the
            layer starts as `torch.nn.Linear` does.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, start: Start = "normal"
    ) -> None:
        super().__init__(in_features, out_features, bias)
        self.start: Start = start

    def forward(self, inputs: Tensor) -> Tensor:
        """Returns ``inputs W^T + b``, [..., out]."""
        return linear(inputs, self.weight, self.bias)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "qconfig":  # torch.ao.quantization, which replaces layers by exact type
            warnings.warn(
                "quantization: expected torch.nn.Linear itself, got aero.nn.linear.Linear, which "
                "stays in floating point; before it, for every such layer of model.modules(): "
                "layer.__class__ = torch.nn.Linear",
                stacklevel=2,
            )
        super().__setattr__(name, value)


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """True if a call of the module is the forward of `kind` by its weight and nothing else."""
    hooks = module._forward_hooks or module._forward_pre_hooks
    others = (getattr(module, name, None) for name in ("bias", "padding_idx"))
    is_own = type(module) is kind and not hooks and "forward" not in vars(module)
    return is_own and all(other is None for other in others)


@contextmanager
def in_mode(model: nn.Module, *, training: bool = False) -> Iterator[None]:
    """Evaluation mode, or training mode; every module has its own as before afterwards.

    `nn.Module.train` would put back that of the outermost module in all: a part that its user keeps
    in evaluation mode, such as a frozen norm, would move its statistics from then on.
    """
    before = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, mode in before:
            module.training = mode


def is_recomputing() -> bool:
    """True while the autograd engine runs a backward, hence for a checkpoint's second forward.

    State that moves once per forward (running statistics, power iterations) must not move again
    there, else the recomputed activations differ from the first ones. A compiled graph is traced
    outside any backward and recomputes without replaying buffer updates.
    """
    if torch.compiler.is_compiling():
        return False
    return torch._C._current_graph_task_id() != -1  # type: ignore[attr-defined,unused-ignore]


def check_computable(where: str, dtype: torch.dtype) -> None:
    """Refuses numbers that are for storing, such as float8."""
    if dtype not in _DTYPES:
        raise ValueError(
            f"{where} cannot compute in {dtype}, which is for stored weights; load or convert the "
            "model in float32, bfloat16 or float16, such as model.to(torch.bfloat16)"
        )


def embed_tied(tokens: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Embeds tokens and returns the weight for the head, so that both gradients become one.

    A weight that is used twice gets two dense gradients [V, C], of which the embedding's is nearly
    empty, and their sum. Here the rows of the embedding's are added to the head's where they lie:
    with GPT-2's vocabulary and 512 tokens on one thread of an EPYC 0.1 in place of 140 ms.

    Returns the embedded tokens [B, T, C], and `weight` [V, C] again, which only the head may use:
    its gradient is written to.
    """
    return cast(
        "tuple[Tensor, Tensor]",
        _TiedEmbedding.apply(tokens, weight),  # type: ignore[no-untyped-call]
    )


class _TiedEmbedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(tokens)
        ctx.set_materialize_grads(False)
        ctx.weight_shape = weight.shape
        return F.embedding(tokens, weight), weight.view_as(weight)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any, d_embedded: Tensor | None, d_weight: Tensor | None
    ) -> tuple[None, Tensor | None]:
        (tokens,) = ctx.saved_tensors
        if d_embedded is None:
            return None, d_weight
        if d_weight is None:
            d_weight = d_embedded.new_zeros(ctx.weight_shape)
        return None, d_weight.index_add_(0, tokens.flatten(), d_embedded.flatten(0, -2))


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``inputs W^T + b`` with the fastest product that ships with torch.

    On x86 CPUs torch computes float32 products with MKL, which on AMD processors is half as fast as
    oneDNN, that torch ships too and keeps for bfloat16 and compiled inference. Measured on an EPYC
    with AVX-512, one thread, 4096 x 128 x 384: forward 3.7 against 1.5 ms, gradients of inputs 3.7
    against 1.7 ms, of weights 3.9 against 2.1 ms. Intel's processors keep MKL: a Cascade Lake takes
    3.4, 3.4 and 4.7 ms with it, and 4.1, 3.8 and 9.0 with oneDNN. Without instructions for bfloat16
    torch takes 4.5 times as long for such a product as in float32; there it is one of float32,
    rounded at the end (48 against 12 ms for 1024 x 768 x 768). Everything else, `torch.compile`
    included, and all of it under ``torch.backends.mkldnn.flags(enabled=False)``, is
    `torch.nn.functional.linear`; so a compiled float32 step of the demo's network takes 1.1 times
    as long as this one.

    Args:
        inputs: [..., in].
        weight: [out, in].
        bias: [out] or None.

    Returns:
        [..., out].
    """
    if _is_widened(_product_dtype(inputs, weight), inputs):
        operands = (x if x is None else _widened(x) for x in (inputs, weight, bias))
        with torch.autocast("cpu", enabled=False):
            return linear(*operands).to(torch.bfloat16)  # type: ignore[arg-type]
    if not _runs_on_onednn(inputs, weight):
        return F.linear(inputs, weight, bias)
    rows = _OneDnnLinear.apply(  # type: ignore[no-untyped-call]
        inputs.reshape(-1, inputs.shape[-1]), weight, bias
    )
    output: Tensor = rows.view(*inputs.shape[:-1], weight.shape[0])
    return output


@functools.cache
def _processor_words() -> frozenset[str]:
    """Returns what Linux says of the first processor; nothing elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return frozenset()
    return frozenset(text.partition("\n\n")[0].split())


def _prefers_mkl() -> bool:
    """True where MKL multiplies float32 faster than oneDNN."""
    has_mkl: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return has_mkl and "GenuineIntel" in _processor_words()


def _lacks_bfloat16() -> bool:
    """True on x86 without instructions that multiply bfloat16."""
    words = _processor_words()
    return "sse2" in words and "avx512_bf16" not in words


def _product_dtype(inputs: Tensor, weight: Tensor) -> torch.dtype | None:
    """Returns the dtype of both operands, or that of autocast; None if they have two."""
    dtypes = {inputs.dtype, weight.dtype}
    if torch.is_autocast_enabled("cpu") and torch.float64 not in dtypes:
        return torch.get_autocast_dtype("cpu")
    return inputs.dtype if len(dtypes) == 1 else None


def _is_widened(dtype: torch.dtype | None, operand: Tensor) -> bool:
    return (
        dtype == torch.bfloat16
        and operand.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and bool(torch.backends.mkldnn.enabled)
        and _lacks_bfloat16()
    )


def _widened(operand: Tensor) -> Tensor:
    """Rounds an operand to bfloat16, in float32."""
    return operand.to(torch.bfloat16).to(torch.float32)


def _runs_on_onednn(inputs: Tensor, weight: Tensor) -> bool:
    return (
        not torch.compiler.is_compiling()
        and inputs.device.type == "cpu"
        and inputs.dtype == weight.dtype == torch.float32
        and inputs.shape[-1] == weight.shape[-1]
        and inputs.numel() * weight.shape[0] >= _MINIMUM_PRODUCTS
        and not torch.is_autocast_enabled("cpu")
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and bool(torch.backends.mkldnn.enabled)
        and not _prefers_mkl()
    )


def product(a: Tensor, b_transposed: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``a b``, [N, M], of matrices [N, K] and [M, K] of one dtype, as `linear` computes it.

    Args:
        a: [N, K].
        b_transposed: [M, K].
        out: [N, M], written to where it is given.
    """
    if _is_widened(a.dtype, a):
        with torch.autocast("cpu", enabled=False):
            result = product(a.float(), b_transposed.float())
    elif not _runs_on_onednn(a, b_transposed):
        return torch.mm(a, b_transposed.t(), out=out)
    else:
        result = _product(a, b_transposed)
    return result.to(a.dtype) if out is None else out.copy_(result)


def add_product(total: Tensor, a: Tensor, b_transposed: Tensor, *, begins: bool = False) -> None:
    """Adds ``a b`` to a total [N, M], or writes it there if it `begins` the total.

    Args:
        total: [N, M], of the dtype of `a` or a wider one.
        a: [N, K].
        b_transposed: [M, K].
        begins: the total holds nothing yet.
    """
    if adds_in_place(total.dtype, a, b_transposed):
        torch.addmm(total, a, b_transposed.t(), beta=0 if begins else 1, out=total)
        return
    part = product(a, b_transposed)
    total.copy_(part) if begins else total.add_(part)


def adds_in_place(total: torch.dtype, a: Tensor, b_transposed: Tensor) -> bool:
    """True if `add_product` needs no memory but that of such a total."""
    is_copied = _is_widened(a.dtype, a) or _runs_on_onednn(a, b_transposed)
    return total == a.dtype and not is_copied


def _product(a: Tensor, b_transposed: Tensor, bias: Tensor | None = None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(a, b_transposed, bias, "none", [], "")
    return product


class _OneDnnLinear(torch.autograd.Function):
    """oneDNN's linear, an inference operator of torch, with its derivative."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.weight_size = weight.numel()
        return _product(rows, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        needs_rows, needs_weight, needs_bias = ctx.needs_input_grad
        d_rows = d_weight = d_bias = None
        if needs_rows:
            d_rows = _product(gradient, weight.t())
        if needs_weight:
            # The operand with fewer rows goes first, up to 1.4 times as fast, where turning the
            # result stays in the cache. Autograd copies a gradient that lies unlike its weight.
            if rows.shape[1] < gradient.shape[1] and ctx.weight_size <= _CACHED_ELEMENTS:
                d_weight = _product(rows.t(), gradient.t()).t().contiguous()
            else:
                d_weight = _product(gradient.t(), rows.t())
        if needs_bias:
            d_bias = gradient.sum(dim=0)
        return d_rows, d_weight, d_bias
