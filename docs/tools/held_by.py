"""The tests and the code that hold a statement of the threat model, behind one word of the page."""

from __future__ import annotations

import html
import re

#: A parenthesis of the page that names a test or code, such as (`test_keys.py: test_a_key`).
NAMED = re.compile(r" \((`(?:test_\w+|[\w/]+\.py)[^()]*)\)")


def folded(markdown: str) -> str:
    """The page with every such parenthesis behind *tested* or *code*, which show it."""
    return NAMED.sub(_word, markdown)


def _word(found: re.Match[str]) -> str:
    names = html.escape(found[1].replace("`", ""))
    word = "tested" if "test_" in names else "code"
    return f' <abbr class="held" tabindex="0" title="{names}">{word}</abbr>'
