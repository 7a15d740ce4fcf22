"""`aero private chat`: a conversation with a network, in this process or with a server."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from aero.cli.arguments import AsJson
from aero.cli.errors import end_on_termination, note, one_line_errors, say
from aero.cli.private import (
    PrivateOptions,
    Prompt,
    PromptFile,
    PromptTokens,
    Protocol,
    chosen_settings,
    exported,
    find_tokenizer,
    prompt_numbers,
)
from aero.cli.private_parties import (
    HELPER_CERTIFICATE,
    SERVER_CERTIFICATE,
    Helper,
    Keys,
    Log,
    Plaintext,
    Silence,
    Stage,
    Wait,
)
from aero.cli.private_parties import security as given_security

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from aero.private.compute.calls import Call
    from aero.private.measuring.conversation_cost import ConversationCost
    from aero.private.parties.conversation import Conversation
    from aero.private.parties.events import Event

_MOST_LINE_BYTES = 1 << 20


def chat(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_OR_EXPORT",
            help="Run folder, or folder from `aero export`; with --connect from `aero private "
            "publish`.",
        ),
    ],
    connect: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where the server waits; default: all parties in one process here.",
        ),
    ] = None,
    prompt: Prompt = None,
    prompt_file: PromptFile = None,
    prompt_tokens: PromptTokens = None,
    tokens: Annotated[
        int, typer.Option(help="Tokens of an answer at most.", min=1, max=10**6)
    ] = 32,
    most: Annotated[
        int | None,
        typer.Option(
            help="Tokens of all answers at most; default: as many as the context takes.",
            min=1,
            max=10**6,
        ),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(
            help="Text of one token, or its number, that ends an answer; may be repeated. Default: "
            "the tokenizer's end of text."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Begin without asking.")] = False,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Folder with tokenizer.json; default: next to the network."),
    ] = None,
    keys: Keys = None,
    plaintext: Plaintext = False,
    protocol: Protocol = None,
    helper: Helper = None,
    set_: PrivateOptions = None,
    wait: Wait = 60.0,
    silence: Silence = 15.0,
    stage: Stage = 600.0,
    log: Log = None,
    as_json: AsJson = False,
) -> None:
    """Converses with a network privately; says the cost first and asks.

    Each line of standard input is what is said next; an empty one lets the answer go on, and the
    end of the input ends the conversation. Without --prompt the first line is the prompt. The
    answers are written to standard output. A line for each token with its seconds, its bytes and
    what is left goes to standard error.
    """
    from aero.private.party_errors import PartyError

    with one_line_errors(ValueError, OSError, PartyError), _network(source, connect) as folder:
        from aero.network.files import read_description
        from aero.private.environment import find_private_python
        from aero.private.measuring.conversation_cost import ConversationCost
        from aero.private.parties.conversation import Conversation
        from aero.private.parties.job import check_runnable, check_tokens, generate_privately
        from aero.private.parties.memory import check_memory, in_slices
        from aero.private.parties.party import PartyJob, ask
        from aero.private.parties.supervision import TimeLimits

        end_on_termination()
        description = read_description(folder)
        check_runnable(description)
        known = find_tokenizer(tokenizer, source)
        chosen = chosen_settings(set_, protocol)
        lines = _Lines()
        if [prompt, prompt_file, prompt_tokens] == [None] * 3:
            prompt = lines.prompt()
        numbers = prompt_numbers(prompt, prompt_file, prompt_tokens, known)
        check_tokens(numbers, 1, description)
        context = description["context_length"]
        room = context - len(numbers) + 1
        talk = Conversation(
            numbers, context, answer=tokens, most=min(most or room, room), stop=_stops(stop, known)
        )
        parties = chosen.parties if connect is None else 1
        if connect is None:  # a server has settings of its own
            chosen = in_slices(description, chosen, len(numbers), parties=parties)
        cost = ConversationCost(description, chosen)
        check_memory(description, chosen, len(numbers), parties=parties)
        note(cost.to_text(len(numbers), min(tokens, talk.most), talk.most, parties))
        _agree(yes)
        shown = _Shown(talk, cost, known, lines, as_json=as_json)
        python = find_private_python()
        if connect is None:
            generate_privately(folder, numbers, 1, chosen, shown.piece, python, reads=talk)
        else:
            known_party, third = folder / SERVER_CERTIFICATE, folder / HELPER_CERTIFICATE
            job = PartyJob(
                folder,
                chosen,
                connect,
                tokens=tuple(numbers),
                new_tokens=talk.most,
                helper=helper,
                security=given_security(keys, known_party, third, chosen),
                plaintext=plaintext,
                log=log,
                limits=TimeLimits(connect=wait, silence=silence, stage=stage),
            )
            ask(job, shown.event, python, reads=talk)
        shown.end()


def _network(source: Path, connect: str | None) -> Any:
    """The folder with the description; of a run a temporary one."""
    if connect is not None and not (source / "network.json").is_file():
        raise ValueError(
            f"private: {source} holds no network.json; give a folder from `aero private publish`"
        )
    return exported(source)


def _stops(given: list[str] | None, known: Tokenizer | None) -> set[int]:
    """The tokens that end an answer.

    Raises:
        ValueError: a text is not one token.
    """
    from aero.saved.tokenizer import END_OF_TEXT

    if given is None:
        end = None if known is None else known.token_to_id(END_OF_TEXT)
        return set() if end is None else {end}
    found = set()
    for text in given:
        numbers = [] if known is None else known.encode(text).ids
        if text.isascii() and text.isdecimal() and len(text) < 10 and len(numbers) != 1:
            numbers = [int(text)]
        if len(numbers) != 1:
            raise ValueError(
                f"private: --stop must be one token, got {text!r} of {len(numbers)}; give its "
                "number, or a shorter text"
            )
        found.add(numbers[0])
    return found


def _agree(yes: bool) -> None:
    """Begins only if the user wants to.

    Raises:
        ValueError: nobody is there to be asked.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise ValueError("private: nobody can be asked whether to begin; give --yes to begin")
    if not typer.confirm("begin?", err=True):
        raise ValueError("private: not begun")


class _Lines:
    """What the user says, line by line."""

    def __init__(self) -> None:
        self._lines: BinaryIO | None = None

    def prompt(self) -> str:
        """The first line.

        Raises:
            ValueError: there is none.
        """
        line = self.next()
        if line is None:
            raise ValueError("private: the prompt is missing: give --prompt, or a line of input")
        return line

    def next(self) -> str | None:
        """The next line without its end; None after the last."""
        if self._lines is None:
            if sys.stdin.isatty():
                note("say more; an empty line lets the answer go on, and Ctrl-D ends")
            # Not sys.stdin itself: a thread that waits for it would hold up this program's end.
            self._lines = os.fdopen(os.dup(sys.stdin.fileno()), "rb")
        line = self._lines.readline(_MOST_LINE_BYTES)
        return line.decode(errors="replace").rstrip("\r\n") if line else None


class _Shown:
    """Tokens as they come, with what they took and what is left; and what is said next."""

    def __init__(
        self,
        talk: Conversation,
        cost: ConversationCost,
        known: Tokenizer | None,
        lines: _Lines,
        *,
        as_json: bool,
    ) -> None:
        self._talk, self._cost, self._known, self._as_json = talk, cost, known, as_json
        self._lines = lines
        self._bytes, self._start = 0, time.monotonic()
        self._took: list[dict[str, float]] = []
        talk.says, talk.on_token = self._says, self._token

    def piece(self, _: int, call: Call) -> None:
        """A part of a pass ran, or what comes once before all."""
        sent = call.traffic.comm_bytes
        if call.name in {"set-up", "weights"}:
            note(f"{call.name}: {sent / 1e6:.2f} MB, {call.seconds:.1f} s")
            self._start = time.monotonic()
        else:
            self._bytes += sent

    def event(self, event: Event) -> None:
        """What the party says."""
        from aero.private.parties.events import Place, Unpadded
        from aero.private.parties.job import Generated, collect

        if isinstance(event, Place):
            note(f"the server is busy: place {event.place}")
        elif isinstance(event, Unpadded):
            note(f"not padded: {event.reason}")
        collect(Generated(), event, self.piece)

    def _token(self, token: int, left: int) -> None:
        now = time.monotonic()
        seconds, self._start = now - self._start, now
        sent, self._bytes = self._bytes, 0
        self._took.append({"seconds": seconds, "comm_bytes": sent})
        least = self._cost.answering(left, self._talk.read).comm_bytes
        note(
            f"{self._text([token])!r}: {sent / 1e6:.2f} MB, {seconds:.1f} s; left: {left} tokens, "
            f"{least / 1e6:.1f} MB at most, and {self._talk.free} tokens of the context"
        )

    def _says(self, room: int) -> Sequence[int] | None:
        """What the user says next, which is asked for until it fits."""
        if not self._as_json:
            say(self._text(self._talk.answers[-1]))
        while (text := self._lines.next()) is not None:
            if not text:
                self._start = time.monotonic()
                return []
            try:
                numbers = self._numbers(text)
                if len(numbers) > room:
                    raise ValueError(
                        f"private: the context has room for {room} more tokens, got {len(numbers)}"
                    )
            except ValueError as error:
                note(str(error))
                continue
            cost = self._cost.reading(1 + len(numbers), self._talk.read)
            note(f"reading {1 + len(numbers)} tokens: {cost.comm_bytes / 1e6:.1f} MB")
            self._start = time.monotonic()
            return numbers
        return None

    def _numbers(self, text: str) -> list[int]:
        known = self._known
        given: tuple[str | None, None, str | None] = (text, None, None)
        return prompt_numbers(*(given if known is not None else (None, None, text)), known)

    def _text(self, tokens: Sequence[int]) -> str:
        decode: Callable[[Sequence[int]], str] | None = self._known and self._known.decode
        return " ".join(map(str, tokens)) if decode is None else decode(tokens)

    def end(self) -> None:
        """The answer that nobody has gone on with, or everything as JSON."""
        talk = self._talk
        if self._as_json:
            say(json.dumps({"answers": talk.answers, "read": talk.read, "tokens": self._took}))
        elif not (talk.free >= 1 and talk.tokens < talk.most):
            say(self._text(talk.answers[-1]))
