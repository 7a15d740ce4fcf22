"""Tokens on disk: a flat uint16 or uint32 file per split, and a manifest that vouches for both.

Writing streams, so the corpus may be larger than memory, and survives being killed: tokens go to
`*.partial` files whose good length is noted every few seconds; the next call truncates to it and
goes on. The final names appear by renaming, the manifest last, so a folder with a manifest is
complete. Reading maps the file into memory after its SHA-256 was compared with the manifest, which
also holds the facts of the corpus and what of it a training leaves out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from aero.internals.atomic_files import sha256_of, write_bytes_atomically
from aero.internals.errors import TrainingError
from aero.internals.records import Struct, read_record, record_bytes
from aero.internals.run_files import Count
from aero.reading import UnreadableFileError, shown
from aero.train.data.corpora import DUPLICATE, NEAR_COPY, TRAIN, UNDECODABLE, VALIDATION, CorpusScan
from aero.train.data.corpus_files import TEXT_SUFFIXES
from aero.train.progress import progress_bar
from aero.train.recipes.recipe import DataSection

SPLITS = ("train", "validation")

_SECONDS_BETWEEN_NOTES = 5.0


class Documents(Struct, frozen=True):
    """Documents of a corpus, by what became of them."""

    train: Count
    validation: Count
    duplicates_dropped: Count
    undecodable_dropped: Count

    def __len__(self) -> int:
        return self.train + self.validation + self.duplicates_dropped + self.undecodable_dropped


class Undecodable(Struct, frozen=True):
    """What of a corpus is no UTF-8."""

    bytes_share: float
    first: str  # the name of a file


class Unread(Struct, frozen=True):
    """Files of a corpus that training does not read."""

    files: Count
    first: str


class CorpusFacts(Struct, frozen=True, kw_only=True):
    """The part of manifest.json that does not need the tokens."""

    name: str
    version: str
    root: str
    sha256: str
    files_sha256: str | None = None
    documents: Documents
    undecodable: Undecodable | None = None
    unread: Unread | None = None
    copied_share: float
    vocabulary: Count
    tokenizer: str | None = None


class TokenFile(Struct, frozen=True, kw_only=True):
    """A file of tokens, as the manifest next to it has it."""

    file: str
    dtype: str  # uint16 or uint32, little-endian
    tokens: Count
    text_bytes: Count  # of the UTF-8 that they stand for
    sha256: str


class TokenFiles(Struct, frozen=True):
    """The files of both splits."""

    train: TokenFile
    validation: TokenFile


class Manifest(CorpusFacts, frozen=True, kw_only=True):
    """manifest.json."""

    format: int
    files: TokenFiles


def corpus_facts(scan: CorpusScan, data: DataSection) -> CorpusFacts:
    """Returns the part of a manifest that does not need the tokens."""
    source = scan.source
    return CorpusFacts(
        name=source.name,
        version=source.version,
        root=str(source.place),
        sha256=scan.sha256,
        files_sha256=source.files_sha256,
        documents=Documents(*map(scan.count, (TRAIN, VALIDATION, DUPLICATE, UNDECODABLE))),
        undecodable=Undecodable(scan.lost_bytes / max(source.bytes, 1), scan.first_lost),
        unread=Unread(len(source.unread), source.unread[0] if source.unread else ""),
        copied_share=scan.copied_share,
        vocabulary=data.vocabulary,
        tokenizer=data.tokenizer,
    )


def remarks_on(facts: CorpusFacts, tokens: int) -> list[str]:
    """Returns what a training leaves out or never uses, a line each.

    Args:
        facts: of the corpus.
        tokens: of the tokenizer.
    """
    return [*_documents_left_out(facts), *_doubtful_numbers(facts, tokens)]


def _documents_left_out(facts: CorpusFacts) -> Iterator[str]:
    whole, lost = len(facts.documents), facts.documents.undecodable_dropped
    copies, unread = facts.documents.duplicates_dropped, facts.unread
    if lost:
        line = f"{_of(lost, whole)} left out: no UTF-8 text"
        if known := facts.undecodable:
            line += f", {known.bytes_share:.1%} of the bytes, first {known.first}"
        yield line
    if copies:
        yield f"{_of(copies, whole)} left out: equal to another one"
    if unread is not None and unread.files:
        yield (
            f"{unread.files:,} files are not read, such as {unread.first}: they end in none "
            f"of {', '.join(TEXT_SUFFIXES)}, or are links to nothing"
        )


def _doubtful_numbers(facts: CorpusFacts, tokens: int) -> Iterator[str]:
    copied, vocabulary = facts.copied_share, facts.vocabulary
    if copied > NEAR_COPY:
        yield (
            f"{copied:.0%} of the long validation lines stand in other documents too: the "
            "perplexity is lower than on new text"
        )
    if tokens < vocabulary:
        yield (
            f"the tokenizer has {tokens:,} tokens, data.vocabulary={vocabulary}: "
            f"{vocabulary - tokens:,} rows of the embedding are never used"
        )


def _of(some: int, whole: int) -> str:
    return f"{some:,} of {whole:,} documents {'is' if some == 1 else 'are'}"


class _Progress(Struct, frozen=True):
    """progress.json: how much of a corpus is safe, by split where it says bytes."""

    identity: str
    next_unit: Count
    text_bytes: dict[str, Count]
    file_bytes: dict[str, Count]


def token_dtype(vocabulary: int) -> np.dtype[Any]:
    """Returns the narrower of uint16 and uint32 that holds every token of a vocabulary."""
    return np.dtype("<u2" if vocabulary <= 1 << 16 else "<u4")


class TokenWriter:
    """Writes the token files of a corpus; continues where an earlier, killed writer stopped.

    Args:
        folder: where the files go; created if missing.
        vocabulary: number of tokens, which decides the width.
        corpus_sha256: identity of the text; notes of another text are discarded.

    Attributes:
        next_unit: first unit of the corpus that is not yet written.
    """

    def __init__(self, folder: str | Path, *, vocabulary: int, corpus_sha256: str) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._dtype = token_dtype(vocabulary)
        self._identity = f"{corpus_sha256} {self._dtype.name} {vocabulary}"
        self._notes = self._folder / "progress.json"
        self._last_note = time.monotonic()
        note = self._read_note()
        self.next_unit = note.next_unit
        self._text_bytes = note.text_bytes
        self._files: dict[str, BinaryIO] = {}
        for split in SPLITS:
            file = self._partial(split).open("r+b" if self.next_unit else "wb")
            file.truncate(note.file_bytes[split])
            file.seek(0, os.SEEK_END)
            self._files[split] = file

    @property
    def text_bytes(self) -> int:
        """UTF-8 bytes written so far, both splits."""
        return sum(self._text_bytes.values())

    def append(self, split: str, tokens: Iterable[int], *, text_bytes: int) -> None:
        """Adds tokens to a split.

        Raises:
            OSError: the disk is full; earlier notes are still good.
        """
        self._files[split].write(np.fromiter(tokens, dtype=self._dtype).tobytes())
        self._text_bytes[split] += text_bytes

    def unit_finished(self, unit: int) -> None:
        """Says that everything up to and including `unit` was appended."""
        self.next_unit = unit + 1
        if time.monotonic() - self._last_note > _SECONDS_BETWEEN_NOTES:
            self.note_progress()

    def note_progress(self) -> None:
        """Makes all finished units safe: a later writer starts after them."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        sizes = {split: file.tell() for split, file in self._files.items()}
        note = _Progress(self._identity, self.next_unit, self._text_bytes, sizes)
        write_bytes_atomically(self._notes, record_bytes(note))
        self._last_note = time.monotonic()

    def close(self) -> None:
        """Closes the partial files without giving them their final names."""
        for file in self._files.values():
            file.close()

    def finish(self) -> TokenFiles:
        """Gives the files their final names and returns the manifest's entry of each split."""
        entries = {}
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()
        for split in SPLITS:
            partial, final = self._partial(split), self._folder / f"{split}.bin"
            entries[split] = TokenFile(
                file=final.name,
                dtype=self._dtype.name,
                tokens=partial.stat().st_size // self._dtype.itemsize,
                text_bytes=self._text_bytes[split],
                sha256=_digest(partial),
            )
            partial.replace(final)
        self._notes.unlink(missing_ok=True)
        return TokenFiles(**entries)

    def _partial(self, split: str) -> Path:
        return self._folder / f"{split}.bin.partial"

    def _read_note(self) -> _Progress:
        empty = _Progress(self._identity, 0, dict.fromkeys(SPLITS, 0), dict.fromkeys(SPLITS, 0))
        try:
            note = read_record(self._notes, _Progress)
            good = note.identity == self._identity and all(
                split in note.text_bytes
                and self._partial(split).stat().st_size >= note.file_bytes[split]
                for split in SPLITS
            )
        except (UnreadableFileError, OSError, KeyError):
            return empty
        return note if good else empty


def open_tokens(folder: str | Path, entry: TokenFile) -> NDArray[Any]:
    """Maps a token file into memory after comparing it with the manifest.

    Returns:
        Tokens, [tokens], uint16 or uint32, read-only.

    Raises:
        TrainingError: the file is missing, has another length or other content than the manifest
            says; the text names the folder to delete.
    """
    path = Path(folder) / entry.file
    way_out = f"delete the folder {Path(folder)} and run the command again to tokenize again"
    if path.name != entry.file or entry.dtype not in ("uint16", "uint32"):
        raise TrainingError(f"train: the manifest's token file is none: {shown(entry)}; {way_out}")
    dtype = np.dtype(entry.dtype).newbyteorder("<")
    expected = entry.tokens * dtype.itemsize
    if not path.is_file():
        raise TrainingError(f"train: token file {path} is missing; {way_out}")
    if path.stat().st_size != expected:
        raise TrainingError(
            f"train: token file {path} must have {expected} bytes, got {path.stat().st_size}: "
            f"it is truncated or damaged; {way_out}"
        )
    if _digest(path) != entry.sha256:
        raise TrainingError(
            f"train: token file {path} is damaged (its SHA-256 is not the manifest's); {way_out}"
        )
    if entry.tokens == 0:
        return np.zeros(0, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r")


def _digest(path: Path) -> str:
    """Returns the SHA-256 of a file, with a progress bar if it is large."""
    with progress_bar(f"checking {path.name}", path.stat().st_size, "B") as bar:
        return sha256_of(path, seen=bar.update)
