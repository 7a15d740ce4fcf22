"""Collects the weights of a foreign network under the names of `AeroForCausalLM`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from aero.architecture import ArchitectureSpec
from aero.models.configuration import AeroConfig
from aero.models.foreign_modules import activation_of, check_layer_norm, unsupported

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
        self._activations: set[tuple[str, str]] = set()
        self._is_tied = True

    def embedding(self, name: str, module: nn.Embedding) -> None:
        """Takes token or position embeddings."""
        self._take(f"{name}.weight", module.weight)

    def norm(self, name: str, norm: Any) -> None:
        """Takes a LayerNorm of any class, with or without bias."""
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
        source = getattr(self._model, "config", None)
        ids = ("bos_token_id", "eos_token_id", "pad_token_id")
        config = AeroConfig.from_spec(
            spec,
            layer_norm_epsilon=self._epsilons.pop(),
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
        if len(self._activations) > 1 or len(self._epsilons) > 1:
            raise unsupported(
                self._model,
                "has layers of different kinds (activations or LayerNorm epsilons)",
                "convert networks whose layers are alike",
            )
