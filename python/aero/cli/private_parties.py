"""`aero private serve`, `ask` and `publish`: the two parties on machines of their own."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aero.cli.arguments import AsJson, no_nan
from aero.cli.errors import end_on_termination, note, one_line_errors, say
from aero.cli.private import (
    PrivateOptions,
    Prompt,
    PromptFile,
    PromptTokens,
    Source,
    chosen_settings,
    exported,
    find_tokenizer,
    prompt_numbers,
    shown_progress,
)

if TYPE_CHECKING:
    from aero.private.links.keys import Security
    from aero.private.parties.events import Event

# Above nothing, and below a lifetime; NaN is refused apart.
SECONDS: dict[str, Any] = {"min": 1e-9, "max": 1e9, "callback": no_nan}
Keys = Annotated[
    Path | None,
    typer.Option(help="Folder of `aero private keys`; needed off this machine's loopback."),
]
Plaintext = Annotated[
    bool,
    typer.Option("--plaintext", help="Neither encrypt nor authenticate, whoever is in between."),
]
Wait = Annotated[float, typer.Option(help="Seconds to wait for the other party.", **SECONDS)]
Silence = Annotated[
    float,
    typer.Option(
        help="Seconds without a sign of life after which the other is given up.", **SECONDS
    ),
]
Stage = Annotated[
    float,
    typer.Option(help="Seconds that one step of the computation may take.", **SECONDS),
]
Log = Annotated[
    Path | None, typer.Option(help="File for messages of libraries when something fails.")
]


def keys(
    output: Annotated[Path, typer.Option(help="Folder for the key and its certificate.")],
) -> None:
    """Makes the key and the certificate of one party; prints the certificate's fingerprint.

    A client sends certificate.pem to the server's owner, who appends it to clients.pem in the
    server's folder. The server's goes to clients by `aero private publish --keys`.
    """
    with one_line_errors(ValueError, OSError):
        from aero.private.links.keys import make_keys

        say(make_keys(output))


def publish(
    source: Source,
    output: Annotated[Path, typer.Option(help="Folder for the client; made if missing.")],
    keys: Annotated[
        Path | None, typer.Option(help="The server's folder of `aero private keys`.")
    ] = None,
) -> None:
    """Writes the files for a client: description, tokenizer, the server's certificate.

    The description holds shapes and single factors such as that of the residual stream, and the
    weights' SHA-256; no weights. Printed are the folder and the certificate's fingerprint.
    """
    with one_line_errors(ValueError, OSError), exported(source) as folder:
        from aero.internals.atomic_files import write_bytes_atomically
        from aero.network.files import read_description

        output.mkdir(parents=True, exist_ok=True, mode=0o755)
        known = find_tokenizer(None, source)
        if known is not None:
            write_bytes_atomically(output / "tokenizer.json", known.to_str().encode())
        read_description(folder)
        description = (folder / "network.json").read_bytes()
        write_bytes_atomically(output / "network.json", description)
        say(str(output))
        if keys is not None:
            from aero.private.links.keys import CERTIFICATE, own_fingerprint

            fingerprint = own_fingerprint(keys)
            write_bytes_atomically(output / SERVER_CERTIFICATE, (keys / CERTIFICATE).read_bytes())
            (output / SERVER_CERTIFICATE).chmod(
                0o644
            )  # the client trusts no file that its group can write
            say(fingerprint)


def serve(
    source: Source,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where clients come.")],
    once: Annotated[bool, typer.Option("--once", help="End after one client.")] = False,
    keys: Keys = None,
    clients: Annotated[
        Path | None,
        typer.Option(help="PEM file with the clients' certificates; default: clients.pem in KEYS."),
    ] = None,
    plaintext: Plaintext = False,
    queries: Annotated[
        int | None,
        typer.Option(help="Tokens that each client may have.", min=1, max=10**12),
    ] = None,
    strangers: Annotated[
        int,
        typer.Option(
            help="Connections of one address at once that have not shown a certificate.",
            min=1,
            max=32,
        ),
    ] = 8,
    set_: PrivateOptions = None,
    wait: Annotated[
        float, typer.Option(help="With --once: seconds to wait for a client.", **SECONDS)
    ] = 86400.0,
    silence: Silence = 15.0,
    stage: Stage = 600.0,
    longest: Annotated[
        float, typer.Option(help="Seconds that one client may take.", **SECONDS)
    ] = 86400.0,
    memory: Annotated[
        float | None,
        typer.Option(
            help="GB that the computing process may take; default: four fifths of the machine's.",
            min=1e-9,
            max=1e6,
            callback=no_nan,
        ),
    ] = None,
    log: Log = None,
) -> None:
    """Computes a network for clients, one after the other, without learning their prompts."""
    from aero.private.party_errors import PartyError

    with one_line_errors(ValueError, OSError, PartyError), exported(source) as folder:
        from aero.network.description import layer_count
        from aero.network.files import read_network
        from aero.private.environment import find_private_python
        from aero.private.parties import party
        from aero.private.parties.job import check_runnable
        from aero.private.parties.serving import serve
        from aero.private.parties.supervision import TimeLimits

        end_on_termination()
        description = read_network(folder).description
        check_runnable(description)
        job = party.PartyJob(
            folder,
            chosen_settings(set_),
            listen,
            security=security(keys, clients or (keys or Path()) / "clients.pem"),
            plaintext=plaintext,
            queries=queries,
            strangers=strangers,
            memory_bytes=None if memory is None else int(memory * 1e9),
            log=log,
            limits=TimeLimits(connect=wait, silence=silence, stage=stage, run=longest),
        )
        shown = Shown(layer_count(description), job.security is not None, job.settings.reveal)
        serve(job, shown.event, find_private_python(), once=once)


def ask(
    network: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder from `aero private publish`.")
    ],
    connect: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the server waits.")],
    prompt: Prompt = None,
    prompt_file: PromptFile = None,
    prompt_tokens: PromptTokens = None,
    keys: Keys = None,
    plaintext: Plaintext = False,
    tokens: Annotated[int, typer.Option(help="How many tokens to compute.", min=1, max=10**6)] = 1,
    set_: PrivateOptions = None,
    wait: Wait = 60.0,
    silence: Silence = 15.0,
    stage: Stage = 600.0,
    log: Log = None,
    as_json: AsJson = False,
) -> None:
    """Continues a prompt with a server's network, without learning its weights."""
    from aero.private.party_errors import PartyError

    with one_line_errors(ValueError, OSError, PartyError):
        from aero.network.description import layer_count
        from aero.network.files import read_description
        from aero.private.environment import find_private_python
        from aero.private.parties import party
        from aero.private.parties.events import Place, Unpadded
        from aero.private.parties.job import Generated, check_runnable, check_tokens, collect
        from aero.private.parties.supervision import TimeLimits

        end_on_termination()
        if not (network / "network.json").is_file():
            raise ValueError(
                f"private: {network} holds no network.json; "
                "give a folder from `aero private publish`"
            )
        description = read_description(network)
        check_runnable(description)
        known = find_tokenizer(None, network)
        numbers = prompt_numbers(prompt, prompt_file, prompt_tokens, known)
        check_tokens(numbers, tokens, description)
        job = party.PartyJob(
            network,
            chosen_settings(set_),
            connect,
            tokens=tuple(numbers),
            new_tokens=tokens,
            security=security(keys, network / SERVER_CERTIFICATE),
            plaintext=plaintext,
            log=log,
            limits=TimeLimits(connect=wait, silence=silence, stage=stage),
        )
        found = Generated()
        progress = shown_progress(layer_count(description))

        def on_event(event: Event) -> None:
            if isinstance(event, Place):
                note(f"the server is busy: place {event.place}")
            elif isinstance(event, Unpadded):
                note(f"not padded: {event.reason}")
            collect(found, event, progress)

        party.ask(job, on_event, find_private_python())
        if as_json:
            logits = [each[-1].tolist() for each in found.logits]
            revealed = {"likeliest": found.likeliest, "logits": logits}
            say(json.dumps({"tokens": found.tokens} | {k: v for k, v in revealed.items() if v}))
        else:
            shown = (
                " ".join(map(str, found.tokens)) if known is None else known.decode(found.tokens)
            )
            say(shown)


SERVER_CERTIFICATE = "server.pem"  # the server's certificate, in the published folder


def security(keys: Path | None, known: Path) -> Security | None:
    """Keys and the known certificates; None without keys."""
    from aero.private.links.keys import Security

    return None if keys is None else Security(keys, known)


# docs/explanation/threat_model.md says all of it, sentence by sentence with its test.
_GUARANTEES = (
    "a client that follows the protocol learns of each pass the {reveal}, this network's "
    "description, a hash of its weights, and how long everything takes; this server learns the "
    "prompt's length, the number of tokens and who asks.\n"
    "a client that departs from the protocol is not held to this: serve those you know."
)
_ENCRYPTED = "who listens in between sees sizes and times; all else is under TLS 1.3."
_PLAINTEXT = "nothing is encrypted, and nobody is asked who they are: this machine's users get in."


class Shown:
    """The server's log: a line for each event, with time, address and fingerprint of its client.

    Args:
        layers: of the network.
        encrypted: whether the parties have keys.
        reveal: of the settings.
    """

    def __init__(self, layers: int, encrypted: bool, reveal: str) -> None:
        self._progress = shown_progress(layers)
        self._encrypted, self._reveal = encrypted, reveal
        self._whose: tuple[str | None, str | None] = (None, None)

    def event(self, event: Event) -> None:
        """Prints it, if there is anything to say of it."""
        from aero.private.parties import events
        from aero.private.parties.job import Generated, collect

        match event:
            case events.Listening():
                note(_GUARANTEES.format(reveal=self._reveal))
                note(_ENCRYPTED if self._encrypted else _PLAINTEXT)
                note(f"{_now()} waiting for clients on {event.address}")
            case events.Client():
                self._found, self._whose = Generated(), (event.address, event.who)
                asked = f"{event.prompt_length} tokens of prompt, {event.new_tokens} new"
                self._log(f"client: {asked}", *self._whose)
            case events.Served():
                self._log(f"served {len(self._found.calls)} tokens", event.address, event.who)
            case events.Unpadded():
                self._log(f"not padded: {event.reason}", *self._whose)
            case events.Lost():
                self._log(f"lost: {event.reason}", event.address, event.who)
            case events.Refused():
                more = f" {event.count} more" if event.count > 1 else ""
                self._log(f"refused{more}: {event.reason}", event.address, event.who)
            case _:
                collect(self._found, event, self._progress)

    def _log(self, text: str, address: str | None, who: str | None) -> None:
        note(f"{_now()} {address or '-'} {who or '-'} {text}")


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
