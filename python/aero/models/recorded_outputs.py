"""The hooks by which `transformers` takes outputs of modules, in a form that can be pickled.

Its own are local functions, so that a model that was once called with `output_attentions` can be
neither pickled nor sent to another process.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, cast

from torch import nn
from transformers import PreTrainedModel
from transformers.utils import output_capturing

_SETTINGS = ("key", "index", "capture_initial_hidden_state")


class RecordedOutput:
    """One such hook, by the arguments of `install_output_capuring_hook`."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        output_capturing.install_output_capuring_hook(cast(Any, self), **settings)

    def register_forward_hook(self, hook: Any) -> None:
        """Takes the hook in place of a module."""
        self.hook = hook

    def __call__(self, module: nn.Module, arguments: Any, output: Any) -> None:
        """Records the output where a call asked for it."""
        self.hook(module, arguments, output)

    def __reduce__(self) -> Any:
        """Pickles its settings."""
        return functools.partial(RecordedOutput, **self.settings), ()


def let_outputs_be_recorded(model: nn.Module) -> None:
    """Tells `transformers` which outputs a model records.

    It learns that when a model of the class is made, so a process knows nothing of a model that
    came from another one.
    """
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            output_capturing._CAN_RECORD_REGISTRY[module] = module._can_record_outputs


def set_state(model: Any, state: dict[str, Any]) -> None:
    """`__setstate__` of models that came from another process."""
    nn.Module.__setstate__(model, state)  # type: ignore[no-untyped-call]
    let_outputs_be_recorded(model)


def let_hooks_be_pickled(model: nn.Module) -> None:
    """Puts `RecordedOutput` in place of the hooks that `transformers` has installed."""
    for module in model.modules():
        for key, hook in module._forward_hooks.items():
            if getattr(hook, "__qualname__", "").startswith("install_output_capuring_hook."):
                held = inspect.getclosurevars(hook).nonlocals
                settings = {name: held[name] for name in _SETTINGS if name in held}
                module._forward_hooks[key] = RecordedOutput(**settings)
