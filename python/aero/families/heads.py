"""Heads that classify sequences or tokens, in place of a language model's."""

from __future__ import annotations

from aero.families.values import Values
from aero.families.writer import Operation, Writer

# The activation between the two layers of an encoder's head.
_ENCODERS = {"bert": "tanh", "distilbert": "relu", "roberta": "tanh"}


def classifying(
    values: Values, architecture: str, operations: list[Operation]
) -> list[Operation] | None:
    """The operations with the head of `architecture`; None where that is no such head."""
    is_encoder = values.family in _ENCODERS
    of_tokens = is_encoder and architecture.endswith("ForTokenClassification")
    if not of_tokens and not architecture.endswith("ForSequenceClassification"):
        return None
    last = max(place for place, one in enumerate(operations) if "repeat" in one)
    width = next(one["width"] for one in operations if one["op"] == "embed")
    kept = operations[: last + 1]
    if not is_encoder:  # with its final norm
        head = next(n for n, one in enumerate(operations) if one.get("output") == "logits")
        kept += operations[last + 1 : head]
    writer = Writer()
    if of_tokens:
        _logits(writer, "x", width, labels(values), bias=True)
    elif is_encoder:
        writer.add("pool", "pooled", "x", name="first token", kind="first")
        writer.linear("pooled", "pooled", "head.dense", "transform", "lm head", width, width,
                      bias=True)  # fmt: skip
        writer.activation("pooled", _ENCODERS[values.family], width)
        _logits(writer, "pooled", width, labels(values), bias=True)
    else:
        writer.add("pool", "pooled", "normed", name="last token", kind="last")
        _logits(writer, "pooled", width, labels(values), bias=False)
    return [*kept, *writer.operations]


def _logits(writer: Writer, given: str, width: int, labels: int, *, bias: bool) -> None:
    writer.linear("logits", given, "head", "logits", "lm head", width, labels, bias=bias)


def labels(values: Values) -> int:
    """How many labels a classifier has."""
    names = values.get("id2label")
    if names is None:
        return values.size("num_labels", default=2)
    if not isinstance(names, dict) or not names:
        raise values.wrong("id2label", "a mapping of labels", names)
    return len(names)
