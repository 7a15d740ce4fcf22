"""Makes token files and a tokenizer of a corpus, once; later runs find them in the cache."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from aero.internals.atomic_files import write_bytes_atomically
from aero.internals.errors import TrainingError, disk_errors
from aero.internals.records import read_record, record_bytes
from aero.internals.run_files import CorpusRecord
from aero.reading import UnreadableFileError, one_line
from aero.saved.tokenizer import (
    bytes_per_token,
    limited,
    load_tokenizer,
    save_tokenizer,
    train_tokenizer,
)
from aero.train.data.corpora import CorpusScan, TextPiece, scan_corpus
from aero.train.data.corpus_files import CorpusSource, find_corpus
from aero.train.data.hub import download_dataset
from aero.train.data.token_files import (
    SPLITS,
    Manifest,
    TokenFiles,
    TokenWriter,
    corpus_facts,
    open_tokens,
    remarks_on,
)
from aero.train.progress import progress_bar
from aero.train.recipes.recipe import DataSection

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_FORMAT = 2
_BATCH_BYTES = 1 << 20


@dataclass(frozen=True, eq=False)
class PreparedData:
    """A corpus ready for training.

    Attributes:
        folder: manifest, token files and tokenizer.
        manifest: the contents of the folder and their source.
        tokenizer: byte-level BPE.
        train: tokens, [train_tokens], uint16 or uint32.
        validation: tokens, [validation_tokens].
        token_bytes: UTF-8 bytes each token stands for, [vocabulary], int64.
    """

    folder: Path
    manifest: Manifest
    tokenizer: PreTrainedTokenizerFast
    train: NDArray[Any]
    validation: NDArray[Any]
    token_bytes: NDArray[np.int64]

    def record(self) -> CorpusRecord:
        """Returns a run folder's record of its corpus."""
        files = self.manifest.files
        return CorpusRecord(
            name=self.manifest.name,
            version=self.manifest.version,
            sha256=self.manifest.sha256,
            train_tokens=files.train.tokens,
            validation_tokens=files.validation.tokens,
            validation_bytes=files.validation.text_bytes,
            copied_share=self.manifest.copied_share,
            folder=str(self.folder.resolve()),
            remarks=self.remarks,
        )

    @property
    def remarks(self) -> list[str]:
        """What a training leaves out or never uses, a line each."""
        return remarks_on(self.manifest, len(self.tokenizer))


def prepare_data(data: DataSection, *, cache_dir: str | Path, context_length: int) -> PreparedData:
    """Finds the corpus, trains the tokenizer and tokenizes, or reuses an earlier call's files.

    Interrupted at any moment, the next call goes on. Several processes may call it at once: one
    works, the others wait for it.

    Args:
        data: the recipe's section.
        cache_dir: token files go to `cache_dir/<name>-<key>`.
        context_length: T; each split must hold at least one window.

    Returns:
        The opened corpus, its files compared with the manifest.

    Raises:
        TrainingError: no such corpus, damaged files, a full disk, or too little text.

    Example:
        >>> from pathlib import Path
        >>> from aero.train import prepare_data
        >>> from aero.train.recipes.recipe_sections import DataSection
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> corpus = Path(folder.name) / "corpus"
        >>> corpus.mkdir()
        >>> for number in range(20):
        ...     _ = (corpus / f"{number}.txt").write_text(f"{number} or not {number}? " * 10)
        >>> section = DataSection(source=str(corpus), vocabulary=257)
        >>> data = prepare_data(section, cache_dir=folder.name, context_length=16)
        >>> len(data.tokenizer), data.train.itemsize
        (257, 2)
    """
    cache = Path(cache_dir)
    hub_name = name_on_hub(data.source)
    source = find_corpus(data.source if not hub_name else download_dataset(hub_name, cache / "hub"))
    folder = prepared_folder(source, data, cache)
    with disk_errors("the corpus", folder, "run the command again: it continues where it stopped"):
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            if not (folder / "manifest.json").is_file():
                _build(source, data, folder, context_length)
    return open_prepared_data(folder, context_length=context_length)


def name_on_hub(source: str) -> str:
    """Returns the name of a hub dataset; empty if the source is on this machine, or means to be.

    Raises:
        TrainingError: there is no source.
    """
    if not source:
        raise TrainingError(
            "train: this recipe comes without a corpus; pass --data with a folder of .txt, .py or "
            ".jsonl files"
        )
    path = Path(source).expanduser()
    # Hub names look like `name` or `owner/name`; anything with a suffix or a leading dot or slash
    # is meant as a path, and a missing path must not be looked for on the hub.
    looks_like_hub_name = re.fullmatch(r"\w[\w-]*(/\w[\w.-]*)?", source) and path.suffix == ""
    return "" if source == "stdlib" or path.exists() or not looks_like_hub_name else source


def prepared_folder(source: CorpusSource, data: DataSection, cache: Path) -> Path:
    """Returns the folder of `prepare_data` for a corpus."""
    key = _cache_key(source, data)
    return cache / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', source.name)}-{key[:12]}"


def _cache_key(source: CorpusSource, data: DataSection) -> str:
    settings = {name: value for name, value in asdict(data).items() if name != "source"}
    if data.split_by == "document":  # a corpus of a time before folders keeps its name
        del settings["split_by"]
    identity = {
        "format": _FORMAT,
        "root": str(source.root),
        "version": source.version,
        "change_key": source.change_key,
        **settings,
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _build(source: CorpusSource, data: DataSection, folder: Path, context_length: int) -> None:
    scan = scan_corpus(source, data.validation_fraction, data.split_by)
    tokenizer = tokenizer_for(scan, data, folder / "tokenizer", context_length)
    files = _write_tokens(scan, tokenizer, data.vocabulary, folder)
    facts = corpus_facts(scan, data)
    entries = {name: getattr(facts, name) for name in facts.__struct_fields__}
    manifest = Manifest(format=_FORMAT, files=files, **entries)
    write_bytes_atomically(folder / "manifest.json", record_bytes(manifest))


def tokenizer_for(
    scan: CorpusScan, data: DataSection, folder: Path, context_length: int
) -> PreTrainedTokenizerFast:
    """Trains the tokenizer of a corpus or takes the one that is named, into a folder.

    Raises:
        TrainingError: it cannot be loaded, is not byte-level or has too many tokens.
    """
    if data.tokenizer == "train":
        _train_tokenizer(scan, data, folder, context_length)
    elif not folder.is_dir():
        _save_whole(load_tokenizer(data.tokenizer).save_pretrained, folder)
    tokenizer = load_tokenizer(folder)
    require_fitting(tokenizer, data)
    bytes_per_token(tokenizer)
    return tokenizer


def require_fitting(tokenizer: PreTrainedTokenizerFast, data: DataSection) -> None:
    """Raises `TrainingError` if a tokenizer has more tokens than the network."""
    if len(tokenizer) > data.vocabulary:
        raise TrainingError(
            f"train: tokenizer {data.tokenizer!r} has {len(tokenizer)} tokens, more than "
            f"data.vocabulary = {data.vocabulary}"
        )


def _train_tokenizer(
    scan: CorpusScan, data: DataSection, folder: Path, context_length: int
) -> None:
    if folder.is_dir():
        return
    wanted = min(scan.train_bytes, data.tokenizer_bytes)

    def texts() -> Iterator[str]:
        with progress_bar(f"training tokenizer on {scan.source.name}", wanted, "B") as bar:
            training = (piece.text for piece in scan.pieces() if not piece.validation)
            for text in limited(training, wanted):
                yield text
                bar.update(len(text.encode()))

    tokenizer = train_tokenizer(texts(), data.vocabulary)
    _save_whole(lambda path: save_tokenizer(tokenizer, path, context_length=context_length), folder)


def _save_whole(save: Any, folder: Path) -> None:
    """Lets `save` fill a folder that appears under its name only when it is complete."""
    partial = folder.with_name(f"{folder.name}.partial")
    save(partial)
    partial.replace(folder)


def _write_tokens(
    scan: CorpusScan, tokenizer: PreTrainedTokenizerFast, vocabulary: int, folder: Path
) -> TokenFiles:
    writer = TokenWriter(folder, vocabulary=vocabulary, corpus_sha256=scan.sha256)
    total = scan.train_bytes + scan.validation_bytes
    name = scan.source.name
    try:
        with progress_bar(f"tokenizing {name}", total, "B", initial=writer.text_bytes) as bar:
            for batch in batches_of(scan.pieces(first_unit=writer.next_unit)):
                bar.update(_write_batch(writer, tokenizer, batch))
        return writer.finish()
    finally:
        writer.close()


def _write_batch(
    writer: TokenWriter, tokenizer: PreTrainedTokenizerFast, batch: list[TextPiece]
) -> int:
    written = 0
    for piece, tokens in tokenized(tokenizer, batch):
        size = len(piece.text.encode())
        writer.append(SPLITS[int(piece.validation)], tokens, text_bytes=size)
        if piece.last:
            writer.unit_finished(piece.unit)
        written += size
    return written


def tokenized(
    tokenizer: PreTrainedTokenizerFast, batch: Sequence[TextPiece]
) -> Iterator[tuple[TextPiece, list[int]]]:
    """Yields each piece with its tokens; a document ends with the tokenizer's mark, if any."""
    backend, mark = tokenizer.backend_tokenizer, tokenizer.eos_token_id
    texts = [piece.text for piece in batch]
    encodings = backend.encode_batch_fast(texts, add_special_tokens=False)
    for piece, encoding in zip(batch, encodings, strict=True):
        ends = piece.last and mark is not None
        yield piece, [*encoding.ids, mark] if ends else encoding.ids


def batches_of(pieces: Iterator[TextPiece]) -> Iterator[list[TextPiece]]:
    """Yields pieces in lists of a million characters or a little more."""
    batch: list[TextPiece] = []
    characters = 0
    for piece in pieces:
        batch.append(piece)
        characters += len(piece.text)
        if characters >= _BATCH_BYTES:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def open_prepared_data(folder: str | Path, *, context_length: int) -> PreparedData:
    """Opens a folder of `prepare_data`, after comparing it with its manifest.

    Args:
        folder: manifest, token files and tokenizer.
        context_length: T; each split must hold at least one window.

    Raises:
        TrainingError: files are missing or damaged, or hold too little text.
    """
    folder = Path(folder)
    try:
        manifest = read_record(folder / "manifest.json", Manifest)
    except UnreadableFileError as error:
        raise TrainingError(
            f"train: {folder / 'manifest.json'} cannot be read ({one_line(error)}); delete the "
            f"folder {folder} and run the command again to tokenize again"
        ) from error
    tokens = {split: open_tokens(folder, getattr(manifest.files, split)) for split in SPLITS}
    for split, array in tokens.items():
        require_window(split, manifest.root, len(array), context_length)
    tokenizer = load_tokenizer(folder / "tokenizer")
    return PreparedData(
        folder=folder,
        manifest=manifest,
        tokenizer=tokenizer,
        train=tokens["train"],
        validation=tokens["validation"],
        token_bytes=bytes_per_token(tokenizer),
    )


def require_window(split: str, place: str | Path, tokens: int, context_length: int) -> None:
    """Raises `TrainingError` if a split has no window and the token behind it."""
    if tokens < context_length + 1:
        raise TrainingError(
            f"train: the {split} split of {place} must hold more than one window of "
            f"{context_length} tokens, got {tokens} tokens; use a larger corpus or a smaller "
            "model.context_length"
        )
