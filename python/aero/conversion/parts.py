"""The parts of labels: which fields are sizes, what steps refuse which part, and what adds one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aero.architecture import ArchitectureSpec, size_names
from aero.conversion.plan import Step
from aero.conversion.weights import with_spec
from aero.models import AeroConfig
from aero.nn.parts import BLOCK_PARTS, part_fields

#: Fields of a spec that a conversion leaves as they are; labels name all others.
SIZE_FIELDS = tuple(size_names())


@dataclass(frozen=True)
class _Part:
    """A part that a network may have.

    Attributes:
        name: in errors.
        refused: by step, why it cannot be taken, and the way out.
        effect: of adding it, in one line; None where no step adds it.
    """

    name: str
    refused: Mapping[str, str]
    effect: Callable[[ArchitectureSpec], str] | None = None


# By the field that says whether a network has it.
_PARTS = {
    "shaped_attention": _Part(
        "shaped attention",
        {
            "absorb_ffn": "which has no value and output weights to take the FFNs in; leave its "
            "FFNs as they are",
            "fold_layernorm": "whose values are the normalized stream itself, so no weight can "
            "take gain and bias in; train such a network again",
        },
    ),
    "convolution": _Part(
        "a convolution",
        {
            # What an FFN of C or D adds depends on the tokens before, which no frame takes in. The
            # factors of S could be multiplied out, to a matrix for each token that q, k, v read.
            "absorb_ffn": "beside which absorbing is not possible (C, D) or not written yet (S); "
            "leave its FFNs as they are",
            "fold_layernorm": "which reads zeros before the first token, where LayerNorm's bias is "
            "not; keep LayerNorm, or change it before adding the convolution",
            "add_convolution": "which stays as it is; keep it in the label",
            "convert in place": "and the model's caches keep none of its inputs; convert without "
            "inplace",
        },
        lambda spec: (
            f"{spec.convolution.replace('_', ' ')} convolution of "
            f"{spec.convolution_taps} taps, at the start the token itself"
        ),
    ),
}


def label_fields(spec: ArchitectureSpec) -> dict[str, object]:
    """Returns the fields that the label of a network names."""
    return {name: value for name, value in spec.to_dict().items() if name not in SIZE_FIELDS}


def refuse_parts(step: str, spec: ArchitectureSpec) -> None:
    """Raises ValueError where a network has a part that a step cannot take."""
    for field, part in _PARTS.items():
        if step in part.refused and getattr(spec, field) not in (False, "none"):
            raise ValueError(f"{step}: {spec.label} has {part.name}, {part.refused[step]}")


def adding_steps(config: AeroConfig, target: ArchitectureSpec) -> list[Step]:
    """The steps that give layers the parts of another network; they start as if absent."""
    steps = []
    for field in BLOCK_PARTS:
        fields = part_fields(target, field)
        if fields == part_fields(config.spec, field):
            continue
        effect = _PARTS[field].effect
        assert effect is not None
        refuse_parts(f"add_{field}", config.spec)
        config = with_spec(config, config.spec.replace(**fields))
        steps.append(Step(f"add_{field}", True, effect(target), config))
    return steps
