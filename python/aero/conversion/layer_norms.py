"""Step 2: LayerNorms without their affine part, replaced by foldable norms, or removed.

A LayerNorm whose epsilon is far above any variance divides by sqrt(epsilon) and normalizes nothing:
it is centring and a fixed diagonal, which fold into the weights. The published GPT-2 models without
LayerNorm (arXiv 2507.02559) are stored so, with an epsilon of 1e12 and gains of 1e6.
"""

from __future__ import annotations

import torch
from torch import nn

from aero.architecture import ArchitectureSpec
from aero.conversion.parts import refuse_parts
from aero.conversion.plan import Step, as_new_network, take_steps
from aero.conversion.weights import (
    Weights,
    feed_forward_output,
    readers,
    untie,
    with_spec,
)
from aero.models import AeroConfig, AeroForCausalLM

# GPT-2's stream has variances up to some 1e4; at this epsilon they are a rounding error of float32.
_SWITCHED_OFF = 1e11


def fold_layernorm(model: nn.Module) -> AeroForCausalLM:
    """Folds gain and bias of every block's LayerNorm into the weights that read it. Exact.

    ``(n g + b) W + c = n (diag(g) W) + (b W + c)`` with n the normalized stream. The LayerNorms
    stay, with gain 1 and bias 0. The final one keeps its own: the head it precedes may be tied and
    has no bias.

    Spectral norms are multiplied out, since they would take the gains away again.

    Args:
        model: a network with LayerNorm that `aero.convert` takes; left unchanged.

    Returns:
        A new network with the same logits up to rounding.

    Raises:
        ValueError: no LayerNorm in the blocks, or shaped attention, which has no value weights.

    Example:
        >>> from aero import AeroForCausalLM, fold_layernorm
        >>> from aero.models import AeroConfig
        >>> model = AeroForCausalLM(AeroConfig.from_label("SM+LN+G", model="tiny"))
        >>> fold_layernorm(model).config.conversion_steps
        ['fold_layernorm (exact): W = diag(g) W, c = b W + c']
    """
    network = as_new_network(model)
    return take_steps(network, [affine_step(network.config)])


def remove_layernorm(model: nn.Module) -> AeroForCausalLM:
    """Removes every LayerNorm. Inexact: centring and division by the standard deviation are gone.

    LayerNorms that an epsilon of 1e11 or more switches off are removed exactly. A head that is tied
    then becomes a matrix of its own.

    Gain and bias of the blocks' LayerNorms are folded exactly first (`fold_layernorm`). The final
    LayerNorm's gain goes into a head that is not tied and its bias into the last bias before it; a
    tied head cannot take them in and they are dropped.

    Args:
        model: a network with LayerNorm that `aero.convert` takes; left unchanged.

    Returns:
        A new network; its function differs from that of `model`, so it wants retraining.

    Raises:
        ValueError: no LayerNorm, or shaped attention, which has no value weights.

    Example:
        >>> from aero import AeroForCausalLM, remove_layernorm
        >>> from aero.models import AeroConfig
        >>> model = AeroForCausalLM(AeroConfig.from_label("SM+LN+G", model="tiny"))
        >>> remove_layernorm(model).config.spec.label
        'SM+G'
    """
    network = as_new_network(model)
    return take_steps(network, removing_steps(network.config))


def removing_steps(config: AeroConfig) -> list[Step]:
    """The steps of `remove_layernorm`."""
    spec = config.spec
    if "layer" not in (spec.norm, spec.final_norm):
        raise ValueError(f"remove_layernorm: {spec.label} has no LayerNorm")
    final_norm = "none" if spec.final_norm == "layer" else spec.final_norm
    return layer_norm_steps(config, "none" if spec.norm == "layer" else spec.norm, final_norm)


def layer_norm_steps(config: AeroConfig, norm: str, final_norm: str) -> list[Step]:
    """The steps from LayerNorm to the norms that the spec calls `norm` and `final_norm`."""
    if config.layer_norm_epsilon >= _SWITCHED_OFF:
        return [_switched_off_step(config, norm, final_norm)]
    steps = []
    if config.spec.norm == "layer" != norm:
        steps.append(affine_step(config))
    steps.append(_normalization_step(steps[-1].config if steps else config, norm, final_norm))
    return steps


def affine_step(config: AeroConfig) -> Step:
    """The step that folds gains and biases."""
    spec = config.spec
    if spec.norm != "layer":
        raise ValueError(f"fold_layernorm: {spec.label} has no LayerNorm in its blocks")
    refuse_parts("fold_layernorm", spec)

    def change(weights: Weights) -> None:
        for layer in range(spec.num_layers):
            _fold_affine(weights, layer)

    effect = "W = diag(g) W, c = b W + c"
    if spec.ffn == "spectral_norm":
        effect += "; spectral norms are multiplied out"
    changed = with_spec(config, _without_spectral_norm(spec))
    return Step("fold_layernorm", True, effect, changed, change)


def _without_spectral_norm(spec: ArchitectureSpec) -> ArchitectureSpec:
    """Plain weights where a spectral norm would divide by the scale that a step gives them."""
    return spec.replace(ffn="linear") if spec.ffn == "spectral_norm" else spec


def _switched_off_step(config: AeroConfig, norm: str, final_norm: str) -> Step:
    """The step that folds LayerNorms which divide by sqrt(epsilon): centring, gain and bias.

    ``((x C) diag(s) + b) W + c`` with C the centring and s = g / sqrt(epsilon). Where every reader
    centres, whoever writes to the stream may do it instead, so that x C = x.
    """
    spec = config.spec
    if (spec.norm, spec.final_norm) != ("layer", "layer") or (norm, final_norm) != ("none", "none"):
        raise ValueError(
            f"convert: the LayerNorms of this network are switched off (epsilon "
            f"{config.layer_norm_epsilon:g}); convert it to a label without norm, such as 'SM+G'"
        )
    affine_step(config)  # refuses shaped attention
    divisor = config.layer_norm_epsilon**0.5

    def change(weights: Weights) -> None:
        untie(weights)  # the final gain goes into the head, and centring into the embeddings
        for layer in range(spec.num_layers):
            for name in ("ln_1", "ln_2"):
                gain = f"transformer.h.{layer}.{name}.weight"
                if gain in weights.tensors:
                    weights.set(gain, weights.vector(gain) / divisor)
            _fold_affine(weights, layer)
            for name in ("ln_1", "ln_2"):
                weights.drop(f"transformer.h.{layer}.{name}")
            for path in (f"transformer.h.{layer}.attn.c_proj", feed_forward_output(weights, layer)):
                if path is not None:
                    matrix, bias = weights.matrix(path), weights.vector(f"{path}.bias")
                    weights.set_matrix(path, matrix - matrix.mean(1, keepdim=True))
                    weights.set(f"{path}.bias", bias - bias.mean())
        for name in ("transformer.wte.weight", "transformer.wpe.weight"):
            if name in weights.tensors:
                rows = weights.vector(name)
                weights.set(name, rows - rows.mean(1, keepdim=True))
        gain = weights.vector("transformer.ln_f.weight") / divisor
        weights.set("transformer.ln_f.weight", gain)
        lost = ((gain == 0) & (weights.vector("transformer.ln_f.bias") != 0)).nonzero().flatten()
        if lost.numel():
            raise ValueError(
                f"convert: the final LayerNorm has a bias in channel {int(lost[0])}, whose gain is "
                "0, and no weight can take it in; set that bias to 0 and train on"
            )
        _move_final_affine(config, weights)
        weights.drop("transformer.ln_f")

    return Step(
        "remove_layernorm",
        True,
        f"switched off by epsilon {config.layer_norm_epsilon:g}: centring, gain and bias fold"
        + ("; the head is no longer tied" if spec.tied_embeddings else ""),
        with_spec(
            config,
            _without_spectral_norm(spec).replace(
                norm="none", final_norm="none", tied_embeddings=False
            ),
        ),
        change,
    )


def _fold_affine(weights: Weights, layer: int) -> None:
    for path, norm in readers(weights, layer):
        matrix = weights.matrix(path)
        bias = weights.vector(f"{norm}.bias") @ matrix + weights.vector(f"{path}.bias")
        weights.set_matrix(path, weights.vector(f"{norm}.weight")[:, None] * matrix)
        weights.set(f"{path}.bias", bias)
    for name in ("ln_1", "ln_2"):
        norm = f"transformer.h.{layer}.{name}"
        if weights.has(norm):
            weights.set(f"{norm}.weight", torch.ones_like(weights.tensors[f"{norm}.weight"]))
            weights.set(f"{norm}.bias", torch.zeros_like(weights.tensors[f"{norm}.bias"]))


def _normalization_step(config: AeroConfig, norm: str, final_norm: str) -> Step:
    spec = config.spec
    is_replaced = norm.startswith("foldable")
    drops_affine = spec.final_norm == "layer" != final_norm and (
        spec.tied_embeddings or final_norm == "foldable"
    )
    named = norm.replace("_", " norm per ")
    effect = (
        f"LayerNorm becomes a {named}, whose statistics start with training"
        if is_replaced
        else "centring and division by the standard deviation are gone"
    )
    if drops_affine:
        effect += (
            "; the final one's bias is dropped"
            if final_norm == "foldable"
            else "; the final one's gain and bias are dropped (the head is tied)"
        )
    # A final foldable norm is of the other norms' kind, beside LayerNorms channelwise.
    becomes_scalar = spec.final_norm == final_norm == "foldable" and norm == "foldable_scalar"
    if becomes_scalar:
        effect += "; the final norm's statistics become their mean"

    def change(weights: Weights) -> None:
        for layer in range(spec.num_layers):
            for name in ("ln_1", "ln_2"):
                if spec.norm == "layer" != norm:
                    weights.drop(f"transformer.h.{layer}.{name}" + (".bias" if is_replaced else ""))
        if spec.final_norm == "layer" != final_norm:
            if final_norm == "none" and not spec.tied_embeddings:
                _move_final_affine(config, weights)
            weights.drop("transformer.ln_f" + (".bias" if final_norm == "foldable" else ""))
        elif becomes_scalar:
            name = "transformer.ln_f.running_mean_square"
            weights.set(name, weights.vector(name).mean().view(1))

    return Step(
        "replace_layernorm" if is_replaced else "remove_layernorm",
        False,
        effect,
        with_spec(config, spec.replace(norm=norm, final_norm=final_norm)),
        change,
    )


def _move_final_affine(config: AeroConfig, weights: Weights) -> None:
    """``(x g + b) W = (x + b / g) (diag(g) W)``: b / g joins the last bias that x contains."""
    gain = weights.vector("transformer.ln_f.weight")
    bias = weights.vector("transformer.ln_f.bias")
    weights.set_matrix("lm_head", gain[:, None] * weights.matrix("lm_head"))
    shift = torch.where(gain == 0, 0.0, bias / gain)
    last = config.spec.num_layers - 1
    path = f"transformer.h.{last}.attn.c_proj"
    output = feed_forward_output(weights, last)
    if output is not None:  # the FFN of a sequential block would see a shift before it
        path = output
        alpha = f"transformer.h.{last}.mlp.alpha"
        if alpha in weights.tensors:
            shift = shift * weights.vector(alpha)
    weights.set(f"{path}.bias", weights.vector(f"{path}.bias") + shift)
