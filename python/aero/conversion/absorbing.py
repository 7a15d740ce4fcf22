"""Absorption of scaled fused FFNs into attention, embeddings and head.

A fused FFN with its residual connection is one affine map ``X' = Y M + b / alpha`` with
``M = beta I + W / alpha`` (row vectors; ``M = I + W`` without scales, ``M = I`` for a pruned FFN).
The stream is kept as ``X_l F_l^-1`` with frames ``F_{l+1} = F_l M_l``, so that the map disappears:

    queries, keys, values   W <- F_l W
    output projection       W <- W F_l^-1,  b <- b F_l^-1 + b_l / alpha_l F_{l+1}^-1
                            (parallel residual: F_{l+1}^-1 for all three)
    embeddings              E <- E F_0^-1
    head                    W <- F_L W, no longer tied

The FFN's bias goes into the output projection's, so the head needs none. Which frame is the
identity is free. With ``F_0 = I`` the condition of F_l grows with every layer; with the identity in
the middle its logarithm halves, so that about twice as many FFNs can go (of a trained 6-layer
network all six at a bound of 100 in place of five).

An FFN whose map would take a frame beyond the bound stays, with ``F_l M_l`` for its map, and a new
chain of frames starts behind it with the identity: another frame there would multiply the condition
of the map that stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from aero.conversion.feed_forwards import named_layers
from aero.conversion.folding import folding_step
from aero.conversion.parts import refuse_parts
from aero.conversion.plan import Step, as_new_network, take_steps
from aero.conversion.weights import Weights, take_apart, with_spec
from aero.models import AeroConfig, AeroForCausalLM
from aero.nn.linear import in_mode


@dataclass(frozen=True)
class LayerAbsorption:
    """The result for one layer's FFN.

    Attributes:
        layer: from 0.
        map_condition: 2-norm condition number of M, the FFN with its residual connection.
        new_condition: of the frame behind it, by whose inverse weights were multiplied; for a kept
            FFN of its new map.
        outcome: ``"absorbed"``, ``"kept"`` or ``"none"`` (the layer had no FFN).
    """

    layer: int
    map_condition: float
    new_condition: float
    outcome: str


@dataclass(frozen=True, repr=False)
class Absorption:
    """A network with absorbed FFNs and how well conditioned that was; `print` shows it.

    Attributes:
        model: the new network. Absorbed FFNs are pruned ones to it: its label counts them
            (``SM+ScFuFFN_i6`` of 6 layers has no FFN left), `AeroConfig.pruned_ffn_layers` names
            them where they are not the deepest, and its head is a matrix of its own, without bias.
            So it is saved, loaded, exported and costed as any other network.
        layers: every layer.
        max_condition: the bound.
        relative_error: ``|logits - original logits| / |original logits|`` (2-norms), measured on
            random tokens in the network's dtype.
    """

    model: AeroForCausalLM
    layers: tuple[LayerAbsorption, ...]
    max_condition: float
    relative_error: float

    def to_text(self) -> str:
        """The layers as a table, and the measured error."""
        lines = ["layer  map's condition  new condition  FFN"]
        lines += [
            f"{each.layer:5d}  {each.map_condition:15.3g}  {each.new_condition:13.3g}  "
            f"{each.outcome}"
            for each in self.layers
        ]
        count = sum(each.outcome == "absorbed" for each in self.layers)
        total = sum(each.outcome != "none" for each in self.layers)
        lines.append(
            f"{count} of {total} FFNs absorbed at condition numbers up to {self.max_condition:g}; "
            f"measured relative error of the logits {self.relative_error:.1e}"
        )
        return "\n".join(lines)

    __repr__ = to_text


@torch.no_grad()
def absorb_ffn(model: nn.Module, *, max_condition: float = 100.0) -> Absorption:
    """Multiplies fused FFNs into attention, embeddings and head. Exact.

    Computed in float64, each weight rounded once. Up to condition numbers of 100 the logits agree
    to 1e-5 in float32; beyond, look at the measured error. FFNs beyond the bound stay. Foldable
    norms are folded first.

    Args:
        model: a network with fused FFNs (``FuFFN``, ``ScFuFFN``), without a norm that does
            not fold; left unchanged.
        max_condition: bound on the condition number of every matrix whose inverse is used.

    Returns:
        The new network, condition numbers per layer, and the measured error.

    Raises:
        ValueError: LayerNorm, DyT or Derf, shaped attention, a part that reads earlier tokens, FFNs
            of two layers, no FFN at all, values that are not finite, or a bound below 1.

    Example:
        >>> from aero import absorb_ffn, AeroForCausalLM
        >>> from aero.models import AeroConfig
        >>> model = AeroForCausalLM(AeroConfig.from_label("SM+ScFuFFN", model="tiny"))
        >>> absorbed = absorb_ffn(model)
        >>> absorbed.model.config.spec.label, absorbed.relative_error < 1e-5
        ('SM+ScFuFFN_i2', True)
    """
    network = as_new_network(model)
    _check(network.config, max_condition)
    original = network
    if network.config.spec.norm != "none" or network.config.spec.final_norm != "none":
        network = take_steps(network, [folding_step(network.config)])
    config = network.config
    weights = take_apart(network)
    maps = [_map(weights, config, layer) for layer in range(config.spec.num_layers)]
    frames, kept = _chains(maps, max_condition)
    step = _absorbing_step(config, maps, frames, kept)
    absorbed = take_steps(network, [step])
    layers = tuple(
        LayerAbsorption(
            layer,
            _condition(maps[layer]),
            _condition(frames[layer] @ maps[layer] if layer in kept else frames[layer + 1]),
            "none"
            if layer in config.layers_without_ffn
            else "kept"
            if layer in kept
            else "absorbed",
        )
        for layer in range(len(maps))
    )
    return Absorption(absorbed, layers, max_condition, _relative_error(absorbed, original))


def _check(config: AeroConfig, max_condition: float) -> None:
    spec = config.spec
    if not all(kind.startswith(("none", "foldable")) for kind in (spec.norm, spec.final_norm)):
        raise ValueError(
            f"absorb_ffn: {spec.label} has a LayerNorm, DyT or Derf, which no matrix passes; call "
            "remove_layernorm, or train with a foldable norm (FN), first"
        )
    refuse_parts("absorb_ffn", spec)
    if "fused" not in spec.ffn:
        raise ValueError(
            f"absorb_ffn: the FFNs of {spec.label} have two layers; call fuse_ffn first (after "
            "replace_activation(model, 'identity') where they have an activation)"
        )
    if spec.num_pruned_ffns == spec.num_layers:
        raise ValueError(f"absorb_ffn: {spec.label} has no FFN left")
    if not max_condition >= 1:
        raise ValueError(f"absorb_ffn: max_condition must be at least 1, got {max_condition}")


def _scales(weights: Weights, config: AeroConfig, layer: int) -> tuple[float, float]:
    """Alpha and beta, 1 without."""
    if config.spec.ffn != "scaled_fused":
        return 1.0, 1.0
    names = (f"transformer.h.{layer}.mlp.{name}" for name in ("alpha", "beta"))
    alpha, beta = (weights.vector(name).item() for name in names)
    return alpha, beta


def _map(weights: Weights, config: AeroConfig, layer: int) -> Tensor:
    """M of a layer, [C, C], float64."""
    identity = torch.eye(config.spec.width, dtype=torch.float64, device=_device(weights))
    path = f"transformer.h.{layer}.mlp"
    if not weights.has(path):
        return identity
    alpha, beta = _scales(weights, config, layer)
    product = beta * identity + weights.matrix(path) / alpha
    if not product.isfinite().all():
        raise ValueError(
            f"absorb_ffn: the FFN of layer {layer} has values that are not finite (or alpha is "
            "zero); take a checkpoint from before the divergence"
        )
    return product


def _device(weights: Weights) -> torch.device:
    return weights.tensors["transformer.wte.weight"].device


def _condition(matrix: Tensor) -> float:
    return float(torch.linalg.cond(matrix))


def _chains(maps: list[Tensor], bound: float) -> tuple[list[Tensor], list[int]]:
    """Frames F_0 to F_L, and the layers whose FFN stays."""
    identity = torch.eye(len(maps[0]), dtype=torch.float64, device=maps[0].device)
    num_layers = len(maps)

    @cache
    def product(first: int, end: int) -> Tensor:
        return identity if first == end else product(first, end - 1) @ maps[end - 1]

    @cache
    def condition(first: int, end: int) -> float:
        return _condition(product(first, end))

    def conditions(first: int, origin: int, end: int) -> Iterator[float]:
        """The conditions of the frames from `first` to `end` with the identity at `origin`."""
        yield from (condition(frame, origin) for frame in range(first, origin))
        yield from (condition(origin, frame) for frame in range(origin, end + 1))

    def chain(first: int) -> tuple[int, int]:
        """The last frame of the longest chain from frame `first`, and the best place of I."""
        chains = []
        for origin in range(first, num_layers + 1 if first == 0 else first + 1):
            if condition(first, origin) > bound:
                break
            end = origin
            while end < num_layers and condition(origin, end + 1) <= bound:
                end += 1
            worst = max(conditions(first, origin, end))
            if worst <= bound:
                chains.append((end, -worst, origin))
        end, _, origin = max(chains)
        return end, origin

    frames, kept, first = [identity] * (num_layers + 1), [], 0
    while first <= num_layers:
        last, origin = chain(first)
        for frame in range(first, last + 1):
            is_behind = frame >= origin
            frames[frame] = (
                product(origin, frame) if is_behind else torch.linalg.inv(product(frame, origin))
            )
        if last < num_layers:
            kept.append(last)
        first = last + 1
    return frames, kept


def _absorbing_step(
    config: AeroConfig, maps: list[Tensor], frames: list[Tensor], kept: list[int]
) -> Step:
    spec = config.spec
    pruned = [layer for layer in range(spec.num_layers) if layer not in kept]
    gone = [layer for layer in pruned if layer not in config.layers_without_ffn]

    def change(weights: Weights) -> None:
        for layer in range(spec.num_layers):
            _change_block(config, weights, layer, maps, frames, is_kept=layer in kept)
        head = "lm_head" if weights.has("lm_head") else "transformer.wte"
        weights.set_matrix("lm_head", frames[-1] @ weights.matrix(head))
        for name in ("transformer.wte", "transformer.wpe"):
            if weights.has(name):  # rows are tokens or positions
                rows = weights.vector(f"{name}.weight")
                weights.set(f"{name}.weight", _over(rows, frames[0]))

    return Step(
        "absorb_ffn",
        True,
        f"FFN of {named_layers(gone)} went into attention, embeddings and head",
        with_spec(config, spec.replace(tied_embeddings=False), pruned_layers=pruned),
        change,
    )


def _change_block(
    config: AeroConfig,
    weights: Weights,
    layer: int,
    maps: list[Tensor],
    frames: list[Tensor],
    *,
    is_kept: bool,
) -> None:
    attention, mlp = f"transformer.h.{layer}.attn", f"transformer.h.{layer}.mlp"
    before, after = frames[layer], frames[layer + 1]
    written = after if config.spec.parallel_residual else before
    weights.set_matrix(f"{attention}.c_attn", before @ weights.matrix(f"{attention}.c_attn"))
    output = _over(weights.matrix(f"{attention}.c_proj"), written)
    bias = _over(weights.vector(f"{attention}.c_proj.bias"), written)
    if weights.has(mlp):
        alpha, _ = _scales(weights, config, layer)
        shift = _over(weights.vector(f"{mlp}.bias") / alpha, after)
        if is_kept:
            _keep(config, weights, mlp, before @ maps[layer], shift)
        else:
            bias = bias + shift
            weights.drop(mlp)
    weights.set_matrix(f"{attention}.c_proj", output)
    weights.set(f"{attention}.c_proj.bias", bias)


def _keep(config: AeroConfig, weights: Weights, mlp: str, matrix: Tensor, bias: Tensor) -> None:
    """Makes `matrix` the map of an FFN and its residual connection."""
    if config.spec.ffn == "scaled_fused":
        weights.set(f"{mlp}.alpha", matrix.new_ones(1))
        weights.set(f"{mlp}.beta", matrix.new_zeros(1))
    else:
        matrix = matrix - torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    weights.set_matrix(mlp, matrix)
    weights.set(f"{mlp}.bias", bias)


def _over(rows: Tensor, frame: Tensor) -> Tensor:
    """``rows F^-1``; rows [..., C]."""
    solved: Tensor = torch.linalg.solve(frame, rows.view(-1, rows.shape[-1]), left=False)
    return solved.view_as(rows)


def _relative_error(network: nn.Module, original: AeroForCausalLM) -> float:
    spec = original.config.spec
    generator = torch.Generator().manual_seed(0)
    shape = (2, min(spec.context_length, 64))
    tokens = torch.randint(spec.vocab_size, shape, generator=generator).to(original.device)
    with in_mode(original), in_mode(network):
        expected, actual = (each(tokens).logits.double() for each in (original, network))
    return float((actual - expected).norm() / expected.norm())
