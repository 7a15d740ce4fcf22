"""A private run from outside the private environment: the job, its checks and its events.

The job goes to `both_parties_worker` in the private environment. Back come the `parties.events`: a
`Piece` for each part that ran, a `Pass` for each token, and last `Done` or `Failed`. After a `Pass`
the tokens that the next one reads go there, none at the end.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aero.network.description import (
    Description,
    not_continued,
    operations_of,
    unknown_operation,
)
from aero.private.compute.calls import Call, Party
from aero.private.environment import private_command
from aero.private.parties.events import Done, Event, Failed, Pass, Piece
from aero.private.parties.orders import BothPartiesJob, ReadTokens, Token, plain
from aero.private.parties.passes import Reads, read_alone
from aero.private.parties.worker_pipe import Worker
from aero.private.party_errors import PartyError
from aero.private.settings import PrivateSettings, check_sequences
from aero.private.temporary import temporary_folder


@dataclass
class Generated:
    """The result and the cost of a private run.

    Attributes:
        tokens: the new ones; of several prompts each pass has a tuple of them.
        logits: of each pass, [T, V] of the T tokens that it read, or [1, V], float32, where
            `PrivateSettings.reveal` opens them; of B prompts [B, T, V].
        calls: of each pass, one per piece.
        preparation: set-up and the weights' shares, before the first pass.
        cpu_seconds: of each pass by party, where each is a process of its own.
        likeliest: of each pass with `reveal="top-k"`, tokens and their logits, best first.
    """

    tokens: list[Any] = field(default_factory=list)
    logits: list[NDArray[np.float32]] = field(default_factory=list)
    calls: list[list[Call]] = field(default_factory=list)
    preparation: list[Call] = field(default_factory=list)
    cpu_seconds: dict[Party, list[float]] = field(default_factory=dict)
    likeliest: list[list[tuple[int, float]]] = field(default_factory=list)


def check_runnable(description: Description) -> None:
    """Checks that a private pass knows every part of a network, and that it continues a text.

    Raises:
        ValueError: naming the part.
    """
    unknown = unknown_operation("private", operations_of(description))
    if unknown is not None:
        raise ValueError(
            f"private: operations must have a private run, got {unknown}; "
            "docs/reference/network.md lists those that have"
        )
    other = not_continued(operations_of(description))
    if other is not None:
        raise ValueError(
            f"private: the network must continue a text, token by token, got {other}; "
            "docs/reference/network.md says how such a network runs"
        )


def check_tokens(tokens: Sequence[int], new_tokens: int, description: Description) -> None:
    """Checks that a network can continue a prompt.

    Raises:
        ValueError: no prompt, one that with its continuation is longer than the context, or tokens
            outside the vocabulary.
    """
    context, vocabulary = description["context_length"], description["vocab_size"]
    if new_tokens < 1:
        raise ValueError(f"private: tokens must be >= 1, got {new_tokens}")
    if not tokens:
        raise ValueError("private: the prompt must have at least one token, got none")
    # The last new token is not read again.
    if len(tokens) + new_tokens - 1 > context:
        raise ValueError(
            f"private: the prompt's {len(tokens)} tokens and {new_tokens - 1} before the last new "
            f"one must fit in the network's context of {context}"
        )
    for token in tokens:
        if not 0 <= token < vocabulary:
            raise ValueError(
                f"private: tokens must be from 0 to {vocabulary - 1}, got {token}; the prompt was "
                "not made by this network's tokenizer"
            )


def check_batch(prompts: Sequence[Sequence[int]], settings: PrivateSettings) -> None:
    """Checks that prompts can go side by side.

    Raises:
        ValueError: their lengths differ, or what is revealed is of one sequence.
    """
    lengths = sorted({len(prompt) for prompt in prompts})
    if len(lengths) > 1:
        raise ValueError(
            "private: prompts side by side must have equally many tokens, got "
            f"{' and '.join(map(str, lengths))}; run them one after the other"
        )
    check_sequences(len(prompts), settings)


def generate_privately(
    folder: str | Path,
    tokens: Sequence[int] | Sequence[Sequence[int]],
    new_tokens: int,
    settings: PrivateSettings,
    after_piece: Callable[[int, Call], None] = lambda index, call: None,
    python: Path | None = None,
    reads: Reads | None = None,
) -> Generated:
    """Continues a prompt between two parties in one process of the private environment.

    Args:
        folder: of `export_weights`.
        tokens: the prompt, or several of equal length, which go on side by side.
        new_tokens: how many to compute, of each. The first pass reads the prompt, each later one
            a token; keys and values of all before it are kept as shares.
        settings: of both parties.
        after_piece: called after each piece, with the number of its pass from 0.
        python: of the private environment; default: `find_private_python()`.
        reads: what the next pass reads, called with the token of each; nothing ends the run.
            Default: that token, until there are `new_tokens`.

    Raises:
        PartyError: the run failed.
        PrivateEnvironmentError: there is no private environment.

    Example:
        >>> from pathlib import Path
        >>> from aero.private import PrivateSettings, generate_privately
        >>> settings = PrivateSettings()
        >>> found = generate_privately(Path("exported"), [5, 6], 2, settings)  # doctest: +SKIP
        >>> found.tokens  # doctest: +SKIP
        [17, 3]
    """
    job = BothPartiesJob(Path(folder).resolve(), settings, by_place(tokens, settings))
    found, command = Generated(), "aero.private.parties.both_parties_worker"
    reads = read_alone(new_tokens) if reads is None else reads
    for event in _events(private_command(command, python), job, reads):
        collect(found, event, after_piece)
    return found


def by_place(tokens: Sequence[Any], settings: PrivateSettings) -> tuple[Token, ...]:
    """The tokens of one prompt; of several those of each place.

    Raises:
        ValueError: the prompts cannot go side by side.
    """
    if not (tokens and isinstance(tokens[0], Sequence)):
        return tuple(int(token) for token in tokens)
    check_batch(tokens, settings)
    return tuple(tuple(int(token) for token in place) for place in zip(*tokens, strict=True))


def collect(
    found: Generated,
    event: Event,
    after_piece: Callable[[int, Call], None] = lambda index, call: None,
) -> None:
    """Adds an event of a worker; events other than `Piece` and `Pass` add nothing."""
    if isinstance(event, Piece):
        index, call = event.index, event.call
        if call.name in {"set-up", "weights"}:
            found.preparation.append(call)
        else:
            if index == len(found.calls):
                found.calls.append([])
            found.calls[index].append(call)
        after_piece(index, call)
    elif isinstance(event, Pass):
        found.tokens.append(event.token)
        if event.likeliest is not None:
            found.likeliest.append([*event.likeliest])
        if event.logits is not None and event.shape is not None:
            found.logits.append(np.frombuffer(event.logits, "<f4").reshape(event.shape))


def _events(command: list[str], job: BothPartiesJob, reads: Reads) -> Iterator[Event]:
    """The reports of a worker up to its end; its process ends with this generator."""
    with temporary_folder() as folder:
        log = folder / "worker.log"
        worker = Worker(command, job, log)
        try:
            while True:
                select.select([worker], [], [])
                for event in _received(worker, log):
                    if isinstance(event, Done):
                        return
                    if isinstance(event, Failed):
                        raise PartyError(f"private: {event.reason}")
                    yield event
                    if isinstance(event, Pass):
                        worker.tell(ReadTokens(plain(reads(event.token))))
        finally:
            worker.end()


def _received(worker: Worker, log: Path) -> list[Event]:
    try:
        return worker.events()
    except PartyError as error:
        lines = log.read_text(errors="replace").strip().splitlines()
        last = f": {lines[-1][:300]}" if lines else ""
        raise PartyError(f"private: {error}{last}") from error
