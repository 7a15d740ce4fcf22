"""manifest.json: the facts of a corpus, and its token files."""

from __future__ import annotations

from aero.internals.records import Struct
from aero.internals.run_files import Count


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
