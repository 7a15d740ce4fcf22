"""The parts of labels: which fields are sizes, and which steps cannot take which part, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aero.architecture import ArchitectureSpec

#: Fields of a spec that a conversion leaves as they are; labels name all others.
SIZE_FIELDS = (
    "family", "num_layers", "num_heads", "head_dim", "width", "hidden_width", "context_length",
    "vocab_size", "tied_embeddings", "rotary_fraction", "parallel_residual",
)  # fmt: skip


@dataclass(frozen=True)
class _Part:
    """A part that a network may have.

    Attributes:
        name: in errors.
        is_in: whether a network has it.
        refused: by step, why it cannot be taken, and the way out.
    """

    name: str
    is_in: Callable[[ArchitectureSpec], bool]
    refused: Mapping[str, str]


_PARTS = (
    _Part(
        "shaped attention",
        lambda spec: spec.shaped_attention,
        {
            "absorb_ffn": "which has no value and output weights to take the FFNs in; leave its "
            "FFNs as they are",
            "fold_layernorm": "whose values are the normalized stream itself, so no weight can "
            "take gain and bias in; train such a network again",
        },
    ),
    _Part(
        "a convolution",
        lambda spec: spec.convolution != "none",
        {
            "absorb_ffn": "whose tokens before no frame takes in; leave its FFNs as they are",
            "fold_layernorm": "which reads zeros before the first token, where LayerNorm's bias is "
            "not; keep LayerNorm, or change it before adding the convolution",
            "add_convolution": "which stays as it is; keep it in the label",
            "convert in place": "and the model's caches keep none of its inputs; convert without "
            "inplace",
        },
    ),
)


def label_fields(spec: ArchitectureSpec) -> dict[str, object]:
    """Returns the fields that the label of a network names."""
    return {name: value for name, value in spec.to_dict().items() if name not in SIZE_FIELDS}


def refuse_parts(step: str, spec: ArchitectureSpec) -> None:
    """Raises ValueError where a network has a part that a step cannot take."""
    for part in _PARTS:
        if step in part.refused and part.is_in(spec):
            raise ValueError(f"{step}: {spec.label} has {part.name}, {part.refused[step]}")
