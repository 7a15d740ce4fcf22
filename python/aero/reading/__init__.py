"""The one reader of files that somebody else may have written: YAML, JSON and lines of JSON.

Whatever a file holds, reading it ends soon and in bounded memory: with plain values of the expected
shape (`aero.reading.shapes`), or with an `UnreadableFileError`, whose text is one printable line.
"""

from aero.reading.files import (
    library_errors,
    parse_json,
    parse_yaml,
    read_bytes,
    read_json,
    read_json_lines,
    read_yaml,
)
from aero.reading.shapes import UnreadableFileError, checked, one_line, printable, shown

__all__ = [
    "UnreadableFileError",
    "checked",
    "library_errors",
    "one_line",
    "parse_json",
    "parse_yaml",
    "printable",
    "read_bytes",
    "read_json",
    "read_json_lines",
    "read_yaml",
    "shown",
]
