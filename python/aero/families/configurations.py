"""The network of a configuration, of every family that has a description."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from aero.families.encoder_decoders import ENCODER_DECODERS
from aero.families.encoders import bert, distilbert, roberta, vit
from aero.families.gpts import GPTS
from aero.families.heads import classifying, half
from aero.families.llamas import LLAMAS
from aero.families.pictures import WHOLE, said_of_half, text_half
from aero.families.sizes import Described
from aero.families.values import Values
from aero.families.writer import Operation


def described(config: Mapping[str, Any], **changes: Any) -> Described:
    """The network that a configuration makes: a language model, or a classifier by its name.

    Args:
        config: the content of a `config.json`.
        **changes: entries in place of its own, or of those of the half that reads text.

    Raises:
        ValueError: a family or a setting without description, by name.
    """
    config = {**text_half(config), **changes}
    values = Values(config)
    if values.family not in FAMILIES:
        raise ValueError(
            f"configuration: model_type must be one of {', '.join(sorted(FAMILIES))}, got "
            f"{values.family!r}; describe the network in a network.json, take the nearest label, "
            "or in Python price torch.export.export(model, inputs), which needs no known family"
        )
    found = FAMILIES[values.family](values)
    named = values.get("architectures", default=[])
    if values.family in ENCODER_DECODERS and isinstance(named, list) and len(named) > 1:
        raise values.wrong("architectures", "a list of one class", named)
    for name in named if isinstance(named, list) else []:
        found = _with_head(found, values, str(name))
    family = str(config.get(WHOLE, found.family))
    return dataclasses.replace(
        found, family=family, unpriced=(*found.unpriced, *said_of_half(config))
    )


def _with_head(found: Described, values: Values, architecture: str) -> Described:
    """The network with the head that its model has, or with the word that it has another."""
    both = values.family in ENCODER_DECODERS
    if both and (part := half(values, architecture, found)) is not None:
        return part
    if architecture.endswith(_OWN_HEADS):
        return found
    operations = classifying(values, architecture, found.operations)
    if operations is not None:
        return dataclasses.replace(found, operations=operations)
    told = f"lm head: the model is a {architecture}, priced with the head of its family"
    told += ", an encoder and a decoder" * both
    return dataclasses.replace(found, unpriced=(*found.unpriced, told))


def _encoder(write: Callable[[Values], list[Operation]], *, more: int = 0) -> Any:
    def found(values: Values) -> Described:
        values.must("is_decoder", False, False)
        positions = values.size("max_position_embeddings") - more
        return Described(values.family, write(values), positions, values.size("vocab_size"))

    return found


# Heads that the families have of themselves.
_OWN_HEADS = (
    "ForCausalLM", "ForMaskedLM", "LMHeadModel", "ForConditionalGeneration",
    "ForImageClassification",
)  # fmt: skip

FAMILIES: dict[str, Callable[[Values], Described]] = {
    **LLAMAS,
    **GPTS,
    **ENCODER_DECODERS,
    "bert": _encoder(bert),
    "distilbert": _encoder(distilbert),
    # Two positions of its table belong to padding.
    "roberta": _encoder(roberta, more=2),
    "vit": vit,
}
