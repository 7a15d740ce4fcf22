"""`aero private serve`, `ask` and `publish`: the two parties on machines of their own."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Annotated

import typer

from aero.cli.cost_arguments import AsJson, settings
from aero.cli.errors import end_on_termination, note, one_line_errors, say
from aero.cli.numbers import decimal, whole
from aero.cli.private import (
    PrivateOptions,
    Source,
    exported,
    find_tokenizer,
    prompt_numbers,
    shown_progress,
)

SECONDS = decimal(0, 1e9, above=True)
LinkPort = Annotated[
    int,
    typer.Option(
        help="Where this party's SPU listens; 0: any free port. TCP both ways.",
        callback=whole(0, 65535),
    ),
]
Wait = Annotated[float, typer.Option(help="Seconds to wait for the other party.", callback=SECONDS)]
Silence = Annotated[
    float,
    typer.Option(
        help="Seconds without a sign of life after which the other is given up.", callback=SECONDS
    ),
]
Stage = Annotated[
    float,
    typer.Option(help="Seconds that one step of the computation may take.", callback=SECONDS),
]
Log = Annotated[
    Path | None, typer.Option(help="File for messages of libraries when something fails.")
]


def publish(
    source: Source,
    output: Annotated[Path, typer.Option(help="Folder for the client; made if missing.")],
) -> None:
    """Writes what a client has to know of a network: its description and tokenizer, no weights.

    The description holds shapes and single factors such as that of the residual stream.
    """
    with one_line_errors(ValueError, OSError), exported(source) as folder:
        from aero.atomic_files import write_bytes_atomically
        from aero.export.description_file import read_description

        output.mkdir(parents=True, exist_ok=True)
        known = find_tokenizer(None, source)
        if known is not None:
            write_bytes_atomically(output / "tokenizer.json", known.to_str().encode())
        read_description(folder)
        description = (folder / "network.json").read_bytes()
        write_bytes_atomically(output / "network.json", description)
        say(str(output))


def serve(
    source: Source,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where clients come.")],
    once: Annotated[bool, typer.Option("--once", help="End after one client.")] = False,
    set_: PrivateOptions = None,
    link_port: LinkPort = 0,
    wait: Wait = 86400.0,
    silence: Silence = 15.0,
    stage: Stage = 600.0,
    log: Log = None,
) -> None:
    """Computes a network for clients, one after the other, without learning their prompts.

    What travels between the parties is not encrypted once more: use a tunnel between machines.
    """
    from aero.private.party_errors import PartyError

    with one_line_errors(ValueError, OSError, PartyError), exported(source) as folder:
        from aero.export.numpy_forward import read_network
        from aero.private import party
        from aero.private.environment import find_private_python
        from aero.private.job import Generated, check_runnable, collect
        from aero.private.settings import PrivateSettings
        from aero.private.supervision import TimeLimits

        end_on_termination()
        description = read_network(folder).description
        check_runnable(description)
        progress = shown_progress(len(description["layers"]))
        job = party.PartyJob(
            folder,
            PrivateSettings.from_dict(settings(set_)),
            listen,
            link_port=link_port,
            log=log,
            limits=TimeLimits(connect=wait, silence=silence, stage=stage),
        )
        python = find_private_python()
        while True:
            try:
                found = Generated()
                party.serve(
                    job,
                    functools.partial(collect, found, after_piece=progress),
                    _waiting,
                    python,
                )
                note(f"served {len(found.calls)} tokens")
            except PartyError as error:
                if once:
                    raise
                note(f"aero: {error}")
            if once:
                return


def ask(
    network: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="What `aero private publish` wrote.")
    ],
    connect: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the server waits.")],
    prompt: Annotated[str | None, typer.Option(help="Text to continue.")] = None,
    prompt_tokens: Annotated[
        str | None, typer.Option(metavar="N,N,...", help="The same as token numbers.")
    ] = None,
    tokens: Annotated[
        int, typer.Option(help="How many tokens to compute.", callback=whole(1, 10**6))
    ] = 1,
    set_: PrivateOptions = None,
    link_port: LinkPort = 0,
    wait: Wait = 60.0,
    silence: Silence = 15.0,
    stage: Stage = 600.0,
    log: Log = None,
    as_json: AsJson = False,
) -> None:
    """Continues a prompt with a server's network, without learning its weights."""
    from aero.private.party_errors import PartyError

    with one_line_errors(ValueError, OSError, PartyError):
        from aero.export.description_file import read_description
        from aero.private import party
        from aero.private.environment import find_private_python
        from aero.private.job import Generated, check_runnable, check_tokens, collect
        from aero.private.settings import PrivateSettings
        from aero.private.supervision import TimeLimits

        end_on_termination()
        if not (network / "network.json").is_file():
            raise ValueError(
                f"private: {network} holds no network.json; give what `aero private publish` wrote"
            )
        description = read_description(network)
        check_runnable(description)
        known = find_tokenizer(None, network)
        numbers = prompt_numbers(prompt, prompt_tokens, known)
        check_tokens(numbers, tokens, description)
        job = party.PartyJob(
            network,
            PrivateSettings.from_dict(settings(set_)),
            connect,
            tokens=tuple(numbers),
            new_tokens=tokens,
            link_port=link_port,
            log=log,
            limits=TimeLimits(connect=wait, silence=silence, stage=stage),
        )
        found = Generated()
        progress = shown_progress(len(description["layers"]))
        party.ask(job, lambda event: collect(found, event, progress), find_private_python())
        if as_json:
            say(json.dumps({"tokens": found.tokens}))
        else:
            shown = (
                " ".join(map(str, found.tokens)) if known is None else known.decode(found.tokens)
            )
            say(shown)


def _waiting(address: str) -> None:
    note(f"waiting for a client on {address}")
