"""Foreign networks: the functions of their modules, and their weights under our names."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from aero.architecture import ArchitectureSpec
from aero.models.configuration import AeroConfig
from aero.nn.linear import in_mode

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
    """Refuses quantized weights, weights that are not there and weights that are not finite."""
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
    check_finite(model)


def check_finite(model: nn.Module) -> None:
    """Refuses weights that a diverged training left."""
    for name, parameter in model.named_parameters():
        if not parameter.detach().isfinite().all():
            raise unsupported(
                model,
                f"has values that are not finite in {name}",
                "take a checkpoint from before the divergence",
            )


def check_layer_norm(model: nn.Module, norm: Any) -> float:
    """Returns the epsilon of a LayerNorm of any class, and refuses other norms."""
    if getattr(norm, "weight", None) is None:
        raise unsupported(
            model,
            f"normalizes with {type(norm).__name__} without a weight",
            "convert networks whose norms are LayerNorms with weights, or all nn.Identity",
        )
    epsilon = float(getattr(norm, "eps", None) or 1e-5)
    if norm.weight.is_meta and isinstance(norm, nn.LayerNorm):  # of a configuration alone
        return epsilon
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
    """True if two language models give the same logits for the last token of a whole context.

    A model that sees fewer keys, in windows of any width, differs there and perhaps nowhere else.
    """
    embedding = network.transformer.wte
    num_tokens = network.transformer.context_length
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
    # Accelerate's mixed precision replaces `forward` by one that computes in half precision.
    forward = getattr(model, "_original_forward", model)
    with in_mode(model), torch.autocast(tokens.device.type, enabled=False):
        output = forward(tokens)
    logits: Tensor = output.logits if hasattr(output, "logits") else output[0]
    return logits[0, -1].double()


_LABELS = {"gelu": "SM+LN+G", "relu": "SM+LN+R", "linear": "SM+LN"}


class NetworkReader:
    """Takes the parts of a network one by one, and refuses unread parts in the end.

    Args:
        model: the network, left unchanged. Weights are views of its own where that is possible.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._weights: dict[str, Tensor] = {}
        self._seen: set[int] = set()
        self._epsilons: set[float] = set()
        self._norms = {"layer": set[str](), "none": set[str]()}  # the names of each kind
        self._activations: set[tuple[str, str]] = set()
        self._is_tied = True

    def embedding(self, name: str, module: nn.Embedding) -> None:
        """Takes token or position embeddings."""
        self._take(f"{name}.weight", module.weight)

    def norm(self, name: str, norm: Any) -> None:
        """Takes a LayerNorm of any class, with or without bias, or nn.Identity in its place."""
        self._norms["none" if isinstance(norm, nn.Identity) else "layer"].add(name)
        if isinstance(norm, nn.Identity):
            return
        self._epsilons.add(check_layer_norm(self._model, norm))
        self._take(f"{name}.weight", norm.weight)
        self._take_bias(name, getattr(norm, "bias", None))

    def linear(self, name: str, layer: Any, *, is_transposed: bool = False) -> None:
        """Takes a linear layer with its weight as [out, in], or transposed as [in, out]."""
        self._take(f"{name}.weight", layer.weight)
        if is_transposed:
            self._weights[f"{name}.weight"] = layer.weight.detach().t()
        self._take_bias(name, layer.bias)

    def change(self, name: str, function: Callable[[Tensor], Tensor]) -> None:
        """Applies a function to the rows of a layer's weight, [out, in], and to its bias, [out]."""
        for part in ("weight", "bias"):
            self._weights[f"{name}.{part}"] = function(self._weights[f"{name}.{part}"].detach())

    def feed_forward(self, mlp: nn.Module) -> None:
        """Notes the activation of an FFN."""
        self._activations.add(activation_of(self._model, mlp))

    def head(self, head: Any, embedding: nn.Embedding) -> None:
        """Takes the head, tied to the token embeddings or a matrix of its own."""
        is_tied = head.weight is embedding.weight
        self._check_head(head, embedding, is_tied)
        # A tied head has an entry too, as `load_state_dict` expects it.
        self._take("lm_head.weight", head.weight)
        self._is_tied = is_tied

    def network(
        self, *, rotary_base: float = 10000.0, **fields: Any
    ) -> tuple[AeroConfig, dict[str, Tensor]]:
        """Configuration and weights; `fields` are those of the spec that no shape tells."""
        self._check_nothing_left()
        activation, approximation = self._activations.pop()
        vocab_size, width = self._weights["transformer.wte.weight"].shape
        sizes = {
            "width": width,
            "head_dim": width // fields["num_heads"],
            "hidden_width": self._weights["transformer.h.0.mlp.c_fc.weight"].shape[0],
            "vocab_size": vocab_size,
            "tied_embeddings": self._is_tied,
        }
        spec = ArchitectureSpec.from_label(_LABELS[activation], model="tiny", **sizes, **fields)
        final = "none" if "transformer.ln_f" in self._norms["none"] else "layer"
        norm = "none" if self._norms["none"] - {"transformer.ln_f"} else "layer"
        spec = spec.replace(norm=norm, final_norm=final)
        source = getattr(self._model, "config", None)
        ids = ("bos_token_id", "eos_token_id", "pad_token_id")
        config = AeroConfig.from_spec(
            spec,
            layer_norm_epsilon=self._epsilons.pop() if self._epsilons else 1e-5,
            gelu_approximation=approximation,
            rotary_base=rotary_base,
            initializer_range=float(getattr(source, "initializer_range", 0.02)),
            **{name: getattr(source, name, None) for name in ids},
        )
        return config, self._weights

    def _take(self, name: str, tensor: Tensor) -> None:
        self._weights[name] = tensor
        self._seen.add(id(tensor))

    def _take_bias(self, name: str, bias: Tensor | None) -> None:
        if bias is None:
            weight = self._weights[f"{name}.weight"]
            bias = weight.new_zeros(weight.shape[0])
        self._take(f"{name}.bias", bias)

    def _check_head(self, head: Any, embedding: nn.Embedding, is_tied: bool) -> None:
        model = self._model
        says_tied = getattr(getattr(model, "config", None), "tie_word_embeddings", None)
        if isinstance(model, PreTrainedModel) and says_tied is not None and says_tied != is_tied:
            raise unsupported(
                model,
                f"says tie_word_embeddings={says_tied} but its head is "
                + ("the token embedding" if is_tied else "a matrix of its own"),
                "call model.tie_weights(), or set config.tie_word_embeddings to what it is",
            )
        bias = getattr(head, "bias", None)
        if bias is not None:
            if bool(bias.detach().any()):
                raise unsupported(model, "has a head with a bias", "set the bias to zero")
            self._seen.add(id(bias))
        if head.weight.shape != embedding.weight.shape:
            raise unsupported(
                model,
                f"has a head of shape {list(head.weight.shape)} for token embeddings of shape "
                f"{list(embedding.weight.shape)}",
                "resize both (model.resize_token_embeddings)",
            )

    def _check_nothing_left(self) -> None:
        left = [
            name
            for name, parameter in self._model.named_parameters()
            # The thresholds of `with_entropy_penalty` have no effect on logits.
            if id(parameter) not in self._seen and not name.startswith("entropy_penalty.")
        ]
        if left:
            raise unsupported(
                self._model,
                f"has parameters that AERO networks have no place for: {', '.join(left[:3])}",
                "remove them or merge them into the weights (adapters: merge_and_unload())",
            )
        mixed = [sorted(names - {"transformer.ln_f"}) for names in self._norms.values()]
        if all(mixed):
            raise unsupported(
                self._model,
                f"has a LayerNorm at {mixed[0][0]} and none at {mixed[1][0]}",
                "convert networks whose blocks have all their norms, or none",
            )
        if len(self._activations) > 1 or len(self._epsilons) > 1:
            raise unsupported(
                self._model,
                "has layers of different kinds (activations or LayerNorm epsilons)",
                "convert networks whose layers are alike",
            )
