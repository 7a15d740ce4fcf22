"""Files into plain values: sizes are checked first, nesting and numbers while parsing."""

from __future__ import annotations

import json
import os
import re
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aero.reading.shapes import UnreadableFileError, checked, one_line, printable, shown

# Tokenizers of 260,000 tokens have 35 MB with 2 million commas and brackets; a person's YAML has a
# few kB, and PyYAML is slow.
_MOST_JSON_BYTES = 128 << 20
_MOST_JSON_VALUES = 4_000_000
_MOST_YAML_BYTES = 1 << 18
_MOST_LINES_BYTES = 1 << 30
_MOST_YAML_NODES = 10_000  # with what aliases stand for
_MOST_LEVELS = 48
# int(1e30), with which transformers says that a tokenizer knows no longest text, has 31.
_MOST_DIGITS = 32
_MOST_FLOAT_CHARACTERS = 128
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def read_bytes(path: str | Path, most: int) -> bytes:
    """Returns the content of a file or a pipe.

    Raises:
        UnreadableFileError: there is none, it cannot be read, or it is larger.
    """
    try:
        # A pipe in a stranger's folder has nobody who writes; opened like this it is empty.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(file, "rb") as opened:
            size, got, pieces = os.fstat(file).st_size, "more", bytearray()
            if size > most:
                got = f"{size:,}"
            else:
                os.set_blocking(file, True)
                while len(pieces) <= most and (piece := opened.read(1 << 20)):
                    pieces += piece
                size = len(pieces)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UnreadableFileError(f"{_name(path)}: cannot be read: {one_line(reason)}") from error
    if size > most:
        raise UnreadableFileError(f"{_name(path)}: expected at most {most:,} bytes, got {got}")
    return bytes(pieces)


def read_json(path: str | Path, shape: Any = dict, *, finite: bool = True) -> Any:
    """Reads a JSON file.

    Args:
        path: the file.
        shape: its required contents, see `aero.reading.shapes`.
        finite: whether NaN and Infinity are refused, which strict JSON has no words for.

    Returns:
        Dicts, lists, texts, numbers, bools and None.

    Raises:
        UnreadableFileError: there is no such file, or it holds something else.
    """
    return parse_json(read_bytes(path, _MOST_JSON_BYTES), path, shape, finite=finite)


def read_yaml(path: str | Path, shape: Any = dict) -> Any:
    """Reads a YAML file of one document; dates stay texts, and keys must be texts.

    Raises:
        UnreadableFileError: as for `read_json`.
    """
    return parse_yaml(read_bytes(path, _MOST_YAML_BYTES), path, shape)


def parse_json(
    content: str | bytes, name: str | Path, shape: Any = dict, *, finite: bool = True
) -> Any:
    """Parses JSON; arguments as of `read_json`, with what errors call the text as its name.

    Raises:
        UnreadableFileError: it is no JSON of this shape.
    """
    name = _name(name)
    text = _decoded(content, name, _MOST_JSON_BYTES)
    if len(text) > _MOST_JSON_VALUES and sum(map(text.count, ",[{")) > _MOST_JSON_VALUES:
        raise UnreadableFileError(
            f"{name}: expected at most {_MOST_JSON_VALUES:,} values, got more"
        )

    def whole(digits: str) -> int:
        _bound_number(digits, _MOST_DIGITS, name)
        return int(digits)

    def fraction(digits: str) -> float:
        _bound_number(digits, _MOST_FLOAT_CHARACTERS, name)
        return _finite(float(digits), digits, name)

    def constant(word: str) -> float:
        return _finite(float(word), word, name) if finite else float(word)

    def entries(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            _refuse_repeated((key for key, _ in pairs), name)
        return found

    try:
        value = json.loads(
            text,
            parse_int=whole,
            parse_float=fraction,
            parse_constant=constant,
            object_pairs_hook=entries,
        )
    except RecursionError:
        raise _too_deep(name) from None
    except json.JSONDecodeError as error:
        raise UnreadableFileError(
            f"{name}: expected valid JSON, got an error in line {error.lineno}, column "
            f"{error.colno}: {one_line(error.msg, 100)}"
        ) from error
    _walk(value, name, surrogates=_SURROGATE.search(text) is not None)
    return checked(value, shape, name)


def parse_yaml(content: str | bytes, name: str | Path, shape: Any = dict) -> Any:
    """Parses a YAML document; arguments as of `parse_json`.

    Raises:
        UnreadableFileError: it is no YAML of this shape.
    """
    import yaml  # here, as most commands need no YAML

    from aero.reading.bounded_yaml import load_bounded

    name = _name(name)
    text = _decoded(content, name, _MOST_YAML_BYTES)
    try:
        value = load_bounded(text, _MOST_YAML_NODES, _MOST_LEVELS, _MOST_DIGITS)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = "" if mark is None else f" in line {mark.line + 1}, column {mark.column + 1}"
        problem = one_line(error.problem or error.context, 200)
        raise UnreadableFileError(
            f"{name}: expected valid YAML, got an error{place}: {problem}"
        ) from error
    except Exception as error:  # of PyYAML's constructors, on texts such as `!!bool x`
        raise UnreadableFileError(f"{name}: expected valid YAML, got {one_line(error)}") from error
    _walk(value, name, surrogates=True)
    return checked(value, shape, name)


def read_json_lines(path: str | Path, shape: Any = dict) -> tuple[list[Any], bool]:
    """Reads a file with one JSON value per line.

    Args:
        path: the file.
        shape: of each line.

    Returns:
        The values, and whether the last line was cut off, as a crash leaves it; it is not among
        the values.

    Raises:
        UnreadableFileError: as for `read_json`; the text names the line.
    """
    content = read_bytes(path, _MOST_LINES_BYTES)
    lines = content.split(b"\n")
    values: list[Any] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            values.append(parse_json(line, f"{path}, line {number}", shape))
        except UnreadableFileError:
            if number < len(lines):
                raise
            return values, True
    return values, False


@contextmanager
def library_errors(path: str | Path, expected: str) -> Iterator[None]:
    """Turns whatever a library says of a stranger's file into one `UnreadableFileError`.

    Args:
        path: of the file.
        expected: its expected kind, in words.
    """
    try:
        yield
    except (UnreadableFileError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # panics of libraries in Rust are no `Exception`
        said = one_line(f"{type(error).__name__}: {error}")
        raise UnreadableFileError(f"{_name(path)}: expected {expected}, got {said}") from error


def _name(path: str | Path) -> str:
    return printable(os.fspath(path))[:1000]


def _decoded(content: str | bytes, name: str, most: int) -> str:
    if len(content) > most:
        raise UnreadableFileError(f"{name}: expected at most {most:,} bytes, got {len(content):,}")
    if isinstance(content, bytes):
        try:
            content = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise UnreadableFileError(
                f"{name}: expected UTF-8, got the byte {content[error.start]:#04x} at {error.start}"
            ) from error
    if "\0" in content:
        raise UnreadableFileError(f"{name}: expected text, got a NUL at {content.index(chr(0))}")
    return content


def _bound_number(digits: str, most: int, name: str) -> None:
    if len(digits) > most + 1:  # a sign
        raise UnreadableFileError(
            f"{name}: expected numbers of at most {most} digits, got {len(digits)}: "
            f"{digits[:20]}..."
        )


def _finite(value: float, word: str, name: str) -> float:
    if value - value != 0:
        raise UnreadableFileError(f"{name}: expected finite numbers, got {word}")
    return value


def _refuse_repeated(keys: Iterable[str], name: str) -> None:
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            raise UnreadableFileError(f"{name}: expected every entry once, got {shown(key)} twice")
        seen.add(key)


def _too_deep(name: str) -> UnreadableFileError:
    return UnreadableFileError(f"{name}: expected at most {_MOST_LEVELS} levels, got more")


def _walk(value: Any, name: str, *, surrogates: bool) -> None:
    """Refuses content that parsers let through: depth, other types, keys, text that is no UTF-8."""
    level: list[Any] = [value]
    for _ in range(_MOST_LEVELS):
        below: list[Any] = []
        for entry in level:
            kind = type(entry)
            if kind is dict:
                below += entry.keys()
                below += entry.values()
                if not all(isinstance(key, str) for key in entry):
                    key = next(key for key in entry if not isinstance(key, str))
                    raise UnreadableFileError(
                        f"{name}: expected texts as keys, got {shown(key)}; write it in quotes"
                    )
            elif kind is list:
                below += entry
            elif kind is str:
                if surrogates and not entry.isascii():
                    _refuse_surrogates(entry, name)
            elif kind is float:
                pass
            elif kind not in (int, bool, types.NoneType):
                raise UnreadableFileError(f"{name}: expected plain values, got {shown(entry)}")
        if not below:
            return
        level = below
    raise _too_deep(name)


def _refuse_surrogates(text: str, name: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UnreadableFileError(f"{name}: expected UTF-8, got {shown(text)}") from None
