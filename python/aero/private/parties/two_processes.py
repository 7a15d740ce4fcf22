"""All parties on this machine as processes of their own, over loopback TCP or a shaped link."""

from __future__ import annotations

import dataclasses
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aero.mpc import NetworkProfile, network_profile
from aero.mpc.profiles import network_names
from aero.private.compute.calls import Call, Party
from aero.private.environment import find_private_python
from aero.private.links.keys import CERTIFICATE, Security, make_keys
from aero.private.links.shaped_link import ShapedLink, shaped_link
from aero.private.parties.events import Computed, Done, Event, Failed, Listening
from aero.private.parties.job import Generated, by_place, collect, generate_privately
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
    tokens: Sequence[int] | Sequence[Sequence[int]],
    new_tokens: int,
    settings: PrivateSettings,
    after_piece: Callable[[int, Call], None] = lambda index, call: None,
    *,
    network: NetworkProfile | None = None,
    encrypted: bool = False,
    limits: TimeLimits | None = None,
    python: Path | None = None,
) -> Generated:
    """Continues a prompt between a client's and a server's process, under ABY3 a helper's too.

    Args:
        folder: of `export_weights`; the server alone reads more than its description.
        tokens: the prompt, or several of equal length, which go on side by side.
        new_tokens: how many to compute, of each.
        settings: of all parties.
        after_piece: called after each piece at the client, with the number of its pass from 0.
        network: rates and delays of the link between two; default: loopback as it is.
        encrypted: by mutual TLS, with keys for this run.
        limits: of time.
        python: of the private environment; default: `find_private_python()`.

    Raises:
        PartyError: the run failed; the message has all parties' words.
        ValueError: three are to share a link of two ends, or the protocol needs a dealer.
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
    found, three = Generated(), settings.parties == 3
    if three and network is not None:
        raise ValueError(
            f"private: a link of {settings.protocol}, which has three parties, must be memory or "
            "tcp: a shaped one has two ends"
        )
    with _link(network) as link, temporary_folder() as logs:
        any_port = f"{link.addresses[Party.SERVER]}:0"
        keys = _keys(logs, three=three) if encrypted else {}
        job = PartyJob(folder, settings, any_port, plaintext=True, limits=limits)
        parties: dict[Party, Worker] = {}
        addresses: dict[Party, str] = {}

        def start(party: Party, **changes: Any) -> None:
            own = dataclasses.replace(job, security=keys.get(party), **changes)
            # A third party is on the loopback, where nothing has to be entered.
            parties[party] = _start(party, own, [*link.enter, []][party], logs, python)

        try:
            start(Party.SERVER)
            for party, event in _events(parties, settings.parties):
                if isinstance(event, Listening):
                    addresses[party] = event.address
                    if three and party is Party.SERVER:
                        start(Party.HELPER, helps=event.address)
                        continue
                    start(
                        Party.CLIENT,
                        address=addresses[Party.SERVER],
                        helper=addresses.get(Party.HELPER),
                        tokens=by_place(tokens, settings),
                        new_tokens=new_tokens,
                    )
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
    tokens: Sequence[int] | Sequence[Sequence[int]],
    new_tokens: int,
    settings: PrivateSettings,
    after_piece: Callable[[int, Call], None] = lambda index, call: None,
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


def _keys(folder: Path, *, three: bool) -> dict[Party, Security]:
    """Keys of each party, who knows the others."""
    folders = {each: folder / f"{each.word}-keys" for each in Party}
    for each in folders.values():
        make_keys(each)
    certificates = {party: each / CERTIFICATE for party, each in folders.items()}
    client, server, helper = (certificates[each] for each in Party)
    known = {
        Party.CLIENT: (server, helper), Party.SERVER: (client, helper),
        Party.HELPER: (client, server),
    }  # fmt: skip
    return {
        party: Security(folders[party], one, third if three else None)
        for party, (one, third) in known.items()
    }


@contextmanager
def _link(network: NetworkProfile | None) -> Iterator[ShapedLink]:
    if network is None:
        yield LOOPBACK
    else:
        with shaped_link(network) as link:
            yield link


def _start(party: Party, job: PartyJob, enter: list[str], logs: Path, python: Path) -> Worker:
    program = [sys.executable, "-m", "aero.private.parties.party_program", str(python)]
    return Worker([*enter, *program], job, logs / party.name, job.memory_bytes)


def _events(parties: dict[Party, Worker], count: int) -> Iterator[tuple[Party, Event]]:
    """The reports of the parties until all are done; a failure has the words of all."""
    done: set[Party] = set()
    failures: dict[Party, str] = {}
    while len(done | failures.keys()) < count:
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
            f"{party.word}: {text.removeprefix('private: ')}" for party, text in failures.items()
        ]
        raise PartyError(f"private: {'; '.join(words)}")
