"""`aero private chat`: a conversation with a network, or one answer to each of several prompts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aero.cli.arguments import AsJson
from aero.cli.errors import end_on_termination, note, one_line_errors
from aero.cli.private import (
    PrivateOptions,
    PromptFile,
    Prompts,
    PromptsTokens,
    Protocol,
    chosen_settings,
    exported,
    find_tokenizer,
    prompts_numbers,
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
from aero.cli.private_talk import BatchShown, Lines, TalkShown

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from aero.private.parties.conversation import Conversation, SideBySide


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
    prompt: Prompts = None,
    prompt_file: PromptFile = None,
    prompt_tokens: PromptsTokens = None,
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

    Several prompts go side by side: each gets one answer, and nothing more is said.
    """
    from aero.private.party_errors import PartyError

    with one_line_errors(ValueError, OSError, PartyError), _network(source, connect) as folder:
        from aero.network.files import read_description
        from aero.private.environment import find_private_python
        from aero.private.measuring.conversation_cost import ConversationCost
        from aero.private.parties.conversation import Conversation
        from aero.private.parties.job import (
            by_place,
            check_batch,
            check_runnable,
            check_tokens,
            generate_privately,
        )
        from aero.private.parties.memory import check_memory, in_slices
        from aero.private.parties.party import PartyJob, ask
        from aero.private.parties.supervision import TimeLimits

        end_on_termination()
        description = read_description(folder)
        check_runnable(description)
        known = find_tokenizer(tokenizer, source)
        chosen = chosen_settings(set_, protocol)
        lines = Lines()
        if [prompt, prompt_file, prompt_tokens] == [None] * 3:
            prompt = [lines.prompt()]
        prompts = prompts_numbers(prompt, prompt_file, prompt_tokens, known)
        for numbers in prompts:
            check_tokens(numbers, 1, description)
        check_batch(prompts, chosen)
        length = len(prompts[0])
        talk = _talk(prompts, description["context_length"], tokens, most, _stops(stop, known))
        parties = chosen.parties if connect is None else 1
        sizes = {"parties": parties, "sequences": len(prompts)}
        chosen = in_slices(description, chosen, length, **sizes)
        cost = ConversationCost(description, chosen, len(prompts))
        check_memory(description, chosen, length, **sizes)
        note(cost.to_text(length, min(tokens, talk.most), talk.most, parties))
        _agree(yes)
        shown: BatchShown | TalkShown
        if isinstance(talk, Conversation):
            shown = TalkShown(talk, cost, known, lines, as_json=as_json, agreed=yes)
        else:
            shown = BatchShown(talk, cost, known, as_json=as_json, agreed=yes)
        python = find_private_python()
        given: Any = prompts if len(prompts) > 1 else prompts[0]
        if connect is None:
            generate_privately(folder, given, 1, chosen, shown.piece, python, reads=talk)
        else:
            known_party, third = folder / SERVER_CERTIFICATE, folder / HELPER_CERTIFICATE
            job = PartyJob(
                folder,
                chosen,
                connect,
                tokens=by_place(given, chosen),
                new_tokens=talk.most,
                helper=helper,
                security=given_security(keys, known_party, third, chosen),
                plaintext=plaintext,
                log=log,
                limits=TimeLimits(connect=wait, silence=silence, stage=stage),
            )
            ask(job, shown.event, python, reads=talk)
        shown.end()


def _talk(
    prompts: list[list[int]], context: int, tokens: int, most: int | None, stop: set[int]
) -> Conversation | SideBySide:
    """What reads the prompts' answers: as many tokens as are wanted and as the context takes.

    Raises:
        ValueError: `most` is less than a token for each prompt.
    """
    from aero.private.parties.conversation import Conversation, SideBySide

    room, count = context - len(prompts[0]) + 1, len(prompts)
    if count == 1:
        [prompt] = prompts
        most = min(most or room, room)
        return Conversation(prompt, context, answer=tokens, most=most, stop=stop)
    if most is not None and most < count:
        raise ValueError(
            f"private: --most must be at least {count} for {count} prompts, got {most}"
        )
    most = room if most is None else min(room, most // count)
    return SideBySide(prompts, context, most=min(tokens, most), stop=stop)


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
