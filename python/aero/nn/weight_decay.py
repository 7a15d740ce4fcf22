"""What weight decay must not pull to zero, and a word at the first step of an optimizer that does.

Temperatures, thresholds, alpha, beta and the gains of foldable norms are scales: at 0 the network
is not a simpler one but another. Rules that go by names or by dimensions take many of them for
weights: transformers' Trainer decays whatever has no "bias" or "norm" in its name, "dim >= 2" (as
in nanoGPT) the temperatures [H, T] and the gains of weight norm, `model.parameters()` all of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import Any
from weakref import WeakSet

from torch import nn
from torch.nn.utils.parametrize import ParametrizationList
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

# Gains of torch's weight norm: [out, 1], the scale of a weight and not a weight.
_WEIGHT_NORM_GAIN = "original0"
# Learned by the entropy penalty alone.
_THRESHOLDS = ("entropy_threshold", "threshold_bias")


class Scales(nn.Module):
    """A module that has parameters which weight decay has to spare.

    All of them are known, so that the first step of an optimizer can be compared with them. What a
    subclass adds is a scale only where it says so.
    """

    _scale_names: tuple[str, ...] = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _modules.add(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Copies and pickles are known too."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        _modules.add(self)


# Weak: no module or optimizer may live longer for having been looked at.
_modules: WeakSet[Scales] = WeakSet()
_seen: WeakSet[Optimizer] = WeakSet()


def scales_of(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters that a module itself owns and that are scales, with their names in it."""
    for name, parameter in module.named_parameters(recurse=False):
        is_scale = isinstance(module, Scales) and name in module._scale_names
        if is_scale or (isinstance(module, ParametrizationList) and name == _WEIGHT_NORM_GAIN):
            yield name, parameter


def _look_at(optimizer: Optimizer, *_: Any) -> None:
    """Says at an optimizer's first step which scales it decays, and that a penalty is missing."""
    if optimizer in _seen:
        return
    _seen.add(optimizer)
    held = {id(one): group for group in optimizer.param_groups for one in group["params"]}
    found = {
        id(parameter): (f"{type(module).__name__}.{name}", parameter)
        for owner in list(_modules)
        for module in owner.modules()
        for name, parameter in scales_of(module)
        if parameter.requires_grad and id(parameter) in held
    }
    optimizer_name = type(optimizer).__name__
    decayed = [name for key, (name, _) in found.items() if held[key].get("weight_decay")]
    if decayed:
        warnings.warn(
            f"weight decay of this {optimizer_name} pulls parameters to zero that are no weights: "
            f"{_counted(decayed)}; give those a group with weight_decay=0.0: "
            "aero.models.initialization.decay_parameter_names(model) names what may decay, and "
            "aero.train.AeroTrainer goes by it",
            stacklevel=3,
        )
    unmoved = [
        name
        for name, parameter in found.values()
        if name.endswith(_THRESHOLDS) and parameter.grad is None
    ]
    if unmoved:
        warnings.warn(
            f"the entropy penalty is not in the loss of this {optimizer_name}: thresholds have no "
            f"gradient, {_counted(unmoved)}; call the model in training mode with labels and "
            "minimize its own loss, add aero.models.EntropyPenalty's term to yours, or take a "
            "label without EReg",
            stacklevel=3,
        )


def _counted(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(f"{name} ({names.count(name)})" for name in sorted(set(names)))


register_optimizer_step_pre_hook(_look_at)
