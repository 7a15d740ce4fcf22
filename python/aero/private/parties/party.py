"""A party's job, and the client's side of a run: from its first look for the server to its end."""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aero.network.files import read_description
from aero.private.compute.calls import Party
from aero.private.environment import private_command
from aero.private.links.channel import Channel
from aero.private.links.connections import connect, parse_address
from aero.private.links.keys import Security
from aero.private.parties.events import Event, Place
from aero.private.parties.memory import check_memory
from aero.private.parties.passes import Passes, Reads, read_alone
from aero.private.parties.supervision import TimeLimits, bound_of, supervise
from aero.private.parties.terms import check_hello, hello
from aero.private.parties.worker_pipe import Worker, first_report
from aero.private.party_errors import PartyError
from aero.private.settings import PrivateSettings
from aero.private.temporary import temporary_folder
from aero.reading import one_line


@dataclass(frozen=True)
class PartyJob:
    """One party's part of a run.

    Attributes:
        folder: the server's of `export_weights`; of the client's only `network.json` is read.
        settings: equal at both parties.
        address: HOST:PORT where the server waits for clients.
        tokens: the prompt; the client's alone.
        new_tokens: how many to compute at most; the client's alone.
        security: keys and known certificates; None: neither encrypted nor authenticated.
        plaintext: do without `security` also where the address is not this machine's loopback.
        queries: tokens that the server computes for each client; None: any number.
        strangers: connections of one address that the server holds at once before they show a
            known certificate; without `security`, before they say a whole hello.
        memory_bytes: that the worker may take; None: four fifths of the machine's.
        log: file for the worker's and its libraries' reports of faults; default: not kept.
        limits: of time.

    Example:
        >>> from pathlib import Path
        >>> from aero.private import PrivateSettings
        >>> from aero.private.parties.party import PartyJob
        >>> job = PartyJob(Path("public"), PrivateSettings(), "localhost:7700", tokens=(1, 2))
        >>> PartyJob.from_dict(job.to_dict()).tokens
        (1, 2)
    """

    folder: Path
    settings: PrivateSettings
    address: str
    tokens: tuple[int, ...] | None = None
    new_tokens: int | None = None
    security: Security | None = None
    plaintext: bool = False
    queries: int | None = None
    strangers: int = 8
    memory_bytes: int | None = None
    log: Path | None = None
    limits: TimeLimits = field(default_factory=TimeLimits)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; they hold the prompt."""
        security = self.security
        return {
            **{each.name: getattr(self, each.name) for each in dataclasses.fields(self)},
            "folder": str(self.folder.resolve()),
            "log": None if self.log is None else str(self.log.resolve()),
            "settings": self.settings.to_dict(),
            "security": security and [str(security.keys), str(security.known)],
            "limits": dataclasses.asdict(self.limits),
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> PartyJob:
        """The inverse of `to_dict`."""
        tokens, log, security = fields["tokens"], fields["log"], fields["security"]
        changed = {
            "folder": Path(fields["folder"]),
            "settings": PrivateSettings.from_dict(fields["settings"]),
            "limits": TimeLimits(**fields["limits"]),
            "tokens": None if tokens is None else tuple(tokens),
            "security": None if security is None else Security(*map(Path, security)),
            "log": None if log is None else Path(log),
        }
        return cls(**(fields | changed))


def check_security(job: PartyJob) -> None:
    """Checks that a job's protocol is safe between two, and its connection encrypted if it must be.

    Raises:
        ValueError: one party would learn the other's secrets, or anybody between two machines could
            read and change their messages.
    """
    if job.settings.protocol != "cheetah":
        why = (
            "its dealer would be the client, who knows all"
            if (job.settings.protocol == "semi2k")
            else "it has three parties"
        )
        raise ValueError(
            f"private: between processes protocol must be cheetah, got {job.settings.protocol}: "
            f"{why}; --link memory runs it in one process"
        )
    host, _ = parse_address(job.address)
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    if job.security is None and not (local or job.plaintext):
        raise ValueError(
            f"private: {job.address} is not this machine's loopback, so --keys must be given "
            "(`aero private keys` makes them), or --plaintext to let everybody in between read "
            "along and take part"
        )


def ask(
    job: PartyJob,
    on_event: Callable[[Event], None],
    python: Path | None = None,
    reads: Reads | None = None,
) -> None:
    """Asks a server to compute with this party.

    Args:
        job: the client's.
        on_event: called with the worker's reports, see `aero.private.parties.events`, and before
            that with a `Place` while others are served.
        python: of the private environment; default: `find_private_python()`.
        reads: what the next pass reads, called with the token of each, in a thread; nothing ends
            the run. Default: that token, until there are `new_tokens`.

    Raises:
        PartyError: nobody listens, the terms differ, or either party failed.
        ValueError: the address needs keys.
    """
    check_security(job)
    command = private_command("aero.private.parties.one_party_worker", python)
    with temporary_folder() as folder:
        log = job.log or folder / "worker.log"
        worker = Worker(command, {"party": "client", **job.to_dict()}, log)
        try:
            asyncio.run(_ask(job, worker, on_event, reads))
        except PartyError as error:
            text = str(error).removeprefix("private: ")
            raise PartyError(f"private: {text}{last_words(log)}") from error
        finally:
            worker.end()


async def _ask(
    job: PartyJob, worker: Worker, on_event: Callable[[Event], None], reads: Reads | None
) -> None:
    assert job.tokens is not None
    assert job.new_tokens is not None
    request = {"prompt_length": len(job.tokens), "new_tokens": job.new_tokens}
    description = read_description(job.folder)
    await asyncio.to_thread(_check_memory, job, description)
    terms = await first_report(worker, job.limits.ready)
    channel = await connect(job.address, job.security, job.limits.connect, worker.check)
    failure: PartyError | None = PartyError("stopped")
    try:
        await _wait_for_turn(hello("client", terms, request), channel, job, on_event)
        failure = None
    except PartyError as error:
        failure = error
        raise PartyError(f"{error} (before the run)") from error
    finally:
        if failure is not None:
            await channel.close(failure=failure, where="before the run")
    passes = Passes(description["context_length"], request)
    bound = bound_of(description, job.settings, Party.CLIENT)
    reads = read_alone(job.new_tokens) if reads is None else reads
    await supervise(worker, channel, job.limits, on_event, passes, bound, reads)


def _check_memory(job: PartyJob, description: dict[str, Any]) -> None:
    assert job.tokens is not None
    most = job.memory_bytes
    check_memory(description, job.settings, len(job.tokens), parties=1, most=most)


async def _wait_for_turn(
    own: dict[str, Any], channel: Channel, job: PartyJob, on_event: Callable[[Event], None]
) -> None:
    channel.post(hello=own)
    _, theirs = await channel.next_message(job.limits.connect, "hello")
    check_hello(own, theirs, "server")
    channel.beat()
    name = "place"
    while name != "go":
        name, value = await channel.next_message(job.limits.silence, "place", "go", "alive")
        if name == "place":
            on_event(Place(value))


def last_words(log: Path) -> str:
    """The last words of libraries, such as which of them is missing; for this party alone."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return f"; its worker said last: {one_line(lines[-1], 200)}" if lines else ""
