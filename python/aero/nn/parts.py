"""The parts that labels add to layers, and where each stands.

The name of a part is the field of `ArchitectureSpec` that says which kind of it a network has, the
beginning of its other fields, and its module's name in state dicts.
"""

from __future__ import annotations

from aero.architecture import ArchitectureSpec
from aero.nn.block import BlockPart, Place
from aero.nn.convolution import CausalConvolution

BLOCK_PARTS: dict[str, type[BlockPart]] = {"convolution": CausalConvolution}


def part_places(spec: ArchitectureSpec) -> dict[str, Place]:
    """The parts that a network has, each with its place in a layer."""
    places = {name: part.place_in(spec) for name, part in BLOCK_PARTS.items()}
    return {name: place for name, place in places.items() if place is not None}


def part_fields(spec: ArchitectureSpec, name: str) -> dict[str, bool | int | float | str]:
    """The fields of a part."""
    fields = spec.to_dict().items()
    return {field: value for field, value in fields if f"{field}_".startswith(f"{name}_")}


def build_parts(spec: ArchitectureSpec, layer_index: int, *, has_ffn: bool) -> dict[str, BlockPart]:
    """The parts of a layer; those of an FFN go where that is pruned."""
    return {
        name: BLOCK_PARTS[name].of(spec, layer_index)
        for name, place in part_places(spec).items()
        if has_ffn or place == "attention"
    }
