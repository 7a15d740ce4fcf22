"""Steps 1 and 3: another activation or none; linear FFNs fused, scaled and pruned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from torch import nn

from aero.conversion.plan import Step, as_new_network, take_steps
from aero.conversion.weights import Weights, with_spec
from aero.internals.number_checks import whole
from aero.models import AeroConfig, AeroForCausalLM
from aero.nn.parts import part_places

_SCALED = {
    "linear": "scaled",
    "weight_norm": "scaled",
    "spectral_norm": "scaled",
    "fused": "scaled_fused",
}
_FUSED = {
    "linear": "fused",
    "weight_norm": "fused",
    "spectral_norm": "fused",
    "scaled": "scaled_fused",
}


def fuse_ffn(model: nn.Module) -> AeroForCausalLM:
    """Fuses the two layers of every linear FFN into one. Exact.

    ``W = W_in W_out`` and ``b = b_in W_out + b_out`` (AERO, Section 4.2) are computed in float64
    and rounded once; a scaled FFN keeps its alpha and beta.

    Args:
        model: a network with linear FFNs; left unchanged.

    Returns:
        A new network with the same logits up to rounding.

    Raises:
        ValueError: the FFNs have an activation, or are fused already.

    Example:
        >>> from aero import AeroForCausalLM, fuse_ffn
        >>> from aero.models import AeroConfig
        >>> model = AeroForCausalLM(AeroConfig.from_label("SM+ScFFN", model="tiny"))
        >>> fuse_ffn(model).config.spec.label
        'SM+ScFuFFN'
    """
    network = as_new_network(model)
    return take_steps(network, [fusing_step(network.config)])


def fusing_step(config: AeroConfig) -> Step:
    """The step that fuses the two layers of linear FFNs."""
    spec = config.spec
    if spec.ffn not in _FUSED:
        is_fused = "fused" in spec.ffn
        raise ValueError(
            f"fuse_ffn: the FFNs of {spec.label} "
            + ("are fused already" if is_fused else f"have an activation ({spec.ffn})")
            + ("" if is_fused else "; call replace_activation(model, 'identity') first")
        )

    def change(weights: Weights) -> None:
        for layer in _layers_with_ffn(config):
            path = f"transformer.h.{layer}.mlp"
            w_in, w_out = weights.matrix(f"{path}.c_fc"), weights.matrix(f"{path}.c_proj")
            bias = weights.vector(f"{path}.c_fc.bias") @ w_out
            bias = bias + weights.vector(f"{path}.c_proj.bias")
            weights.drop(f"{path}.c_fc")
            weights.drop(f"{path}.c_proj")
            weights.set_matrix(path, w_in @ w_out)
            weights.set(f"{path}.bias", bias)

    return Step(
        "fuse_ffn",
        True,
        "W = W_in W_out, b = b_in W_out + b_out",
        with_spec(config, spec.replace(ffn=_FUSED[spec.ffn])),
        change,
    )


def scaling_step(config: AeroConfig) -> Step:
    """The step that gives linear FFNs alpha and beta, both 1."""
    spec = config.spec
    changed = spec.replace(ffn=_SCALED[spec.ffn])
    return Step(
        "scale_ffn",
        True,
        "alpha and beta, 1 at the start",
        with_spec(config, changed),
    )


def normalizing_step(config: AeroConfig, ffn: str, normalized_layers: str) -> Step:
    """The step to plain linear FFNs or ones under weight norm (exact) or spectral norm (not)."""
    changed = config.spec.replace(ffn=ffn, normalized_layers=normalized_layers)
    is_plain = ffn == "linear"
    return Step(
        "normalize_weight",
        ffn != "spectral_norm",
        "plain weights" if is_plain else f"{ffn.replace('_', ' ')} on {normalized_layers}",
        with_spec(config, changed),
    )


def prune_ffn(
    model: nn.Module, *, deepest: int | None = None, layers: Iterable[int] | None = None
) -> AeroForCausalLM:
    """Removes whole FFN sub-blocks, their norm included: ``X' = Y``. Inexact.

    Args:
        model: a network that `aero.convert` takes; left unchanged.
        deepest: how many of the deepest FFNs are gone afterwards, those that were pruned before
            included.
        layers: instead, the layers whose FFNs go, from 0. The label counts them and
            `AeroConfig.pruned_ffn_layers` names them where they are not the deepest.

    Returns:
        A new network; its function differs from that of `model`, so it wants retraining.

    Raises:
        ValueError: neither or both arguments, or layers that do not exist or have no FFN.

    Example:
        >>> from aero import AeroForCausalLM, prune_ffn
        >>> from aero.models import AeroConfig
        >>> model = AeroForCausalLM(AeroConfig.from_label("SM+ScFuFFN", model="tiny"))
        >>> prune_ffn(model, deepest=1).config.spec.label
        'SM+ScFuFFN_i1'
        >>> prune_ffn(model, layers=[0]).config.pruned_ffn_layers
        [0]
    """
    if (deepest is None) == (layers is None):
        raise ValueError("prune_ffn: give either deepest=K or layers=[...]")
    network = as_new_network(model)
    config = network.config
    given = [deepest] if layers is None else list(layers)
    numbers = [number for number in map(whole, given) if number is not None]
    if len(numbers) != len(given):
        name = "deepest" if layers is None else "layers"
        raise ValueError(f"prune_ffn: {name} must be of integers, got {given}")
    chosen = _deepest(config, numbers[0]) if layers is None else numbers
    return take_steps(network, [pruning_step(config, sorted(chosen))])


def pruning_step(config: AeroConfig, layers: Sequence[int]) -> Step:
    """The step that removes the FFNs of these layers."""
    spec = config.spec
    present = _layers_with_ffn(config)
    for layer in layers:
        if layer not in present:
            raise ValueError(
                f"prune_ffn: layers must be among those with an FFN, {present}, got {layer}"
            )
    if len(set(layers)) != len(layers):
        raise ValueError(f"prune_ffn: layers must be distinct, got {list(layers)}")
    pruned = [*config.layers_without_ffn, *layers]
    of_ffn = [name for name, place in part_places(spec).items() if place != "attention"]
    gone = ["mlp", "ln_2", "gain", *of_ffn]

    def change(weights: Weights) -> None:
        for layer in layers:
            for name in gone:
                weights.drop(f"transformer.h.{layer}.{name}")
        if len(pruned) == spec.num_layers:
            weights.drop("transformer.negative_slope")

    return Step(
        "prune_ffn",
        not layers,
        f"no FFN in {named_layers(layers)}",
        with_spec(config, spec, pruned_layers=pruned),
        change,
    )


def named_layers(layers: Sequence[int]) -> str:
    """``layer 3``, ``layers 3, 4``."""
    return f"layer{'' if len(layers) == 1 else 's'} {', '.join(map(str, layers)) or 'none'}"


def _deepest(config: AeroConfig, count: int) -> list[int]:
    """The deepest layers that still have an FFN, so that `count` are without."""
    pruned = config.layers_without_ffn
    num_layers = config.spec.num_layers
    if not len(pruned) <= count <= num_layers:
        raise ValueError(
            f"prune_ffn: deepest must be from {len(pruned)} (pruned already) to the number of "
            f"layers, {num_layers}, got {count}"
        )
    present = _layers_with_ffn(config)
    return present[len(present) - (count - len(pruned)) :]


def pruning_step_to(config: AeroConfig, count: int) -> Step:
    """The step after which `count` FFNs are gone, the deepest first."""
    return pruning_step(config, _deepest(config, count))


def _layers_with_ffn(config: AeroConfig) -> list[int]:
    pruned = set(config.layers_without_ffn)
    return [layer for layer in range(config.spec.num_layers) if layer not in pruned]


ActivationName = Literal["relu", "gelu", "identity"]

_FFN_OF = {"relu": "relu", "gelu": "gelu", "identity": "linear"}
_SLOPED = ("leaky_relu_layer", "leaky_relu_global")


def replace_activation(model: nn.Module, activation: ActivationName) -> AeroForCausalLM:
    """Puts another activation between the two layers of every FFN and keeps the weights. Inexact.

    Args:
        model: a network that `aero.convert` takes; left unchanged.
        activation: ``"relu"``, ``"gelu"`` or ``"identity"`` (nothing in between: linear FFNs).

    Returns:
        A new network; its function differs from that of `model`, so it wants retraining.

    Raises:
        ValueError: an unknown activation, or FFNs with scales or of one fused layer, which are
            linear by definition.

    Example:
        >>> from aero import AeroForCausalLM, replace_activation
        >>> from aero.models import AeroConfig
        >>> model = AeroForCausalLM(AeroConfig.from_label("SM+LN+G", model="tiny"))
        >>> changed = replace_activation(model, "relu")
        >>> changed.config.spec.label, changed.config.conversion_steps
        ('SM+LN+R', ['replace_activation (inexact): gelu becomes relu'])
    """
    if activation not in _FFN_OF:
        raise ValueError(
            "replace_activation: activation must be 'relu', 'gelu' or 'identity', "
            f"got {activation!r}"
        )
    network = as_new_network(model)
    return take_steps(network, [activation_step(network.config, _FFN_OF[activation])])


def activation_step(config: AeroConfig, ffn: str) -> Step:
    """The step to an FFN of two layers with the activation that `ffn` of the spec names."""
    spec = config.spec
    if "scaled" in spec.ffn or "fused" in spec.ffn:
        raise ValueError(
            f"replace_activation: the FFNs of {spec.label} are linear by definition; replace the "
            "activation before fusing and scaling"
        )
    before = "linear" if spec.ffn in ("weight_norm", "spectral_norm") else spec.ffn

    def change(weights: Weights) -> None:
        if before in _SLOPED:
            for name in [n for n in weights.tensors if n.endswith("negative_slope")]:
                weights.drop(name)

    return Step(
        "replace_activation",
        before == ffn,
        f"{_named(before)} becomes {_named(ffn)}",
        with_spec(config, spec.replace(ffn=ffn)),
        change,
    )


def _named(ffn: str) -> str:
    return "the identity" if ffn == "linear" else ffn.replace("_", " ")
