"""Linear layers: their products (`products.py`), GPT-2's layout, weight and spectral norms.

Also embeddings that share weight and gradient with the head.
Letters: B batch, T tokens, C width, V vocabulary.
"""

from __future__ import annotations

import warnings
from typing import Any, Literal, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from aero.nn.products import linear as linear

Start = Literal["normal", "residual", "zero"]

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


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


def is_recomputing() -> bool:
    """True while the autograd engine runs a backward, hence for a checkpoint's second forward.

    State that moves once per forward (running statistics, power iterations) must not move again
    there, else the recomputed activations differ from the first ones. A compiled graph is traced
    outside any backward and recomputes without replaying buffer updates.
    """
    if torch.compiler.is_compiling():
        return False
    return torch._C._current_graph_task_id() != -1  # type: ignore[attr-defined,unused-ignore]


WeightNormalization = Literal["weight_norm", "spectral_norm"]


def normalize_weight(linear: nn.Linear, kind: WeightNormalization) -> nn.Linear:
    """Reparametrizes the weight of `linear` in place (AERO, Section 3.2).

    Args:
        linear: the layer, weight [out, in].
        kind: ``"weight_norm"``, ``W = g * V / |V|`` with one gain per output (Salimans & Kingma,
            2016), or ``"spectral_norm"``, ``W = V / sigma(V)`` with the largest singular value from
            one power iteration per training forward (Miyato et al., 2018).
    """
    if kind == "weight_norm":
        parametrizations.weight_norm(linear, "weight")
    elif kind == "spectral_norm":
        parametrizations.spectral_norm(linear, "weight")
        _parametrization(linear).register_forward_pre_hook(_freeze_recomputed_iteration)
    else:
        raise ValueError(
            f"normalize_weight: kind must be 'weight_norm' or 'spectral_norm', got {kind!r}"
        )
    return linear


def _parametrization(linear: nn.Linear) -> Any:
    return linear.parametrizations["weight"][0]  # type: ignore[index]


def _freeze_recomputed_iteration(module: Any, _inputs: Any) -> None:
    """Keeps the singular vectors of the first forward when a checkpoint recomputes it."""
    module.n_power_iterations = 0 if is_recomputing() else 1


WeightLayout = Literal["out_in", "in_out"]
Module = TypeVar("Module", bound=nn.Module)


class TransposedLinear(nn.Module):
    """A linear layer with its weight as [in, out], like `transformers`' Conv1D.

    Args:
        in_features: width of the inputs.
        out_features: width of the outputs.
        bias: whether there is one.
        start: as in `Linear`.

    Attributes:
        weight: [in, out].
        bias: [out] or None.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, start: Start = "normal"
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.start: Start = start
        drawn = nn.Linear(in_features, out_features, bias)
        self.weight = nn.Parameter(drawn.weight.detach().t().contiguous())
        self.bias = drawn.bias if bias else None

    def forward(self, inputs: Tensor) -> Tensor:
        """Returns ``inputs W + b``, [..., out]."""
        return linear(inputs, self.weight.t(), self.bias)

    def extra_repr(self) -> str:
        """The widths."""
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


def set_weight_layout(module: Module, layout: WeightLayout) -> Module:
    """Turns the weights of all linear layers within a module, in place; its results stay.

    Args:
        module: attention, feed-forward or block. Fused FFNs are [in, out] always; weights under
            weight or spectral norm stay as they are.
        layout: ``"out_in"``, `torch.nn.Linear` as in nanoGPT, or ``"in_out"``, Conv1D as in
            `transformers`' GPT-2.

    Raises:
        ValueError: another layout.
    """
    if layout not in ("out_in", "in_out"):
        raise ValueError(f"set_weight_layout: layout must be 'out_in' or 'in_out', got {layout!r}")
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if layout == "in_out" and type(child) is Linear:
                setattr(parent, name, _turned(child, TransposedLinear))
            elif layout == "out_in" and type(child) is TransposedLinear:
                setattr(parent, name, _turned(child, Linear))
    return module


def _turned(
    layer: Linear | TransposedLinear, kind: type[Linear] | type[TransposedLinear]
) -> nn.Module:
    weight = layer.weight
    with torch.random.fork_rng(devices=[]), torch.device(weight.device):
        turned = kind(
            layer.in_features, layer.out_features, layer.bias is not None, start=layer.start
        )
    turned.weight = nn.Parameter(weight.detach().t().contiguous(), weight.requires_grad)
    if layer.bias is not None:
        turned.bias = layer.bias
    return turned.train(layer.training)


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
