"""Heads that classify sequences, tokens or sounds, in place of a language model's, and halves."""

from __future__ import annotations

import dataclasses

from aero.families.sizes import Described
from aero.families.values import Values
from aero.families.writer import Operation, Writer

_ENCODERS = {"bert", "distilbert", "roberta"}
# The activation between the two layers of the heads that have two.
_BETWEEN = {"bert": "tanh", "distilbert": "relu", "mt5": "tanh", "roberta": "tanh", "t5": "tanh"}


def classifying(
    values: Values, architecture: str, operations: list[Operation]
) -> list[Operation] | None:
    """The operations with the head of `architecture`; None where that is no such head."""
    if values.family == "bert" and architecture.endswith("ForPreTraining"):
        return _with_next_sentence(operations)
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
        return [*kept, *writer.operations]
    if is_encoder:
        writer.add("pool", "pooled", "x", name="first token", kind="first")
    else:
        writer.add("pool", "pooled", "normed", name="last token", kind="last")
    between = _BETWEEN.get(values.family)
    if between:
        writer.linear("pooled", "pooled", "head.dense", "transform", "lm head", width, width,
                      bias=True)  # fmt: skip
        writer.activation("pooled", between, width)
    _logits(writer, "pooled", width, labels(values), bias=bool(between))
    return [*kept, *writer.operations]


def _with_next_sentence(operations: list[Operation]) -> list[Operation]:
    """BERT's two heads: whether a sentence follows another, before the one of masked tokens."""
    last = max(place for place, one in enumerate(operations) if "repeat" in one)
    width = next(one["width"] for one in operations if one["op"] == "embed")
    writer = Writer()
    writer.add("pool", "pooled", "x", name="first token", kind="first")
    writer.linear("pooled", "pooled", "pooler", "pooler", "lm head", width, width, bias=True)
    writer.activation("pooled", "tanh", width)
    writer.linear("follows", "pooled", "next_sentence", "next sentence", "lm head", width, 2,
                  bias=True)  # fmt: skip
    return [*operations[: last + 1], *writer.operations, *operations[last + 1 :]]


def half(values: Values, architecture: str, found: Described) -> Described | None:
    """The encoder or the decoder alone of one that has both; None where `architecture` has both."""
    is_sound = values.family == "whisper"
    if is_sound and architecture.endswith("ForCausalLM"):
        return _decoder(found)
    of_tokens = not is_sound and architecture.endswith("ForTokenClassification")
    of_sound = is_sound and architecture.endswith("ForAudioClassification")
    if not of_tokens and not of_sound and not architecture.endswith(("EncoderModel", "Encoder")):
        return None
    end, width = _memory(found)
    kept, writer = found.operations[: end + 1], Writer()
    if of_tokens:
        _logits(writer, "memory", width, labels(values), bias=True)
    elif of_sound:
        values.must("use_weighted_layer_sum", False, False)
        inner = values.size("classifier_proj_size", default=256)
        writer.linear("projected", "memory", "head.projection", "projection", "lm head", width,
                      inner, bias=True)  # fmt: skip
        writer.add("pool", "pooled", "projected", name="mean of the sound", kind="mean")
        _logits(writer, "pooled", inner, labels(values), bias=True)
    operations = [*kept, *writer.operations]
    if not is_sound:
        return dataclasses.replace(found, operations=operations, unpriced=())
    heard = values.size("max_source_positions", default=1500)
    return dataclasses.replace(found, operations=operations, positions=heard, fixed=True)


def _decoder(found: Described) -> Described:
    """The decoder of a sound that is encoded elsewhere."""
    end, width = _memory(found)
    heard = next(one["rows"] for one in found.operations if one.get("output") == "sinusoids")
    writer = Writer()
    writer.add("source", "memory", positions=heard, width=width, name="what an encoder heard")
    told = f"PV: cross attention reads {heard:,} rows of an encoder, which is not priced"
    operations = [*writer.operations, *found.operations[end + 1 :]]
    return dataclasses.replace(found, operations=operations, unpriced=(*found.unpriced, told))


def _memory(found: Described) -> tuple[int, int]:
    """The place and the width of the norm that ends the encoder."""
    return next(
        (place, one["width"])
        for place, one in enumerate(found.operations)
        if one.get("output") == "memory"
    )


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
