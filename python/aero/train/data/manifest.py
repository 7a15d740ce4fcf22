"""manifest.json: the facts of a corpus, and its token files; what of it a training leaves out."""

from __future__ import annotations

from collections.abc import Iterator

from aero.internals.records import Struct
from aero.internals.run_files import Count
from aero.train.data.corpora import DUPLICATE, NEAR_COPY, TRAIN, UNDECODABLE, VALIDATION, CorpusScan
from aero.train.data.corpus_files import TEXT_SUFFIXES
from aero.train.recipes.recipe import DataSection


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
