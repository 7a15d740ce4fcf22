"""Text on this machine as a list of documents: found, deduplicated, split and counted.

The split and the deduplication work on units. A unit is a .txt or .py file, or one line of a .jsonl
file. A corpus that is one single text file is cut into blocks of lines instead, the last ones for
validation. `scan_corpus` assigns each unit to a split or drops it. `CorpusScan.pieces` yields their
text in pieces of bounded size, so no corpus needs to fit into memory.

Equal units are dropped. Units that are alike without being equal, such as two encoding tables with
one name changed, all stay in training: validation prefers units of which little stands elsewhere.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import platform
import sysconfig
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from aero.reading import UnreadableFileError, parse_json
from aero.train.errors import TrainingError
from aero.train.progress import progress_bar

# Codes in CorpusScan.fates, one per unit.
TRAIN, VALIDATION, DUPLICATE, UNDECODABLE, EMPTY = range(5)

_SUFFIXES = (".txt", ".py", ".jsonl")
# Tests and vendored packages differ most between distributions of Python; some ship none.
_SKIPPED_IN_STDLIB = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
_SKIPPED_ALWAYS = {"__pycache__"}
# A piece is one tokenizer call; larger ones need more memory and are no faster.
_PIECE_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 16
_TEXT_FIELDS = ("text", "content")
# Shorter lines are a language's idioms and say nothing about copying.
_LONG_LINE = 40
# A unit is a near copy where more than this share of its long lines stands in other units too. Of
# the 45 files that were held out of the standard library without this rule 11 were above; the
# others share license texts.
_NEAR_COPY = 0.1


@dataclass(frozen=True)
class CorpusSource:
    """Where a corpus is, before any of it was read.

    Attributes:
        name: short name for folders and reports.
        version: a detail that the name alone leaves open, such as the interpreter's version.
        root: the folder the file names are relative to.
        files: relative names, sorted.
        files_sha256: over names and sizes.
        change_key: over names, sizes and modification times; differs when a file was touched.
    """

    name: str
    version: str
    root: Path
    files: tuple[str, ...]
    files_sha256: str
    change_key: str

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum((self.root / name).stat().st_size for name in self.files)


@dataclass(frozen=True)
class TextPiece:
    """Text of one unit or part of it.

    Attributes:
        text: to be tokenized.
        unit: index of the unit.
        validation: whether the unit is held out.
        last: whether the unit ends here.
    """

    text: str
    unit: int
    validation: bool
    last: bool


@dataclass
class CorpusScan:
    """The assignment of each unit of a corpus.

    Attributes:
        source: the corpus.
        fates: one code per unit: train, validation, duplicate, undecodable or empty.
        sha256: over the digests and fates of all units in order: the identity of content and split.
        train_bytes: UTF-8 bytes of the training units.
        validation_bytes: the same of the held-out units.
        copied_share: of the long lines of the held-out units, by characters, what stands in other
            units of the corpus too.
        in_blocks: whether units are blocks of one single text file.
    """

    source: CorpusSource
    fates: bytearray
    sha256: str = ""
    train_bytes: int = 0
    validation_bytes: int = 0
    copied_share: float = 0.0
    in_blocks: bool = False

    def count(self, fate: int) -> int:
        """Units with this fate."""
        return self.fates.count(fate)

    def pieces(self, *, first_unit: int = 0) -> Iterator[TextPiece]:
        """Yields the text of all kept units from `first_unit` on, in order."""
        for unit, content in enumerate(_units(self.source, self.in_blocks)):
            if unit < first_unit or self.fates[unit] not in (TRAIN, VALIDATION):
                continue
            held_out = self.fates[unit] == VALIDATION
            pending: str | None = None
            for text in content.texts():
                if pending is not None:
                    yield TextPiece(pending, unit, held_out, last=False)
                pending = text
            if pending is not None:
                yield TextPiece(pending, unit, held_out, last=True)


def find_corpus(source: str | Path) -> CorpusSource:
    """Returns the files of a corpus without reading them.

    Args:
        source: `stdlib` for the running interpreter's standard library, or a folder or file.

    Raises:
        TrainingError: nothing is there, or nothing that can be read as text.
    """
    if str(source) == "stdlib":
        root = Path(sysconfig.get_paths()["stdlib"])
        names = _files_below(root, (".py",), _SKIPPED_IN_STDLIB | _SKIPPED_ALWAYS)
        version = f"{platform.python_implementation()} {platform.python_version()}"
        return CorpusSource("stdlib", version, root, names, *_listing_digests(root, names))
    path = Path(source).expanduser().resolve()
    if path.is_file():
        if path.suffix not in _SUFFIXES:
            raise TrainingError(
                f"train: data must be a folder or a file ending in {', '.join(_SUFFIXES)}, "
                f"got {path}"
            )
        root, names = path.parent, (path.name,)
    elif path.is_dir():
        root, names = path, _files_below(path, _SUFFIXES, _SKIPPED_ALWAYS)
        if not names:
            raise TrainingError(f"train: no {', '.join(_SUFFIXES)} file in folder {path}")
    else:
        raise TrainingError(f"train: data must be 'stdlib', a folder or a file, got {source}")
    return CorpusSource(path.stem or "root", "", root, names, *_listing_digests(root, names))


def scan_corpus(source: CorpusSource, validation_fraction: float) -> CorpusScan:
    """Reads every unit once: drops copies and units that are not UTF-8, and holds some out.

    Held out are the units with the smallest digests until they make up the fraction, so the choice
    depends on the content alone and looks random. Near copies of other units come last in that
    order. Of a single text file the end is held out.

    Args:
        source: the corpus.
        validation_fraction: share of the kept bytes, in (0, 0.5].

    Raises:
        TrainingError: a file cannot be read, or fewer than two units are left.
    """
    in_blocks = len(source.files) == 1 and not source.files[0].endswith(".jsonl")
    fates, sizes, ranks = bytearray(), array("q"), array("Q")
    seen: set[bytes] = set()
    digests = hashlib.sha256()
    with progress_bar(f"reading {source.name}", source.bytes, "B") as bar:
        for unit in _units(source, in_blocks):
            digest, size = unit.digest()
            bar.update(unit.file_bytes)
            fate = TRAIN
            if digest is None:
                fate = UNDECODABLE
            elif size == 0:
                fate = EMPTY
            elif digest in seen and not in_blocks:
                fate = DUPLICATE
            fates.append(fate)
            sizes.append(size if fate == TRAIN else 0)
            ranks.append(int.from_bytes((digest or b"")[:8], "big"))
            if digest is not None:
                seen.add(digest)
            digests.update(digest or b"undecodable")
    kept = np.flatnonzero(np.frombuffer(bytes(fates), np.uint8) == TRAIN)
    if len(kept) < 2:
        raise TrainingError(
            f"train: {source.root} must hold at least two different documents (one for validation),"
            f" got {len(kept)}; {fates.count(UNDECODABLE)} could not be decoded"
        )
    scan = CorpusScan(source, fates, in_blocks=in_blocks)
    byte_sizes = np.frombuffer(sizes, dtype=np.int64)
    by_digest = np.argsort(np.frombuffer(ranks, dtype=np.uint64)[kept])
    order = kept[::-1] if in_blocks else kept[by_digest]
    total = int(byte_sizes.sum())
    wanted = validation_fraction * total
    # Twice the fraction leaves a choice; at least one unit stays on either side.
    sums = np.cumsum(byte_sizes[order])
    choice = min(int(np.searchsorted(sums, 2 * wanted)) + 1, len(kept) - 1)
    candidates: list[int] = order[:choice].tolist()
    copied = _copied_lines(source, in_blocks, fates, candidates)
    if not in_blocks:
        candidates.sort(key=lambda index: copied[index].share > _NEAR_COPY)
    held_out = _CopiedLines()
    for index in candidates:
        if scan.validation_bytes >= wanted:
            break
        fates[index] = VALIDATION
        scan.validation_bytes += int(byte_sizes[index])
        held_out += copied[index]
    digests.update(fates)
    scan.sha256 = digests.hexdigest()
    scan.copied_share = held_out.share
    scan.train_bytes = total - scan.validation_bytes
    return scan


@dataclass(frozen=True)
class _CopiedLines:
    """Characters in long lines, and in those of them that stand in other units too."""

    characters: int = 0
    copied: int = 0

    def __add__(self, other: _CopiedLines) -> _CopiedLines:
        return _CopiedLines(self.characters + other.characters, self.copied + other.copied)

    @property
    def share(self) -> float:
        return self.copied / max(self.characters, 1)


def _copied_lines(
    source: CorpusSource, in_blocks: bool, fates: bytearray, candidates: Sequence[int]
) -> dict[int, _CopiedLines]:
    """For each candidate its lines in other kept units; holds candidates' hashes only."""
    chosen = set(candidates)
    lines = {
        unit: content.long_lines()
        for unit, content in enumerate(_units(source, in_blocks))
        if unit in chosen
    }
    known = np.unique(np.concatenate([hashes for hashes, _ in lines.values()]))
    occurrences = np.zeros(len(known), np.uint8)  # in 0, 1 or more units
    for unit, content in enumerate(_units(source, in_blocks)):
        if fates[unit] != TRAIN:
            continue
        hashes = np.unique(lines[unit][0] if unit in lines else content.long_lines()[0])
        places = np.searchsorted(known, hashes)
        found = places[places < len(known)]
        found = found[known[found] == hashes[: len(found)]]
        occurrences[found] = np.minimum(occurrences[found] + 1, 2)
    shared = known[occurrences > 1]
    return {
        unit: _CopiedLines(int(sizes.sum()), int(sizes[np.isin(hashes, shared)].sum()))
        for unit, (hashes, sizes) in lines.items()
    }


@dataclass
class _Unit:
    """One unit: a range of a file, or the text of one line of a .jsonl file."""

    path: Path
    start: int = 0
    stop: int | None = None
    line_text: bytes | None = None
    file_bytes: int = field(default=0)

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
        """Yields the text in pieces that end at a line where they can."""
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
                pending += decoder.decode(chunk)
                cut = pending.rfind("\n") + 1
                if cut and position != self.stop:
                    yield pending[:cut]
                    pending = pending[cut:]
            pending += decoder.decode(b"", final=True)
            if pending:
                yield pending


def _units(source: CorpusSource, in_blocks: bool) -> Iterator[_Unit]:
    for name in source.files:
        path = source.root / name
        if name.endswith(".jsonl"):
            with _opened(path) as file:
                for line in file:
                    if line.strip():
                        yield _Unit(path, line_text=line, file_bytes=len(line))
        elif in_blocks:
            yield from _blocks(path)
        else:
            yield _Unit(path, file_bytes=path.stat().st_size)


def _blocks(path: Path) -> Iterator[_Unit]:
    """Cuts one text file at the first line end after each 64 kB."""
    with _opened(path) as file:
        start = 0
        while True:
            file.seek(start + _BLOCK_BYTES)
            file.readline()
            stop = min(file.tell(), path.stat().st_size)
            if stop <= start:
                return
            yield _Unit(path, start, stop, file_bytes=stop - start)
            start = stop


def _text_of_json_line(line: bytes) -> str:
    """The text of one line of a .jsonl file; anything else is not decodable."""
    try:
        value = parse_json(line, "line", object, finite=False)
    except UnreadableFileError as error:
        raise UnicodeError("not a JSON line") from error
    if isinstance(value, str):
        return value
    for name in _TEXT_FIELDS:
        if isinstance(value, dict) and isinstance(value.get(name), str):
            text: str = value[name]
            return text
    raise UnicodeError(f"no field {' or '.join(_TEXT_FIELDS)}")


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise TrainingError(f"train: cannot read {path}: {error.strerror}") from error


def _files_below(root: Path, suffixes: tuple[str, ...], skipped: set[str]) -> tuple[str, ...]:
    names = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in skipped]
        names += [Path(folder, name) for name in files if name.endswith(suffixes)]
    return tuple(sorted(path.relative_to(root).as_posix() for path in names if path.is_file()))


def _listing_digests(root: Path, names: tuple[str, ...]) -> tuple[str, str]:
    """SHA-256 over names and sizes, and the same with modification times."""
    listing, key = hashlib.sha256(), hashlib.sha256()
    for name in names:
        status = (root / name).stat()
        listing.update(f"{name}\0{status.st_size}\n".encode())
        key.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return listing.hexdigest(), key.hexdigest()
