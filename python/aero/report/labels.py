"""What labels say: the words in them, and the family that colours a network in the figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from aero.architecture import label_words

_NORMS = {
    "layer": "LayerNorm",
    "foldable_channel": "foldable norm",
    "foldable_scalar": "foldable norm",
    "none": "no norm",
    "dynamic_tanh": "Dynamic Tanh or erf",
    "dynamic_erf": "Dynamic Tanh or erf",
}
#: All families, in the order of their colours.
FAMILIES = tuple(
    norm + penalty
    for penalty in ("", ", entropy penalty")
    for norm in dict.fromkeys(_NORMS.values())
)


def family(spec: Mapping[str, Any]) -> str:
    """Returns what networks of one colour share: the norm, and whether the penalty trained them.

    Args:
        spec: an `ArchitectureSpec` as JSON.
    """
    return _NORMS[spec["norm"]] + (", entropy penalty" if spec["entropy_regularized"] else "")


def families(specs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns the families of some networks, each once, in the order of `FAMILIES`."""
    return sorted({family(spec) for spec in specs}, key=FAMILIES.index)


def explained(labels: Iterable[str]) -> dict[str, str]:
    """Returns the words of some labels and their meaning, each where it first occurs.

    Example:
        >>> from aero.report.labels import explained
        >>> explained(["SM+FuFFN_i2"])["_i2"]
        'the 2 deepest FFNs are absent'
    """
    meanings = label_words()
    plain = sorted((word for word in meanings if "..." not in word), key=len, reverse=True)
    pattern = "|".join([r"EReg\(", r"_i\d+", "[CDS][2-8]", *map(re.escape, plain)])
    found: dict[str, str] = {}
    for label in labels:
        for word in re.findall(pattern, label):
            name = "EReg(...)" if word == "EReg(" else word
            found.setdefault(name, _meaning(name, meanings))
    return found


def _meaning(word: str, meanings: Mapping[str, str]) -> str:
    if word.startswith("_i"):
        return meanings["_iK"].replace("the K deepest", f"the {word[2:]} deepest")
    if re.fullmatch("[CDS][2-8]", word):
        taps = f"{word[1]} tokens"
        meaning = meanings[f"{word[0]}4"].replace("4 tokens, or 2 to 8", taps)
        return meaning.replace("as many taps", taps)
    return meanings[word]
