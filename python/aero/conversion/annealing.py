"""Annealing of a trained network into a cheaper one, instead of cutting its parts out.

LayerNorms become foldable norms, or nothing, and GELUs become linear while training goes on:

    network = begin_annealing(trained, "SM+FN+ScFuFFN")      # with the outputs of `trained`
    ...                                                      # train, with an AnnealingCallback
    network = finish_annealing(network)                      # is an SM+FN+ScFuFFN

On the way a network without norm has channelwise foldable norms, which fold exactly at the end, and
a fused FFN has its two layers, which are multiplied exactly at the end.
"""

from __future__ import annotations

import copy
from dataclasses import asdict
from typing import Any

from torch import Tensor, nn

from aero.architecture import ArchitectureSpec
from aero.conversion.feed_forwards import fuse_ffn
from aero.conversion.folding import folding_step, has_foldable_blocks
from aero.conversion.parts import label_fields
from aero.conversion.plan import as_new_network, take_steps
from aero.conversion.training_fields import TRAINING_FIELDS, with_training_fields
from aero.conversion.weights import start_additions_neutral
from aero.models import AeroForCausalLM
from aero.models.building import AnnealedParts, check_annealing, spec_at_the_end
from aero.nn import FoldableNorm
from aero.nn.annealed_modules import AnnealedNorm, annealing_progress


def begin_annealing(
    model: nn.Module, label: str, *, final_norm: str | None = None, **training_fields: Any
) -> AeroForCausalLM:
    """Returns a network with the outputs of `model` that can be annealed into another.

    Its `config.spec` is that of the other network. How far it has come is set by
    `aero.nn.annealed_modules.set_annealing_progress`, in training by
    `aero.train.AnnealingCallback`.

    Args:
        model: a trained network with LayerNorm or the target's norm and with a GELU, ReLU or linear
            FFN of two layers, as `aero.convert` takes it; it is left unchanged.
        label: the other network: the same or foldable norms or none; an FFN with ReLU or without
            activation, scaled or not, fused or not, the deepest pruned or not; with temperatures
            and entropy penalty or without. Temperatures start at 1.
        final_norm: ``"none"``, ``"layer"`` or ``"foldable"``, where it differs from the label's
            default.
        **training_fields: of `AeroConfig`, for the network to be trained.

    Returns:
        The network; same device, dtype, mode and generation settings.

    Raises:
        ValueError: there is no way from the one to the other, or a field that is not allowed.

    Example:
        >>> from aero import AeroForCausalLM
        >>> from aero.conversion import begin_annealing
        >>> import torch
        >>> from aero.models import AeroConfig
        >>> model = AeroForCausalLM(AeroConfig.from_label("SM+LN+G", model="tiny")).eval()
        >>> network = begin_annealing(model, "SM+FN+ScFuFFN")
        >>> tokens = torch.randint(256, (4, 32))
        >>> torch.allclose(network(tokens).logits, model(tokens).logits, atol=1e-6)
        True
    """
    for name in training_fields:
        if name not in TRAINING_FIELDS:
            known = ", ".join(TRAINING_FIELDS)
            raise ValueError(f"begin_annealing: there is no option {name!r}; there are {known}")
    trained = as_new_network(model)
    source = trained.config.spec
    target = _target(source, label, final_norm)
    try:
        parts = check_annealing(source, target)
    except ValueError as error:
        raise ValueError(f"begin_annealing: {error}") from error
    starts = {"temperature_init": 1.0} if source.temperature == "none" else {}
    config = with_training_fields("begin_annealing", trained.config, {**starts, **training_fields})
    config.update_spec(target)
    config.annealed_from = asdict(parts)
    step = f"begin_annealing (inexact): {source.label} becomes {target.label}"
    config.conversion_steps = [*(config.conversion_steps or []), step]
    network = like(AeroForCausalLM(config), trained)
    start_additions_neutral(network)
    state, weights = network.state_dict(), trained.state_dict()
    for name in state:
        # The new norm starts with the old one's gain.
        origin = name.replace(".source.", ".").replace(".target.", ".")
        if origin in weights and weights[origin].shape == state[name].shape:
            state[name] = weights[origin]
    network.load_state_dict(state)
    return network


def finish_annealing(model: AeroForCausalLM) -> AeroForCausalLM:
    """Returns the network that an annealing has reached, without any trace of the old parts.

    Args:
        model: the result of `begin_annealing`, trained to the end (a = 1); it is left unchanged.

    Returns:
        A network of the target's label, whose logits equal those of `model` in evaluation mode up
        to rounding: fused products and folded norms are rounded once, from float64.

    Raises:
        ValueError: the network is not being annealed, or not at its end yet.

    Example:
        >>> from aero import AeroForCausalLM
        >>> from aero.conversion import begin_annealing, finish_annealing
        >>> import torch
        >>> from aero.models import AeroConfig
        >>> from aero.nn.annealed_modules import set_annealing_progress
        >>> model = AeroForCausalLM(AeroConfig.from_label("SM+LN+G", model="tiny"))
        >>> network = begin_annealing(model.eval(), "SM+ScFuFFN")
        >>> set_annealing_progress(network, 1.0)
        >>> finish_annealing(network).config.spec.label
        'SM+ScFuFFN'
    """
    if model.config.annealed_from is None:
        raise ValueError("finish_annealing: the network is not being annealed")
    progress = annealing_progress(model)
    if progress is not None and progress < 1.0:
        raise ValueError(
            f"finish_annealing: the network is only {progress:.0%} of its way; train it to the end"
        )
    target = model.config.spec
    parts = AnnealedParts(**model.config.annealed_from)
    config = copy.deepcopy(model.config)
    config.update_spec(spec_at_the_end(target, parts))
    config.annealed_from = None
    network = like(AeroForCausalLM(config), model)
    network.load_state_dict(_without_old_parts(model.state_dict(), network))
    if "fused" in target.ffn and target.num_pruned_ffns < target.num_layers:
        network = fuse_ffn(network)
    if target.norm == "none" and has_foldable_blocks(network.config.spec):
        network = take_steps(network, [folding_step(network.config, keeps_final=True)])
    keep_discrepancies(model, network)
    assert network.config.spec == target
    return network


def _target(source: ArchitectureSpec, label: str, final_norm: str | None) -> ArchitectureSpec:
    """The network of a label at the sizes of another one."""
    named = ArchitectureSpec.from_label(label, model="gpt2", num_layers=source.num_layers)
    changes: dict[str, Any] = label_fields(named)
    if final_norm is not None:
        changes["final_norm"] = final_norm
    return source.replace(**changes)


def _without_old_parts(state: dict[str, Tensor], network: AeroForCausalLM) -> dict[str, Tensor]:
    wanted = network.state_dict()
    found = {name.replace(".target.", "."): value for name, value in state.items()}
    return {name: found[name] for name in wanted}


def keep_discrepancies(model: AeroForCausalLM, network: AeroForCausalLM) -> None:
    """Takes over how far the last batch was from the running statistics, which no state holds."""
    for name, norm in network.named_modules():
        if isinstance(norm, FoldableNorm):
            found = model.get_submodule(name)
            old = found.target if isinstance(found, AnnealedNorm) else found
            assert isinstance(old, FoldableNorm)
            norm.discrepancy.copy_(old.discrepancy)


def like(network: AeroForCausalLM, model: AeroForCausalLM) -> AeroForCausalLM:
    """The network with device, dtype, mode and generation settings of a model."""
    nn.Module.to(network, model.device, model.dtype)
    network.generation_config = copy.deepcopy(model.generation_config)
    network.train(model.training)
    return network
