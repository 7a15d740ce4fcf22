"""Judges the message of a commit, as a hook of git: python tests/commit_message.py FILE.

That the subject is an imperative sentence, and names its component, people have to see.
"""

from __future__ import annotations

import sys
from pathlib import Path

MOST_CHARACTERS = 72
# Subjects that git writes.
OF_GIT = ("Merge ", "Revert ", "fixup! ", "squash! ", "amend! ")


def problem_of(message: str) -> str | None:
    """Returns what is wrong with a message; None where nothing is."""
    lines = [line for line in message.splitlines() if not line.startswith("#")]
    subject, *body = "\n".join(lines).strip().splitlines() or [""]
    if not subject:
        return "the subject must not be empty"
    if subject.startswith(OF_GIT):
        return None
    if len(subject) > MOST_CHARACTERS:
        return f"the subject must have at most {MOST_CHARACTERS} characters, got {len(subject)}"
    if subject.rstrip().endswith("."):
        return f"the subject must not end with a full stop, got {subject!r}"
    if body and body[0].strip():
        return f"an empty line must follow the subject, got {body[0]!r}"
    return None


if __name__ == "__main__":
    found = problem_of(Path(sys.argv[1]).read_text("utf-8"))
    if found:
        sys.exit(f"commit message: {found}")
