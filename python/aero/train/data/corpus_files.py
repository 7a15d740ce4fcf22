"""The files of a corpus on this machine, and the units that they fall into.

A unit is a .txt or .py file, or one line of a .jsonl file. A corpus that is one single text file is
cut into blocks of lines instead.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import platform
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn

import numpy as np
from numpy.typing import NDArray

from aero.internals.errors import TrainingError
from aero.reading import UnreadableFileError, parse_json

TEXT_SUFFIXES = (".txt", ".py", ".jsonl")
# Tests and vendored packages differ most between distributions of Python; some ship none.
_SKIPPED_IN_STDLIB = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
_SKIPPED_ALWAYS = {"__pycache__"}
# A piece is one tokenizer call; larger ones need more memory and are no faster.
_PIECE_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 16
TEXT_FIELDS = ("text", "content")
# Shorter lines are a language's idioms and say nothing about copying.
_LONG_LINE = 40


@dataclass(frozen=True)
class CorpusSource:
    """The place of a corpus, before any of it was read.

    Attributes:
        name: short name for folders and reports.
        version: a detail that the name alone leaves open, such as the interpreter's version.
        root: the folder the file names are relative to.
        files: relative names, sorted.
        files_sha256: over names and sizes.
        change_key: over names, sizes and modification times; differs when a file was touched.
        unread: names of the other files of a folder: of other endings, or links to nothing.
    """

    name: str
    version: str
    root: Path
    files: tuple[str, ...]
    files_sha256: str
    change_key: str
    unread: tuple[str, ...] = ()

    @property
    def place(self) -> Path:
        """What to name in an error: the only file, or the folder of several."""
        return self.root / self.files[0] if len(self.files) == 1 else self.root

    @property
    def in_blocks(self) -> bool:
        """True if units are blocks of one single text file."""
        return len(self.files) == 1 and not self.files[0].endswith(".jsonl")

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum((self.root / name).stat().st_size for name in self.files)


def find_corpus(source: str | Path) -> CorpusSource:
    """Returns the files of a corpus without reading them.

    Args:
        source: `stdlib` for the running interpreter's standard library, or a folder or file.

    Raises:
        TrainingError: nothing is there, nothing that can be read as text, or a folder that cannot
            be listed.
    """
    if str(source) == "stdlib":
        root = Path(sysconfig.get_paths()["stdlib"])
        names, _ = _files_below(root, (".py",), _SKIPPED_IN_STDLIB | _SKIPPED_ALWAYS)
        version = f"{platform.python_implementation()} {platform.python_version()}"
        return CorpusSource("stdlib", version, root, names, *_listing_digests(root, names))
    path = Path(source).expanduser().resolve()
    unread: tuple[str, ...] = ()
    if path.is_file():
        if path.suffix not in TEXT_SUFFIXES:
            raise TrainingError(
                f"train: data must be a folder or a file ending in {', '.join(TEXT_SUFFIXES)}, "
                f"got {path}"
            )
        root, names = path.parent, (path.name,)
    elif path.is_dir():
        root, (names, unread) = path, _files_below(path, TEXT_SUFFIXES, _SKIPPED_ALWAYS)
        if not names:
            raise TrainingError(f"train: no {', '.join(TEXT_SUFFIXES)} file in folder {path}")
    else:
        raise TrainingError(f"train: data must be 'stdlib', a folder or a file, got {source}")
    digests = _listing_digests(root, names)
    return CorpusSource(path.stem or "root", "", root, names, *digests, unread)


@dataclass(frozen=True)
class Unit:
    """One unit: a range of a file, or the text of one line of a .jsonl file."""

    path: Path
    file_bytes: int
    start: int = 0
    stop: int | None = None
    line_text: bytes | None = None
    line_number: int = 0

    def name_in(self, root: Path) -> str:
        """The file below a folder, and the line of a .jsonl file."""
        name = self.path.relative_to(root).as_posix()
        return f"{name} line {self.line_number}" if self.line_number else name

    def digest(self) -> tuple[bytes | None, int]:
        """SHA-256 and UTF-8 size of the text; (None, 0) if it is none."""
        hasher, size = hashlib.sha256(), 0
        try:
            for text in self.texts():
                encoded = text.encode()
                hasher.update(encoded)
                size += len(encoded)
        except UnicodeError:
            return None, 0
        return hasher.digest(), size

    def long_lines(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Hashes and lengths of the long lines, without indentation."""
        lines = (line.strip() for text in self.texts() for line in text.splitlines())
        found = [(hash(line), len(line)) for line in lines if len(line) >= _LONG_LINE]
        hashes, sizes = np.array(found, np.int64).reshape(-1, 2).T
        return hashes, sizes

    def texts(self) -> Iterator[str]:
        """Yields the text in pieces that end at a line where they can.

        Raises:
            UnicodeError: it is no text.
        """
        if self.line_text is not None:
            yield _text_of_json_line(self.line_text)
            return
        decoder = codecs.getincrementaldecoder("utf-8")()
        with _opened(self.path) as file:
            file.seek(self.start)
            position, pending = self.start, ""
            while self.stop is None or position < self.stop:
                wanted = _PIECE_BYTES if self.stop is None else self.stop - position
                chunk = file.read(wanted)
                if not chunk:
                    break
                position += len(chunk)
                # UTF-16 and UTF-32 of ASCII are valid UTF-8, with zeros between the letters.
                if b"\0" in chunk:
                    raise UnicodeError("a zero byte")
                pending += decoder.decode(chunk)
                cut = pending.rfind("\n") + 1
                if cut and position != self.stop:
                    yield pending[:cut]
                    pending = pending[cut:]
            pending += decoder.decode(b"", final=True)
            if pending:
                yield pending


def units_of(source: CorpusSource) -> Iterator[Unit]:
    """Yields the units of a corpus in order of file and place."""
    for name in source.files:
        path = source.root / name
        if name.endswith(".jsonl"):
            with _opened(path) as file:
                for number, line in enumerate(file, start=1):
                    if line.strip():
                        yield Unit(path, len(line), line_text=line, line_number=number)
        elif source.in_blocks:
            yield from _blocks(path)
        else:
            yield Unit(path, path.stat().st_size)


def _blocks(path: Path) -> Iterator[Unit]:
    """Cuts one text file at the first line end after each 64 kB."""
    with _opened(path) as file:
        start = 0
        while True:
            file.seek(start + _BLOCK_BYTES)
            file.readline()
            stop = min(file.tell(), path.stat().st_size)
            if stop <= start:
                return
            yield Unit(path, stop - start, start, stop)
            start = stop


def _text_of_json_line(line: bytes) -> str:
    """The text of one line of a .jsonl file; anything else is not decodable."""
    try:
        value = parse_json(line, "line", object, finite=False)
    except UnreadableFileError as error:
        raise UnicodeError("not a JSON line") from error
    if isinstance(value, str):
        return value
    for name in TEXT_FIELDS:
        if isinstance(value, dict) and isinstance(value.get(name), str):
            text: str = value[name]
            return text
    raise UnicodeError(f"no field {' or '.join(TEXT_FIELDS)}")


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        _cannot_read(path, error)


def _cannot_read(path: Path | str, error: OSError) -> NoReturn:
    raise TrainingError(f"train: cannot read {path}: {error.strerror}") from error


def _files_below(
    root: Path, suffixes: tuple[str, ...], skipped: set[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Files to read and the others, links to folders followed; each folder once."""
    files: list[Path] = []
    seen: set[Path] = set()
    for folder, subfolders, names in os.walk(
        root, onerror=lambda error: _cannot_read(error.filename, error), followlinks=True
    ):
        subfolders[:] = sorted(name for name in subfolders if name not in skipped)
        place = Path(folder).resolve()
        if place in seen:
            subfolders.clear()
            continue
        seen.add(place)
        files += [Path(folder, name) for name in names]
    read = {path for path in files if path.name.endswith(suffixes) and path.is_file()}
    named = {path: path.relative_to(root).as_posix() for path in files}
    unread = sorted(name for path, name in named.items() if path not in read)
    return tuple(sorted(named[path] for path in read)), tuple(unread)


def _listing_digests(root: Path, names: tuple[str, ...]) -> tuple[str, str]:
    """SHA-256 over names and sizes, and the same with modification times."""
    listing, key = hashlib.sha256(), hashlib.sha256()
    for name in names:
        status = (root / name).stat()
        listing.update(f"{name}\0{status.st_size}\n".encode())
        key.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return listing.hexdigest(), key.hexdigest()
