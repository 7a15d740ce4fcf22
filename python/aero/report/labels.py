"""What labels say: the words in them, and the family that colours a network in the figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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


def family(spec: Mapping[str, object]) -> str:
    """Returns what networks of one colour share: the norm, and whether the penalty trained them.

    Args:
        spec: an `ArchitectureSpec` as JSON.
    """
    return _NORMS[str(spec["norm"])] + (", entropy penalty" if spec["entropy_regularized"] else "")


def families(specs: Iterable[Mapping[str, object]]) -> list[str]:
    """Returns the families of some networks, each once, in the order of `FAMILIES`."""
    return sorted({family(spec) for spec in specs}, key=FAMILIES.index)


def explained(labels: Iterable[str]) -> dict[str, str]:
    """Returns the words of some labels and their meaning, each where it first occurs.

    Example:
        >>> from aero.report.labels import explained
        >>> explained(["SM+FuFFN_i2"])["_i2"]
        'the 2 deepest FFNs are absent'
    """
    found: dict[str, str] = {}
    for label in labels:
        for word, meaning in label_words(label).items():
            found.setdefault(word, meaning)
    return found
