"""The shapes of parsed files, and strangers' values as one printable line.

A shape is a type (`object` for anything, `dict`, `list`, `str`, `int`, `float`, `bool`, `None`, or
several joined by `|`; an int is a float as well), a list with the shape of its entries, a dict with
the shapes of its entries, or a tuple of shapes of which one must fit. Of a dict's entries those are
optional whose name ends with `?`; others may be there too.
"""

from __future__ import annotations

import re
import reprlib
import types
import typing
from collections.abc import Callable
from typing import Any

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80
_SHORT.maxlevel = _SHORT.maxlist = _SHORT.maxdict = 4
# Paths in words are rarely longer.
_LONG_WORD = re.compile(r"(\S{160})\S{160,}(\S{80})")


def printable(text: str) -> str:
    r"""Returns a text in which every character that a terminal acts on is written out.

    These are control characters with line ends, marks that change the direction of writing,
    invisible characters, and halves of surrogate pairs.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def one_line(text: object, most: int = 400) -> str:
    r"""Returns a message as one printable line of bounded length.

    Of a word of 400 characters or more the middle is left out, so that the others are still seen.
    """
    words = _LONG_WORD.sub(r"\1...\2", str(text)).split()
    line = printable(" ".join(words)[: 4 * most])
    return line if len(line) <= most else f"{line[:most]}..."


def shown(value: object) -> str:
    r"""Returns a value's `repr` for an error: printable, and short however large the value is."""
    return one_line(_SHORT.repr(value), 120)


class UnreadableFileError(ValueError):
    """A file is damaged, too large, or of another kind; the text is one printable line."""


def checked(value: Any, shape: Any, name: str) -> Any:
    """Returns a value that has a shape, see `aero.reading.shapes`.

    Raises:
        UnreadableFileError: it has another shape; the text names the entry.
    """
    problem = _misfit(value, shape)
    if problem is None:
        return value
    place, wanted, found = problem
    where = f"{name}: {one_line(place.removeprefix('.'), 200)}" if place else name
    raise UnreadableFileError(f"{where}: expected {wanted}, got {found}")


_NOTHING = "none"
_WORDS: dict[Any, str] = {
    dict: "a mapping",
    list: "a list",
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    types.NoneType: "null",
    None: "null",
}


def _misfit(value: Any, shape: Any) -> tuple[str, str, str] | None:
    """The place, the expected and the received value; None if the value has the shape."""
    if isinstance(shape, types.UnionType | tuple):
        kinds = shape if isinstance(shape, tuple) else typing.get_args(shape)
        problems = [problem for kind in kinds if (problem := _misfit(value, kind))]
        if len(problems) < len(kinds):
            return None
        # The kind that fits at the top names the fault below best, then one that lacks an entry.
        below = [problem for problem in problems if problem[0]]
        lacking = [problem for problem in problems if problem[2] == _NOTHING]
        alike = lacking or problems
        words = " or ".join(dict.fromkeys(problem[1] for problem in alike))
        return below[0] if below else ("", words, alike[0][2])
    kind = type(shape) if isinstance(shape, dict | list) else shape
    if not _IS[kind](value):
        return "", _WORDS[kind], _word_of(value)
    if isinstance(shape, list):
        entries = ((f"[{index}]", entry, shape[0]) for index, entry in enumerate(value))
    elif isinstance(shape, dict):
        missing = [name for name in shape if not name.endswith("?") and name not in value]
        if missing:
            return "", f"an entry {missing[0]!r}", _NOTHING
        named = {name.removesuffix("?"): inner for name, inner in shape.items()}
        entries = ((f".{key}", value[key], named[key]) for key in named if key in value)
    else:
        return None
    for place, entry, inner in entries:
        problem = _misfit(entry, inner)
        if problem is not None:
            return place + problem[0], *problem[1:]
    return None


def _word_of(value: Any) -> str:
    return _WORDS[type(value)] if isinstance(value, dict | list | None) else shown(value)


_IS: dict[Any, Callable[[Any], bool]] = {
    object: lambda value: True,
    dict: lambda value: isinstance(value, dict),
    list: lambda value: isinstance(value, list),
    str: lambda value: isinstance(value, str),
    bool: lambda value: isinstance(value, bool),
    int: lambda value: type(value) is int and abs(value) < 1 << 63,
    float: lambda value: type(value) in (int, float),
    types.NoneType: lambda value: value is None,
    None: lambda value: value is None,
}
