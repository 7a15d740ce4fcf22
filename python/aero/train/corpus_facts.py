"""What is known of a corpus once it was read, and what of it a training leaves out, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from aero.train.corpora import DUPLICATE, NEAR_COPY, TRAIN, UNDECODABLE, VALIDATION, CorpusScan
from aero.train.corpus_files import TEXT_SUFFIXES
from aero.train.recipe import DataSection

# What corpus_facts returns, as a shape of `aero.reading`; earlier manifests lack two entries.
FACTS: dict[str, Any] = {
    **dict.fromkeys(("name", "version", "root", "sha256"), str),
    "documents": dict.fromkeys(
        ("train", "validation", "duplicates_dropped", "undecodable_dropped"), int
    ),
    "undecodable?": {"bytes_share": float, "first": str},
    "unread?": {"files": int, "first": str},
    "copied_share": float,
    "vocabulary": int,
}


def corpus_facts(scan: CorpusScan, data: DataSection) -> dict[str, Any]:
    """Returns the part of a manifest that does not need the tokens."""
    source = scan.source
    return {
        "name": source.name,
        "version": source.version,
        "root": str(source.place),
        "sha256": scan.sha256,
        "files_sha256": source.files_sha256,
        "documents": {
            "train": scan.count(TRAIN),
            "validation": scan.count(VALIDATION),
            "duplicates_dropped": scan.count(DUPLICATE),
            "undecodable_dropped": scan.count(UNDECODABLE),
        },
        "undecodable": {
            "bytes_share": scan.lost_bytes / max(source.bytes, 1),
            "first": scan.first_lost,
        },
        "unread": {"files": len(source.unread), "first": source.unread[0] if source.unread else ""},
        "copied_share": scan.copied_share,
        "vocabulary": data.vocabulary,
        "tokenizer": data.tokenizer,
    }


def remarks_on(facts: Mapping[str, Any], tokens: int) -> list[str]:
    """Returns what a training leaves out or never uses, a line each.

    Args:
        facts: a manifest; earlier ones lack some entries.
        tokens: of the tokenizer.
    """
    return [*_documents_left_out(facts), *_doubtful_numbers(facts, tokens)]


def _documents_left_out(facts: Mapping[str, Any]) -> Iterator[str]:
    documents: Mapping[str, int] = facts["documents"]
    whole = sum(documents.values())
    lost, copies = documents["undecodable_dropped"], documents["duplicates_dropped"]
    if lost:
        line = f"{_of(lost, whole)} left out: no UTF-8 text"
        if known := facts.get("undecodable"):
            line += f", {known['bytes_share']:.1%} of the bytes, first {known['first']}"
        yield line
    if copies:
        yield f"{_of(copies, whole)} left out: equal to another one"
    unread = facts.get("unread")
    if unread and unread["files"]:
        yield (
            f"{unread['files']:,} files are not read, such as {unread['first']}: they end in none "
            f"of {', '.join(TEXT_SUFFIXES)}, or are links to nothing"
        )


def _doubtful_numbers(facts: Mapping[str, Any], tokens: int) -> Iterator[str]:
    copied, vocabulary = facts["copied_share"], facts["vocabulary"]
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
