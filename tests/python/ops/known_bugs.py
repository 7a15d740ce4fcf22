"""Faults that attention had elsewhere: the inputs that showed them, and what ours must give there.

`python -m tests.python.ops.known_bugs` renews the table of tests/fuzz/README.md.
"""

from __future__ import annotations

from pathlib import Path

from . import bugs_of_memory, bugs_of_rows  # noqa: F401  (they fill the list)
from .bug_checks import BUGS

PAGE = Path(__file__).parents[2] / "fuzz" / "README.md"
BEGIN, END = "<!-- known bugs -->\n", "<!-- end of known bugs -->"


def table() -> str:
    """The rows of the page."""
    rows = ["| thread | fault there |", "| --- | --- |"]
    for each in BUGS:
        repository, number = each.thread.split("#")
        link = f"https://github.com/{repository}/issues/{number}"
        rows.append(f"| [{each.thread}]({link}) | {each.fault} |")
    return "\n".join(rows) + "\n"


def page() -> str:
    """tests/fuzz/README.md with the table."""
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
