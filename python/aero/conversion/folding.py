"""Folding of foldable norms into the weights that follow them."""

from __future__ import annotations

import torch
from torch import Tensor

from aero.architecture import ArchitectureSpec
from aero.conversion.plan import Step, as_new_network, take_steps
from aero.conversion.weights import Weights, feed_forward_output, readers, untie, with_spec
from aero.models import AeroConfig, AeroForCausalLM
from aero.nn import FoldableNorm
from aero.nn.parts import part_places

_EPS = FoldableNorm(1).eps


def fold_norm(model: AeroForCausalLM) -> AeroForCausalLM:
    """Removes every foldable norm by scaling the weights that read its output. Exact.

    In evaluation a foldable norm is the diagonal matrix ``S = diag(g / sqrt(v + eps))``, so its
    product with the next weight replaces both: ``W' = S W`` for query, key and value, for the FFN,
    and for the head, which is no longer tied then. The products are rounded once, from float64.
    Weights under weight or spectral norm become plain ones.

    Shaped attention has no value weights, but no skip connection either: its output is linear in
    each channel of its input. There the stream is kept as ``X T_l^-1`` with ``T_l`` the inverse of
    the product of all S from layer l on: queries, keys and FFN read ``T_l S_l W``, the FFN writes
    ``W T_{l+1}^-1``, and the embeddings, untied, are multiplied by ``T_0^-1``.

    Args:
        model: a network with a foldable norm before its blocks or at its end; it is left unchanged.

    Returns:
        A network without these norms whose logits equal those of `model` in evaluation mode up to
        rounding; same device, dtype and mode.

    Raises:
        ValueError: the network has no foldable norm, or it has shaped attention and a gain of zero,
            by which its stream cannot be divided.

    Example:
        >>> from aero import AeroForCausalLM, fold_norm
        >>> import torch
        >>> from aero.models import AeroConfig
        >>> model = AeroForCausalLM(AeroConfig.from_label("SM+FN+ScFuFFN", model="tiny"))
        >>> tokens = torch.randint(256, (4, 32))
        >>> _ = model.train()(tokens)
        >>> folded = fold_norm(model.eval())
        >>> folded.config.spec.label
        'SM+ScFuFFN'
        >>> torch.allclose(folded(tokens).logits, model(tokens).logits, atol=1e-5)
        True
    """
    network = as_new_network(model)
    return take_steps(network, [folding_step(network.config)])


def folding_step(config: AeroConfig, *, keeps_final: bool = False) -> Step:
    """The step that folds all foldable norms, or those of the blocks alone."""
    spec = config.spec
    folds_blocks = has_foldable_blocks(spec)
    folds_head = spec.final_norm == "foldable" and not keeps_final
    beside = [name for name, place in part_places(spec).items() if place == "beside FFN"]
    if not folds_blocks and not folds_head:
        raise ValueError(f"fold_norm: {spec.label} has no foldable norm")

    def change(weights: Weights) -> None:
        if folds_head:
            untie(weights)
            weights.set_matrix(
                "lm_head", _scale(weights, "transformer.ln_f")[:, None] * weights.matrix("lm_head")
            )
            weights.drop("transformer.ln_f")
        if folds_blocks and spec.shaped_attention:
            _fold_shaped_blocks(weights, spec.num_layers)
        elif folds_blocks:
            for layer in range(spec.num_layers):
                _fold_block(weights, layer, beside)

    folded = spec.replace(
        norm="none" if folds_blocks else spec.norm,
        final_norm="none" if folds_head else spec.final_norm,
        tied_embeddings=spec.tied_embeddings
        and not (folds_head or (folds_blocks and spec.shaped_attention)),
        ffn="linear" if spec.ffn in ("weight_norm", "spectral_norm") else spec.ffn,
    )
    return Step(
        "fold_norm", True, "W = diag(g / sqrt(v + eps)) W", with_spec(config, folded), change
    )


def has_foldable_blocks(spec: ArchitectureSpec) -> bool:
    """Returns whether the norms of the blocks are foldable."""
    return spec.norm in ("foldable_channel", "foldable_scalar")


def _scale(weights: Weights, norm: str) -> Tensor:
    """The norm's factor of each channel in evaluation, [C], float64."""
    mean_square = weights.vector(f"{norm}.running_mean_square")
    return weights.vector(f"{norm}.weight") * torch.rsqrt(mean_square + _EPS)


def _fold_block(weights: Weights, layer: int, beside: list[str]) -> None:
    for path, norm in readers(weights, layer):
        weights.set_matrix(path, _scale(weights, norm)[:, None] * weights.matrix(path))
    # Factors in front of a product leave the norm's to the product; matrices [.., in, out] beside
    # the FFN read its output.
    for name in beside:
        matrices = f"transformer.h.{layer}.{name}.weight"
        if matrices in weights.tensors:
            scale = _scale(weights, f"transformer.h.{layer}.ln_2")[:, None]
            weights.set(matrices, scale * weights.vector(matrices))
    for norm in ("ln_1", "ln_2"):
        weights.drop(f"transformer.h.{layer}.{norm}")


def _fold_shaped_blocks(weights: Weights, num_layers: int) -> None:
    after = torch.ones_like(_scale(weights, "transformer.h.0.ln_1"))  # diagonal of T_{l+1}
    for layer in reversed(range(num_layers)):
        norm = f"transformer.h.{layer}.ln_1"
        scale = _scale(weights, norm)
        if not scale.all():
            raise ValueError(
                f"fold_norm: the gain of h.{layer}.ln_1 is zero in some channel, and shaped "
                "attention has no weights to take it in; set it to a small number instead"
            )
        # T_l S_l = T_{l+1}: the inputs and outputs of this block lie on the same scale.
        for path, _ in readers(weights, layer):
            weights.set_matrix(path, after[:, None] * weights.matrix(path))
        output = feed_forward_output(weights, layer)
        if output is not None:
            weights.set_matrix(output, weights.matrix(output) / after)
            weights.set(f"{output}.bias", weights.vector(f"{output}.bias") / after)
        weights.drop(norm)
        after = after / scale
    untie(weights)
    for name in ("transformer.wte.weight", "transformer.wpe.weight"):
        if name in weights.tensors:
            weights.set(name, weights.vector(name) / after)
