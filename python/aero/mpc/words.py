"""What is to be said of prices, and of several at once, each thing once and of whom."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aero.mpc.cost import Cost
from aero.tables import in_units

Lowerings = Mapping[str, Sequence[str]]


def words_dict(
    notes: Iterable[str], unchecked: Iterable[str], trust: str, lowerings: Lowerings
) -> dict[str, Any]:
    """What is said of prices, ready for JSON."""
    return {
        "notes": list(notes),
        "unchecked": list(unchecked),
        "trust": trust,
        "lowerings": {part: list(lines) for part, lines in lowerings.items()},
    }


def trusted(trust: str, *totals: Cost) -> str:
    """Whom users trust, and what a dealer sends beforehand, in one line."""
    if not trust or not any(total.dealer_bytes for total in totals):
        return trust
    sent = " and ".join(f"{in_units(total.dealer_bytes)} GB" for total in totals)
    return f"{trust}; the dealer sends {sent} beforehand, which no other number has in it"


def different_trust(trust: Mapping[str, str]) -> list[str]:
    """Says that stacks trust differently; nothing where they do not.

    Args:
        trust: Name of a stack -> whom it trusts.
    """
    if len({*trust.values()}) < 2:
        return []
    each = "; ".join(f"{name}: {whom}" for name, whom in trust.items())
    return [f"stacks of different trust, so their bytes are not the price of one thing: {each}"]


def of_each(texts: Iterable[tuple[str, Iterable[str]]], every: str = "") -> tuple[str, ...]:
    """Texts, each once, with the names that they are said of.

    Args:
        texts: Of each name, which may come again.
        every: In place of the names where they are all; empty: nothing.
    """
    found, names = _grouped(texts)
    return tuple(
        f"{every}{': ' * bool(every)}{text}" if len(said) == names else f"{', '.join(said)}: {text}"
        for text, said in found.items()
    )


def lowerings_of(prices: Iterable[tuple[str, Lowerings]]) -> dict[str, tuple[str, ...]]:
    """The lines of a program of several prices, part by part, with the names that differ.

    Args:
        prices: Of each name, which may come again, as a stack with other settings does.
    """
    prices = list(prices)
    found: dict[str, tuple[str, ...]] = {}
    for part in sorted({part for _, lines in prices for part in lines}):
        ways: dict[str, list[str]] = {}
        for name, lines in prices:
            way, known = ", ".join(lines.get(part, ())), ways.setdefault(name, [])
            known += [way] if way and way not in known else []
        said = [(name, [" or ".join(known)]) for name, known in ways.items() if known]
        together, names = _grouped(said)
        for way, of in together.items():
            found[part if len(of) == names else f"{part}, {' and '.join(of)}"] = (way,)
    return found


def _grouped(said: Iterable[tuple[str, Iterable[str]]]) -> tuple[dict[str, list[str]], int]:
    """Text -> the names that it is said of, and how many names there are."""
    found: dict[str, list[str]] = {}
    names = set()
    for name, texts in said:
        names.add(name)
        for text in texts:
            known = found.setdefault(text, [])
            known += [name] if name not in known else []
    return found, len(names)
