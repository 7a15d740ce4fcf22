"""The functions of single modules of other people's networks, and their equals in AERO networks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

_ACTIVATIONS: dict[tuple[str, str], Callable[[Tensor], Tensor]] = {
    ("gelu", "tanh"): lambda x: F.gelu(x, approximate="tanh"),
    ("gelu", "none"): F.gelu,
    ("relu", "tanh"): F.relu,
    ("linear", "tanh"): lambda x: x,
}

# Both GELUs differ by up to 5e-4; variants of the tanh form that round its constant, by 1e-9.
_SAME_ACTIVATION = 1e-6

# Largest relative difference of logits that rounding explains, by dtype.
_SAME_LOGITS = {torch.float64: 1e-4, torch.float32: 1e-3}
_SAME_LOGITS_IN_HALF = 0.1


def unsupported(model: object, what: str, instead: str) -> ValueError:
    """The error for a network that cannot be read."""
    return ValueError(f"convert: {type(model).__name__} {what}; {instead}")


def check_weights(model: nn.Module) -> None:
    """Refuses quantized weights and weights that are not there."""
    if not isinstance(model, nn.Module):
        raise unsupported(model, "is no torch module", "give the model itself")
    config = getattr(model, "config", None)
    is_quantized = getattr(config, "quantization_config", None) is not None
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise unsupported(model, f"has no values for {name}", "load its weights first")
        if is_quantized or parameter.dtype not in _DTYPES:
            raise unsupported(
                model,
                f"has quantized weights ({name} is {parameter.dtype})",
                "load it without quantization, in float32 or bfloat16, or call model.dequantize()",
            )


def check_layer_norm(model: nn.Module, norm: Any) -> float:
    """Returns the epsilon of a LayerNorm of any class, and refuses other norms."""
    epsilon = float(getattr(norm, "eps", None) or 1e-5)
    probe = copy.deepcopy(norm).double()
    width = norm.weight.shape[0]
    x = torch.linspace(-1, 3, 2 * width, dtype=torch.float64, device=norm.weight.device)
    x = x.square().view(2, width)
    with torch.no_grad():
        expected = F.layer_norm(x, (width,), probe.weight, getattr(probe, "bias", None), epsilon)
        is_layer_norm = torch.allclose(probe(x), expected, rtol=1e-6, atol=1e-9)
    if not is_layer_norm:
        raise unsupported(
            model,
            f"normalizes with {type(norm).__name__}, which is no LayerNorm",
            "convert networks with LayerNorm",
        )
    return epsilon


def activation_of(model: nn.Module, mlp: nn.Module) -> tuple[str, str]:
    """The activation of a two-layer FFN by its values.

    Args:
        model: the network, for errors.
        mlp: an FFN, with the activation as a module of its own or in its forward.

    Returns:
        The activation's name in `aero.nn.FeedForward` and the form of its GELU.
    """
    inner = [
        module
        for module in mlp.children()
        if not isinstance(module, nn.Dropout) and not any(True for _ in module.parameters())
    ]
    compute, x = (inner[0], _grid()) if len(inner) == 1 else _activation_within(mlp)
    with torch.no_grad():
        actual = compute(x)
        for found, function in _ACTIVATIONS.items():
            expected = function(x)
            if actual.shape == expected.shape and (actual - expected).abs().max() < (
                _SAME_ACTIVATION * x.abs().max()
            ):
                return found
    raise unsupported(
        model,
        f"has an activation that is neither GELU, ReLU nor the identity ({mlp})",
        "replace it in the model first and retrain",
    )


def _grid() -> Tensor:
    return torch.linspace(-6, 6, 97, dtype=torch.float64)


def _activation_within(mlp: nn.Module) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """The activation of a forward that calls it as a function, by setting both weights to 1."""
    probe: Any = copy.deepcopy(mlp).double().eval()
    x = _grid().to(next(probe.parameters()).device)
    layers = [module for module in probe.modules() if getattr(module, "weight", None) is not None]
    with torch.no_grad():
        for layer in layers:
            layer.weight.zero_()
            layer.weight[0, 0] = 1.0
            if layer.bias is not None:
                layer.bias.zero_()
    width = min(layers[0].weight.shape)

    def compute(values: Tensor) -> Tensor:
        inputs = F.pad(values.unsqueeze(-1), (0, width - 1)).unsqueeze(0)
        output: Tensor = probe(inputs)[0, :, 0]
        return output

    return compute, x


@torch.no_grad()
def runs_like(model: nn.Module, network: Any) -> bool:
    """Whether two language models give the same logits for the last of a few tokens."""
    embedding = network.transformer.wte
    num_tokens = min(network.transformer.context_length, 8)
    tokens = torch.arange(1, num_tokens + 1, device=embedding.weight.device) * 7919
    tokens = (tokens % embedding.weight.shape[0]).unsqueeze(0)
    expected, actual = (_last_logits(each, tokens) for each in (model, network))
    if expected.shape != actual.shape:
        return False
    tolerance = _SAME_LOGITS.get(embedding.weight.dtype, _SAME_LOGITS_IN_HALF)
    if not expected.isfinite().all():
        return True  # nothing to compare; the weights were read by name
    return bool((actual - expected).norm() <= tolerance * expected.norm())


def _last_logits(model: nn.Module, tokens: Tensor) -> Tensor:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    # Accelerate's mixed precision replaces `forward` by one that computes in half precision.
    forward = getattr(model, "_original_forward", model)
    try:
        with torch.autocast(tokens.device.type, enabled=False):
            output = forward(tokens)
    finally:
        for module, training in modes:
            module.training = training
    logits: Tensor = output.logits if hasattr(output, "logits") else output[0]
    return logits[0, -1].double()
