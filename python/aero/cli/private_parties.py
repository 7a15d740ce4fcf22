"""`aero private serve`, `ask` and `publish`: the two parties on machines of their own."""

from __future__ import annotations

import json
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
    Protocol,
    Source,
    chosen_settings,
    exported,
    find_tokenizer,
    note_of_server,
    prompt_numbers,
    shown_progress,
)
from aero.cli.private_log import Shown

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
Helper = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="With aby3: where the third party waits."),
]
Log = Annotated[
    Path | None, typer.Option(help="File for messages of libraries when something fails.")
]


def keys(
    output: Annotated[Path, typer.Option(help="Folder for the key and its certificate.")],
) -> None:
    """Makes the key and the certificate of one party; prints the certificate's fingerprint.

    A client sends certificate.pem to the server's owner, who appends it to clients.pem in the
    server's folder. The server's goes to clients by `aero private publish --keys`. A third party's
    is helper.pem in the server's folder, and goes with it.
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
    """Writes the files for a client: description, tokenizer, certificates of server and helper.

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
            from aero.private.links.keys import CERTIFICATE, fingerprints

            for source_name, name in ((CERTIFICATE, SERVER_CERTIFICATE), (HELPER_CERTIFICATE,) * 2):
                if name == SERVER_CERTIFICATE or (keys / source_name).exists():
                    [fingerprint] = fingerprints(keys / source_name)
                    write_bytes_atomically(output / name, (keys / source_name).read_bytes())
                    # The client trusts no file that its group can write.
                    (output / name).chmod(0o644)
                    say(fingerprint)


def serve(
    source: Source,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where clients come.")],
    once: Annotated[bool, typer.Option("--once", help="End after one client.")] = False,
    protocol: Protocol = None,
    helps: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Be the third party of aby3 for the server there, with a folder from `aero "
            "private publish`; without weights.",
        ),
    ] = None,
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
        from aero.network.files import read_description, read_network
        from aero.private.environment import find_private_python
        from aero.private.parties import party
        from aero.private.parties.job import check_runnable
        from aero.private.parties.serving import serve
        from aero.private.parties.supervision import TimeLimits

        end_on_termination()
        own = read_description(folder) if helps else read_network(folder).description
        check_runnable(own)
        chosen, known = chosen_settings(set_, protocol), clients or (keys or Path()) / "clients.pem"
        third = source / SERVER_CERTIFICATE if helps else (keys or Path()) / HELPER_CERTIFICATE
        job = party.PartyJob(
            folder,
            chosen,
            listen,
            helps=helps,
            security=security(keys, known, third, chosen),
            plaintext=plaintext,
            queries=queries,
            strangers=strangers,
            memory_bytes=None if memory is None else int(memory * 1e9),
            log=log,
            limits=TimeLimits(connect=wait, silence=silence, stage=stage, run=longest),
        )
        shown = Shown(
            layer_count(own),
            job.security is not None,
            chosen.reveal,
            three=chosen.parties == 3,
            helper=helps is not None,
        )
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
    protocol: Protocol = None,
    helper: Helper = None,
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
        from aero.private.parties.events import Sliced
        from aero.private.parties.job import Generated, check_runnable, check_tokens, collect
        from aero.private.parties.supervision import TimeLimits

        end_on_termination()
        if not (network / "network.json").is_file():
            raise ValueError(
                f"private: {network} holds no network.json; "
                "give a folder from `aero private publish`"
            )
        description = read_description(network)
        known = find_tokenizer(None, network)
        numbers = prompt_numbers(prompt, prompt_file, prompt_tokens, known)
        check_runnable(description)
        check_tokens(numbers, tokens, description)
        chosen = chosen_settings(set_, protocol)
        known_party, third = network / SERVER_CERTIFICATE, network / HELPER_CERTIFICATE
        job = party.PartyJob(
            network,
            chosen,
            connect,
            tokens=tuple(numbers),
            new_tokens=tokens,
            helper=helper,
            security=security(keys, known_party, third, chosen),
            plaintext=plaintext,
            log=log,
            limits=TimeLimits(connect=wait, silence=silence, stage=stage),
        )
        found = Generated()
        progress = shown_progress(layer_count(description))

        def on_event(event: Event) -> None:
            if isinstance(event, Sliced):
                note(f"products of at most {event.largest_product:,} weights at a time, for memory")
            note_of_server(event)
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


# The others' certificates, in the published folder; the helper's in the server's too.
SERVER_CERTIFICATE, HELPER_CERTIFICATE = "server.pem", "helper.pem"


def security(keys: Path | None, known: Path, third: Path, settings: Any) -> Security | None:
    """Keys and the known certificates; None without keys.

    Args:
        keys: of this party.
        known: the certificates of the others.
        third: that of the third party, where the settings have three.
        settings: of the run.
    """
    from aero.private.links.keys import Security

    if keys is None:
        return None
    return Security(keys, known, third if settings.parties == 3 else None)
