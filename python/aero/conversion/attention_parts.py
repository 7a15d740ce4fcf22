"""Step 4 and sizes: temperatures, thresholds, the head's own matrix, a shorter context."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from aero.conversion.plan import Step
from aero.conversion.weights import Weights, untie, with_spec
from aero.models import AeroConfig

# From coarse to fine, and in words.
_KINDS = {
    "scalar": "one temperature",
    "head": "one temperature per head",
    "head_position": "one temperature per head and position",
}
_FINENESS = tuple(_KINDS)


def threshold_step(config: AeroConfig, is_regularized: bool) -> Step:
    """The step that attaches or removes the thresholds of the entropy penalty."""
    spec = config.spec

    def change(weights: Weights) -> None:
        for layer in range(spec.num_layers):
            weights.drop(f"transformer.h.{layer}.attn.entropy_threshold")

    effect = (
        f"one entropy threshold per head, {config.threshold_init} of the maximum at the start"
        if is_regularized
        else "no entropy thresholds"
    )
    changed = with_spec(config, spec.replace(entropy_regularized=is_regularized))
    return Step("regularize_entropy", True, effect, changed, change)


def temperature_step(config: AeroConfig, kind: str) -> Step:
    """The step to temperatures of another kind.

    Raises:
        ValueError: from finer temperatures to coarser ones, which cannot hold them; one per head or
            one for all does go into the query weights.
    """
    spec = config.spec
    before = spec.temperature
    changed = with_spec(config, spec.replace(temperature=kind))
    if before == "none":
        start = config.temperature_init
        effect = f"{_KINDS[kind]}, {start} at the start"
        return Step("add_temperature", start == 1, effect, changed)
    if kind == "none" and before != "head_position":
        is_normalized = spec.ffn == "spectral_norm" and "q" in spec.normalized_layers
        effect = "W_Q = W_Q / t" + ("; its spectral norm becomes 1 again" if is_normalized else "")
        fold = _fold_into(config)
        return Step("fold_temperature", not is_normalized, effect, changed, fold)
    if kind == "none" or _FINENESS.index(kind) < _FINENESS.index(before):
        raise ValueError(
            f"convert: the trained temperatures of {spec.label} are of kind {before!r}; "
            f"{'networks without' if kind == 'none' else repr(kind)} cannot hold them, so keep "
            "them in the label"
        )

    def refine(weights: Weights) -> None:
        shape = (spec.num_heads, spec.context_length) if kind == "head_position" else ()
        for layer in range(spec.num_layers):
            name = f"transformer.h.{layer}.attn.temperature.value"
            value = weights.tensors[name].view(-1, *(1,) * (len(shape) - 1))
            weights.set(name, value.expand(shape or (spec.num_heads,)))

    return Step("refine_temperature", True, _KINDS[kind], changed, refine)


def _fold_into(config: AeroConfig) -> Callable[[Weights], None]:
    spec = config.spec

    def temperatures(weights: Weights, layer: int) -> Tensor:
        value = weights.vector(f"transformer.h.{layer}.attn.temperature.value")
        value = value.exp() if config.temperature_parametrization == "log" else value
        return value.expand(spec.num_heads).repeat_interleave(spec.head_dim)

    def change(weights: Weights) -> None:
        inner = spec.num_heads * spec.head_dim
        name = "q_attn" if spec.shaped_attention else "c_attn"
        for layer in range(spec.num_layers):
            path = f"transformer.h.{layer}.attn.{name}"
            matrix, bias = weights.matrix(path).clone(), weights.vector(f"{path}.bias").clone()
            factor = 1 / temperatures(weights, layer)
            matrix[:, :inner] *= factor
            bias[:inner] *= factor
            weights.set_matrix(path, matrix)
            weights.set(f"{path}.bias", bias)
            weights.drop(f"transformer.h.{layer}.attn.temperature")

    return change


def untying_step(config: AeroConfig) -> Step:
    """The step that gives the head a matrix of its own."""
    changed = with_spec(config, config.spec.replace(tied_embeddings=False))
    return Step("untie_head", True, "the head is a matrix of its own", changed, untie)


def context_step(config: AeroConfig, context_length: int) -> Step:
    """The step to a shorter context; the remaining positions are computed as before."""
    spec = config.spec
    if not 1 <= context_length <= spec.context_length:
        raise ValueError(
            f"convert: context_length must be from 1 to the network's {spec.context_length}, since "
            f"later positions have no weights, got {context_length}"
        )

    def change(weights: Weights) -> None:
        if "transformer.wpe.weight" in weights.tensors:
            positions = weights.tensors["transformer.wpe.weight"]
            weights.tensors["transformer.wpe.weight"] = positions[:context_length].clone()
        if spec.temperature == "head_position":
            for layer in range(spec.num_layers):
                name = f"transformer.h.{layer}.attn.temperature.value"
                weights.set(name, weights.tensors[name][:, :context_length])

    changed = with_spec(config, spec.replace(context_length=context_length))
    return Step("shorten_context", True, f"at most {context_length} tokens", changed, change)
