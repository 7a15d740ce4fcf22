"""Text on this machine as a list of documents: found, deduplicated, split and counted.

The split and the deduplication work on units. A unit is a .txt or .py file, or one line of a .jsonl
file. A corpus that is one single text file is cut into blocks of lines instead, the last ones for
validation. `scan_corpus` assigns each unit to a split or drops it. `CorpusScan.pieces` yields their
text in pieces of bounded size, so no corpus needs to fit into memory.

Units are held out one by one, or with all others of their folder (`data.split_by`).

Equal units are dropped. Units that are alike without being equal, such as two encoding tables with
one name changed, all stay in training: validation prefers units of which little stands elsewhere.
"""

from __future__ import annotations

import hashlib
import itertools
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aero.internals.errors import TrainingError
from aero.train.data.corpus_files import TEXT_FIELDS, CorpusSource, units_of
from aero.train.progress import progress_bar

# Codes in CorpusScan.fates, one per unit.
TRAIN, VALIDATION, DUPLICATE, UNDECODABLE, EMPTY = range(5)

# A unit is a near copy where more than this share of its long lines stands in other units too. Of
# the 45 files that were held out of the standard library without this rule 11 were above; the
# others share license texts.
NEAR_COPY = 0.1
# A corpus that loses more of its bytes is another one than was meant.
_MOST_LOST = 0.2


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
            units (folders, where these are split) of the corpus too.
        lost_bytes: of the files or lines that are no text.
        first_lost: the first of them, below the source's folder; empty without any.
    """

    source: CorpusSource
    fates: bytearray
    sha256: str = ""
    train_bytes: int = 0
    validation_bytes: int = 0
    copied_share: float = 0.0
    lost_bytes: int = 0
    first_lost: str = ""

    def count(self, fate: int) -> int:
        """Units with this fate."""
        return self.fates.count(fate)

    def pieces(self, *, first_unit: int = 0) -> Iterator[TextPiece]:
        """Yields the text of all kept units from `first_unit` on, in order."""
        for unit, content in enumerate(units_of(self.source)):
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


def scan_corpus(
    source: CorpusSource, validation_fraction: float, split_by: str = "document"
) -> CorpusScan:
    """Reads every unit once: drops copies and units that are not UTF-8, and holds some out.

    Held out are the units with the smallest digests until they make up the fraction, so the choice
    depends on the content alone and looks random. Near copies of other units come last in that
    order. Of a single text file the end is held out. Folders are held out likewise, by the digests
    of their names.

    Args:
        source: the corpus.
        validation_fraction: share of the kept bytes, in (0, 0.5].
        split_by: ``"document"``, or ``"folder"``: units of one folder, the first below the
            source's, are all held out or none is.

    Raises:
        TrainingError: a file cannot be read, more than a fifth of the bytes is no text, or fewer
            than two units or folders are left.
    """
    scan, sizes = CorpusScan(source, bytearray()), array("q")
    parts = _Parts(split_by == "folder")
    digests = _read_units(scan, sizes, parts)
    fates = scan.fates
    byte_sizes = np.frombuffer(sizes, dtype=np.int64)
    part_of = np.array(parts.of_unit, dtype=np.int64)
    kept = np.unique(part_of[np.frombuffer(bytes(fates), np.uint8) == TRAIN])
    _require_enough(scan, len(kept), split_by)
    by_rank = np.argsort(np.array(parts.ranks, dtype=np.uint64)[kept])
    order = kept[::-1] if source.in_blocks else kept[by_rank]
    part_bytes = np.zeros(len(parts.ranks), np.int64)
    np.add.at(part_bytes, part_of, byte_sizes)
    total = int(byte_sizes.sum())
    wanted = validation_fraction * total
    # Twice the fraction leaves a choice; at least one part stays on either side.
    sums = np.cumsum(part_bytes[order])
    choice = min(int(np.searchsorted(sums, 2 * wanted)) + 1, len(kept) - 1)
    candidates: list[int] = order[:choice].tolist()
    copied = _copied_lines(scan, parts.of_unit, candidates)
    if not source.in_blocks:
        candidates.sort(key=lambda part: copied[part].share > NEAR_COPY)
    held_out, lines = set[int](), _CopiedLines()
    for part in candidates:
        if scan.validation_bytes >= wanted:
            break
        held_out.add(part)
        scan.validation_bytes += int(part_bytes[part])
        lines += copied[part]
    for unit, part in enumerate(parts.of_unit):
        if part in held_out and fates[unit] == TRAIN:
            fates[unit] = VALIDATION
    digests.update(fates)
    scan.sha256 = digests.hexdigest()
    scan.copied_share = lines.share
    scan.train_bytes = total - scan.validation_bytes
    return scan


class _Parts:
    """What is held out whole: units, or folders; `ranks` are their places in the order."""

    def __init__(self, folders: bool) -> None:
        self.of_unit = array("q")
        self.ranks = array("Q")
        self._folders: dict[str, int] | None = {} if folders else None

    def add(self, name: str, digest: bytes) -> None:
        """Puts the next unit, of a file below the source's folder, where it belongs."""
        part = len(self.ranks)
        if self._folders is not None:
            folder = name.partition("/")[0]
            digest = hashlib.sha256(folder.encode()).digest()
            part = self._folders.setdefault(folder, part)
        self.of_unit.append(part)
        if part == len(self.ranks):
            self.ranks.append(int.from_bytes(digest[:8], "big"))


def _read_units(scan: CorpusScan, sizes: array[int], parts: _Parts) -> hashlib._Hash:
    """Fills in the fate, the bytes and the part of each unit."""
    source, seen, digests = scan.source, set[bytes](), hashlib.sha256()
    with progress_bar(f"reading {source.name}", source.bytes, "B") as bar:
        for unit in units_of(source):
            digest, size = unit.digest()
            bar.update(unit.file_bytes)
            fate = TRAIN
            if digest is None:
                fate = UNDECODABLE
                scan.lost_bytes += unit.file_bytes
                scan.first_lost = scan.first_lost or unit.name_in(source.root)
            elif size == 0:
                fate = EMPTY
            elif digest in seen and not source.in_blocks:
                fate = DUPLICATE
            scan.fates.append(fate)
            sizes.append(size if fate == TRAIN else 0)
            parts.add(unit.path.relative_to(source.root).as_posix(), digest or b"")
            if digest is not None:
                seen.add(digest)
            digests.update(digest or b"undecodable")
    return digests


def _require_enough(scan: CorpusScan, kept: int, split_by: str) -> None:
    """Raises `TrainingError` where too much is no text, or too little is left to be split."""
    source, lost = scan.source, scan.count(UNDECODABLE)
    if scan.lost_bytes > _MOST_LOST * source.bytes:
        mend = (
            f"give each line a string or an object with {' or '.join(TEXT_FIELDS)}"
            if " line " in scan.first_lost
            else "write them as UTF-8 (iconv -f latin1 -t utf-8 FILE > NEW) or take them out"
        )
        raise TrainingError(
            f"train: {source.place}: {lost} of {len(scan.fates)} documents, "
            f"{scan.lost_bytes / source.bytes:.0%} of the bytes, are no text, the first is "
            f"{scan.first_lost}; {mend}"
        )
    if kept < 2:
        mend = "add texts that differ"
        if split_by == "folder":
            mend = "put each into a folder of its own, or take data.split_by=document"
        elif source.in_blocks:
            mend = (
                "a single file is cut at the first line end after each 64 kB: give more text, "
                "break long lines (fold -s FILE > NEW), or give several files"
            )
        raise TrainingError(
            f"train: {source.place} must hold at least two different {split_by}s (one for "
            f"validation), got {kept}; {lost} could not be decoded; {mend}"
        )


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
    scan: CorpusScan, part_of: Sequence[int], candidates: Sequence[int]
) -> dict[int, _CopiedLines]:
    """The lines of each candidate in other kept parts; holds candidates' hashes only."""
    chosen = set(candidates)
    lines = {
        part: tuple(np.concatenate(columns) for columns in zip(*found, strict=True))
        for part, found in _lines_of_parts(scan, part_of)
        if part in chosen
    }
    known = np.unique(np.concatenate([hashes for hashes, _ in lines.values()]))
    occurrences = np.zeros(len(known), np.uint8)  # in 0, 1 or more parts
    for _, found in _lines_of_parts(scan, part_of):
        hashes = np.unique(np.concatenate([hashes for hashes, _ in found]))
        places = np.searchsorted(known, hashes)
        shared = places[places < len(known)]
        shared = shared[known[shared] == hashes[: len(shared)]]
        occurrences[shared] = np.minimum(occurrences[shared] + 1, 2)
    copied = known[occurrences > 1]
    return {
        part: _CopiedLines(int(sizes.sum()), int(sizes[np.isin(hashes, copied)].sum()))
        for part, (hashes, sizes) in lines.items()
    }


def _lines_of_parts(
    scan: CorpusScan, part_of: Sequence[int]
) -> Iterator[tuple[int, list[tuple[NDArray[np.int64], NDArray[np.int64]]]]]:
    """Yields the parts with the long lines of their kept units.

    Names are sorted, so that the units of a folder follow one another.
    """
    kept = (
        (part_of[number], unit)
        for number, unit in enumerate(units_of(scan.source))
        if scan.fates[number] == TRAIN
    )
    for part, units in itertools.groupby(kept, key=lambda pair: pair[0]):
        yield part, [unit.long_lines() for _, unit in units]
