"""Byte-level BPE: trained on a corpus, saved and loaded as a Hugging Face fast tokenizer.

Byte-level means that every UTF-8 text can be written and that each token stands for a fixed number
of bytes, as bits per byte need.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from aero.internals.errors import TrainingError
from aero.reading import UnreadableFileError, library_errors, read_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_FILES = {
    "tokenizer.json": {
        "added_tokens": [{"id": int, "content": str}],
        "model": {"vocab": (dict, list), "type?": str | None},
    },
    "tokenizer_config.json": dict,
    "special_tokens_map.json": dict,
    "added_tokens.json": dict,
}
END_OF_TEXT = "<|endoftext|>"


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Trains a byte-level BPE tokenizer.

    Args:
        texts: training text, in pieces.
        vocabulary: number of tokens wanted, among them the 256 bytes and the end-of-text mark.

    Returns:
        The tokenizer; it has fewer tokens if the text offers no more pairs.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: str | Path, *, context_length: int) -> None:
    """Saves a tokenizer so that `AutoTokenizer.from_pretrained(folder)` loads it.

    Args:
        tokenizer: from `train_tokenizer`.
        folder: created if missing.
        context_length: T, which the tokenizer warns beyond.
    """
    from transformers import PreTrainedTokenizerFast

    PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        unk_token=END_OF_TEXT,
        model_max_length=context_length,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)


def load_tokenizer(name: str | Path) -> PreTrainedTokenizerFast:
    """Loads a fast tokenizer from a folder or, by name, from the hub.

    Raises:
        TrainingError: it is in neither place, or is not a fast tokenizer.
        UnreadableFileError: its files are damaged.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if Path(name).is_dir():
        _check_files(Path(name))
    try:
        with library_errors(name, "a tokenizer"):
            tokenizer = AutoTokenizer.from_pretrained(str(name), trust_remote_code=False)
    except UnreadableFileError as error:
        if Path(name).is_dir():
            raise
        raise TrainingError(
            f"train: tokenizer {str(name)!r} is neither a folder with a tokenizer nor reachable on "
            "the hub; pass a folder or set data.tokenizer=train to train one on the corpus"
        ) from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise TrainingError(f"train: tokenizer {str(name)!r} has no fast implementation")
    return tokenizer


def read_tokenizer(folder: Path) -> Tokenizer:
    """Reads the `tokenizer.json` of a folder.

    Raises:
        UnreadableFileError: it is damaged.
    """
    _check_files(folder)
    with library_errors(folder / "tokenizer.json", "a tokenizer"):
        return Tokenizer.from_file(str(folder / "tokenizer.json"))


def _check_files(folder: Path) -> None:
    """Refuses files that are no tokenizer before libraries read them."""
    for name, shape in _FILES.items():
        if (folder / name).exists():
            read_json(folder / name, shape)


def bytes_per_token(tokenizer: PreTrainedTokenizerFast) -> NDArray[np.int64]:
    """Returns how many UTF-8 bytes of text each token stands for; special tokens stand for none.

    Returns:
        [vocabulary], int64.

    Raises:
        TrainingError: the tokenizer is not byte-level, so its tokens have no fixed length.
    """
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    special = set(tokenizer.all_special_tokens)
    sizes = np.zeros(len(tokenizer), dtype=np.int64)
    for token, number in tokenizer.get_vocab().items():
        if token in special:
            continue
        # The byte-level alphabet has one character per byte.
        if not alphabet.issuperset(token):
            raise TrainingError(
                f"train: the tokenizer must be byte-level, got the token {token!r}, which is not"
            )
        if number >= len(sizes):
            raise TrainingError(
                f"train: the tokenizer's {len(sizes):,} tokens must be numbered from 0, got the "
                f"number {number} for {token!r}"
            )
        sizes[number] = len(token)
    return sizes


def limited(texts: Iterable[str], maximum_bytes: int) -> Iterator[str]:
    """Yields texts until they make up `maximum_bytes`."""
    seen = 0
    for text in texts:
        if seen >= maximum_bytes:
            return
        seen += len(text.encode())
        yield text
