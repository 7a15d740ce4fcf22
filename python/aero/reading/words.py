"""Strangers' texts and values as one printable line."""

from __future__ import annotations

import re
import reprlib

__all__ = ["one_line", "printable", "shown"]

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80
_SHORT.maxlevel = _SHORT.maxlist = _SHORT.maxdict = 4
# Paths in words are rarely longer.
_LONG_WORD = re.compile(r"(\S{160})\S{160,}(\S{80})")


def printable(text: str) -> str:
    r"""Returns a text in which every character that a terminal acts on is written out.

    These are control characters with line ends, marks that change the direction of writing,
    invisible characters, and halves of surrogate pairs.

    Example:
        >>> from aero.reading.words import printable
        >>> print(printable("run\x1b[2J\n\u202e"))
        run\x1b[2J\n\u202e
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def one_line(text: object, most: int = 400) -> str:
    r"""Returns a message as one printable line of bounded length.

    Of a word of 400 characters or more the middle is left out, so that the others are still seen.

    Example:
        >>> from aero.reading.words import one_line
        >>> one_line("what a library\n  says \x1b[0m", 24)
        'what a library says \\x1b...'
    """
    words = _LONG_WORD.sub(r"\1...\2", str(text)).split()
    line = printable(" ".join(words)[: 4 * most])
    return line if len(line) <= most else f"{line[:most]}..."


def shown(value: object) -> str:
    r"""Returns a value's `repr` for an error: printable, and short however large the value is.

    Example:
        >>> from aero.reading.words import shown
        >>> print(shown("\x1b[2J"), shown([1, [2, [3, [4, [5]]]]] * 100))
        '\x1b[2J' [1, [2, [3, [4, [...]]]], 1, [2, [3, [4, [...]]]], ...]
    """
    return one_line(_SHORT.repr(value), 120)
