"""Results in a document whose words stand: between two marks, the rest is people's."""

from __future__ import annotations

from pathlib import Path

from aero.atomic_files import write_bytes_atomically

__all__ = ["write_between_marks"]


def write_between_marks(document: Path, name: str, text: str) -> None:
    r"""Puts text where the document has a place for it; a new document is that place alone.

    Args:
        document: Markdown; made if missing.
        name: of the place, which lies between `<!-- name -->` and `<!-- end of name -->`.
        text: what is to stand there.

    Raises:
        ValueError: the document has no such place, or more than one.

    Example:
        >>> from pathlib import Path
        >>> from aero.private.marked_document import write_between_marks
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = Path(folder) / "page.md"
        ...     _ = page.write_text("Before.\n<!-- it -->\nold\n<!-- end of it -->\nAfter.\n")
        ...     write_between_marks(page, "it", "new")
        ...     page.read_text()
        'Before.\n<!-- it -->\nnew\n<!-- end of it -->\nAfter.\n'
    """
    start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before = f"{start}{end}\n"
    if document.exists():
        before = document.read_text(encoding="utf-8")
    head, opened, rest = before.partition(start)
    _, closed, tail = rest.partition(end)
    if not (opened and closed) or start in tail:
        raise ValueError(
            f"private: {document} must have one place for the results, between {start.strip()!r} "
            f"and {end!r}"
        )
    written = f"{head}{start}{text.rstrip()}\n{end}{tail}"
    write_bytes_atomically(document, written.encode())
