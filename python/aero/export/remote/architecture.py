"""The fields of a network's architecture, without the labels and counts of aero-torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ArchitectureSpec:
    """Like `aero.ArchitectureSpec`; the defaults are ``SM+LN+G`` in the size ``mini``."""

    family: str = "gpt2"
    num_layers: int = 6
    num_heads: int = 4
    head_dim: int = 32
    width: int = 128
    hidden_width: int = 512
    context_length: int = 128
    vocab_size: int = 4096
    tied_embeddings: bool = True
    rotary_fraction: float = 0.0
    parallel_residual: bool = False
    norm: str = "layer"
    final_norm: str = "layer"
    ffn: str = "gelu"
    normalized_layers: str = "ffn"
    convolution: str = "none"
    convolution_taps: int = 1
    num_pruned_ffns: int = 0
    temperature: str = "none"
    entropy_regularized: bool = False
    shaped_attention: bool = False

    @classmethod
    def from_label(cls, label: str, *, model: str = "gpt2", **overrides: Any) -> ArchitectureSpec:
        """The default network; other labels need aero-torch."""
        if label not in ("SM", "SM+LN+G") or model != "mini":
            raise ValueError(f"labels such as {label!r} are read by aero-torch; install it")
        return cls(**overrides)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> ArchitectureSpec:
        """Reads the result of `to_dict`."""
        return cls(**fields)

    def to_dict(self) -> dict[str, Any]:
        """All fields by name."""
        return dataclasses.asdict(self)

    def replace(self, **fields: Any) -> ArchitectureSpec:
        """The same with other values of some fields."""
        return dataclasses.replace(self, **fields)
