"""Both parties on this machine as processes of their own, over loopback TCP or a shaped link."""

from __future__ import annotations

import dataclasses
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from aero.mpc import NetworkProfile, network_profile
from aero.mpc.profiles import network_names
from aero.private.compute.calls import Call, Party
from aero.private.environment import find_private_python
from aero.private.links.keys import CERTIFICATE, Security, make_keys
from aero.private.links.shaped_link import ShapedLink, shaped_link
from aero.private.parties.events import Computed, Done, Event, Failed, Listening
from aero.private.parties.job import Generated, collect, generate_privately
from aero.private.parties.party import PartyJob
from aero.private.parties.supervision import TimeLimits
from aero.private.parties.worker_pipe import Worker
from aero.private.party_errors import PartyError
from aero.private.settings import PrivateSettings
from aero.private.temporary import temporary_folder

# The time that one party still has to end by itself when the other has failed.
_GRACE_SECONDS = 5.0
LOOPBACK = ShapedLink(([], []), ("127.0.0.1", "127.0.0.1"))


def generate_over_tcp(
    folder: Path,
    tokens: Sequence[int],
    new_tokens: int,
    settings: PrivateSettings,
    after_piece: Callable[[int, Call], None] = lambda index, call: None,
    *,
    network: NetworkProfile | None = None,
    encrypted: bool = False,
    limits: TimeLimits | None = None,
    python: Path | None = None,
) -> Generated:
    """Continues a prompt between a client's and a server's process.

    Args:
        folder: of `export_weights`; the client reads its description only.
        tokens: the prompt.
        new_tokens: how many to compute, each from a forward pass over all before it.
        settings: of both parties.
        after_piece: called after each piece at the client, with the number of its pass from 0.
        network: rates and delays of the link between them; default: loopback as it is.
        encrypted: by mutual TLS, with keys for this run.
        limits: of time.
        python: of the private environment; default: `find_private_python()`.

    Raises:
        PartyError: the run failed; the message has both parties' words.
        PermissionError: this system cannot shape links.

    Example:
        >>> from pathlib import Path
        >>> from aero.private import PrivateSettings, generate_over_tcp
        >>> settings = PrivateSettings()
        >>> found = generate_over_tcp(Path("exported"), [5, 6], 2, settings)  # doctest: +SKIP
        >>> found.tokens  # doctest: +SKIP
        [17, 3]
    """
    python = find_private_python() if python is None else python
    limits = TimeLimits() if limits is None else limits
    found = Generated()
    with _link(network) as link, temporary_folder() as logs:
        address = f"{link.addresses[Party.SERVER]}:0"
        server, client = _keys(logs) if encrypted else (None, None)
        server_job = PartyJob(
            folder, settings, address, security=server, plaintext=True, limits=limits
        )
        parties = {}
        try:
            parties[Party.SERVER] = _start(Party.SERVER, server_job, link, logs, python)
            for party, event in _events(parties):
                if isinstance(event, Listening):
                    client_job = dataclasses.replace(
                        server_job,
                        address=event.address,
                        tokens=tuple(tokens),
                        new_tokens=new_tokens,
                        security=client,
                    )
                    parties[Party.CLIENT] = _start(Party.CLIENT, client_job, link, logs, python)
                elif isinstance(event, Computed):
                    found.cpu_seconds.setdefault(party, []).append(event.cpu_seconds)
                elif party is Party.CLIENT:
                    collect(found, event, after_piece)
        finally:
            for process in parties.values():
                process.end()
    return found


def generate_over(
    link: str,
    folder: Path,
    tokens: Sequence[int],
    new_tokens: int,
    settings: PrivateSettings,
    after_piece: Callable[[int, Call], None],
    python: Path | None = None,
) -> Generated:
    """Continues a prompt over a link by name; the other arguments are `generate_over_tcp`'s.

    A link is "memory", "tcp", or a network of `aero.mpc.network_profile`, which is shaped.

    Raises:
        ValueError: there is no such link.
        PartyError: the run failed.
    """
    *others, last = ["memory", "tcp", *network_names()]
    if link.partition(",")[0] not in (*others, last):
        raise ValueError(f"private: link must be {', '.join(others)} or {last}, got {link!r}")
    if link == "memory":
        return generate_privately(folder, tokens, new_tokens, settings, after_piece, python)
    network = None if link == "tcp" else network_profile(link)
    return generate_over_tcp(
        folder, tokens, new_tokens, settings, after_piece, network=network, python=python
    )


def _keys(folder: Path) -> tuple[Security, Security]:
    """The server's and the client's, who know each other."""
    one, other = folder / "one", folder / "other"
    for each in (one, other):
        make_keys(each)
    return Security(one, other / CERTIFICATE), Security(other, one / CERTIFICATE)


@contextmanager
def _link(network: NetworkProfile | None) -> Iterator[ShapedLink]:
    if network is None:
        yield LOOPBACK
    else:
        with shaped_link(network) as link:
            yield link


def _start(party: Party, job: PartyJob, link: ShapedLink, logs: Path, python: Path) -> Worker:
    command = [*link.enter[party], sys.executable, "-m", "aero.private.parties.party_program"]
    said = {"party": party.name.lower(), "python": str(python), **job.to_dict()}
    return Worker(command, said, logs / party.name)


def _events(parties: dict[Party, Worker]) -> Iterator[tuple[Party, Event]]:
    """The reports of the parties until both are done; a failure has the words of both."""
    done: set[Party] = set()
    failures: dict[Party, str] = {}
    while len(done | failures.keys()) < len(Party):
        waiting = {
            each: process for each, process in parties.items() if each not in done | failures.keys()
        }
        if not waiting:
            break  # the server failed before there was a client
        # A server does not end with a client that it has not met.
        reports = [process.fileno() for process in waiting.values()]
        if not select.select(reports, [], [], _GRACE_SECONDS if failures else None)[0]:
            break
        for party, process in waiting.items():
            try:
                events = process.events()
            except PartyError as error:
                failures[party] = str(error)
                continue
            for event in events:
                if isinstance(event, Done):
                    done.add(party)
                elif isinstance(event, Failed):
                    failures[party] = event.reason
                else:
                    yield party, event
    if failures:
        words = [
            f"{party.name.lower()}: {text.removeprefix('private: ')}"
            for party, text in failures.items()
        ]
        raise PartyError(f"private: {'; '.join(words)}")
