"""Values of a configuration, checked one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# The words of transformers' configurations for activations, and ours.
FUNCTIONS = {
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "relu2": "relu_squared",
    "gelu": "gelu_erf",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
#: Families whose weights `aero export` writes; all but BERT, which sees both sides, run privately.
EXPORTED = (
    "bert", "bloom", "gemma", "llama", "mistral", "phi", "qwen2", "qwen3", "stablelm",
    "starcoder2",
)  # fmt: skip
# An entry that no model has: the user's word that the choice of experts may be seen.
REVEALED = "revealed_routing"
_LARGEST = 2**40
# Operations are written out one by one.
_MOST = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers"), 4096),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), 4096),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts"), 1024),
}


class Values:
    """Reads a configuration; every error names the entry and the family."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.family = str(config.get("model_type"))

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of these entries that is there and not None."""
        found = (self.config.get(name) for name in names)
        return next((value for value in found if value is not None), default)

    def size(self, *names: str, default: int | None = None) -> int:
        """An integer from 1 on; of layers and experts not more than there can be."""
        value = self.get(*names, default=default)
        most = _MOST.get(names[0], _LARGEST)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise self.wrong(names[0], f"an integer from 1 to {most}", value)
        return value

    def number(self, *names: str, default: float) -> float:
        """A number."""
        value = self.get(*names, default=default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(names[0], "a number", value)
        return float(value)

    def flag(self, *names: str, default: bool) -> bool:
        """A switch."""
        value = self.get(*names, default=default)
        if not isinstance(value, bool):
            raise self.wrong(names[0], "true or false", value)
        return value

    def function(self, *names: str, default: str) -> str:
        """The activation, in our words."""
        word = self.get(*names, default=default)
        if not isinstance(word, str) or word not in FUNCTIONS:
            raise self.wrong(names[0], f"one of {', '.join(FUNCTIONS)}", word)
        return FUNCTIONS[word]

    def rotary(self, head_dim: int, share: float = 1.0) -> tuple[int, float]:
        """Rotating channels of each head, and the base of their angles.

        Scaled angles are public numbers too, so their kind decides no price.
        """
        ropes = self.get("rope_parameters", default={})
        if not isinstance(ropes, dict):
            raise self.wrong("rope_parameters", "a mapping", ropes)
        first = next((one for one in ropes.values() if isinstance(one, dict)), ropes)
        inner = Values({**self.config, **first})
        part = inner.number("partial_rotary_factor", "rotary_pct", default=share)
        if not 0 <= part <= 1:
            raise self.wrong("partial_rotary_factor", "a number from 0 to 1", part)
        base = inner.number("rope_theta", "rotary_emb_base", default=10000.0)
        return int(part * head_dim), base

    def windows(self, layers: int, *, default_on: bool = True) -> tuple[int, ...]:
        """The last keys that a query sees, of each layer; 0: all earlier ones."""
        window = self.get("sliding_window", default=0)
        if isinstance(window, bool) or not isinstance(window, int) or window < 0:
            raise self.wrong("sliding_window", "an integer from 0", window)
        kinds = self.get("layer_types")
        if isinstance(kinds, list):
            if len(kinds) != layers:
                raise self.wrong("layer_types", f"a list of {layers}", len(kinds))
            return tuple(int(window) if kind == "sliding_attention" else 0 for kind in kinds)
        if not self.flag("use_sliding_window", default=default_on):
            return (0,) * layers
        if self.get("sliding_window_pattern") is not None:
            every = self.size("sliding_window_pattern")  # the last of so many layers sees all
            return tuple(window if place % every else 0 for place in range(1, layers + 1))
        last = self.get("max_window_layers", default=0)
        first = min(last if isinstance(last, int) else 0, layers)
        return (0,) * first + (window,) * (layers - first)

    def must(self, name: str, allowed: Any, default: Any) -> None:
        """Refuses an entry that the description has no place for."""
        value = self.get(name, default=default)
        if value != allowed:
            raise self.wrong(name, repr(allowed), value)

    def wrong(self, name: str, expected: str, got: Any) -> ValueError:
        """The error for an entry."""
        shown = repr(got)[:80]
        return ValueError(f"configuration: {name} of {self.family} must be {expected}, got {shown}")
