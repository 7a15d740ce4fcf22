"""A party's job, and the client's side of a run: from its first look for the server to its end."""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aero.network.description import Description
from aero.network.files import read_description
from aero.private.compute.calls import Party
from aero.private.environment import private_command
from aero.private.links.channel import Channel
from aero.private.links.connections import connect, parse_address
from aero.private.links.keys import Security
from aero.private.parties.events import Event, Place, Sliced
from aero.private.parties.interrupts import run_interruptibly
from aero.private.parties.memory import check_memory, in_slices
from aero.private.parties.orders import OnePartyJob, Token
from aero.private.parties.passes import Passes, Reads, read_alone
from aero.private.parties.slices import accepted_slices
from aero.private.parties.supervision import TimeLimits, bound_of, supervise
from aero.private.parties.terms import Hello, check_hello, checked_request, hello
from aero.private.parties.third_party import three_party_terms, while_alive
from aero.private.parties.worker_pipe import Worker, first_report
from aero.private.party_errors import PartyError
from aero.private.settings import BETWEEN_PROCESSES, PrivateSettings, check_sequences
from aero.private.temporary import temporary_folder
from aero.reading import one_line


@dataclass(frozen=True)
class PartyJob:
    """One party's part of a run.

    Attributes:
        folder: the server's of `export_weights`; of the others' only `network.json` is read.
        settings: equal at all parties.
        address: HOST:PORT where the server waits for clients, or at the helper this one.
        tokens: the prompt, or of several, which go side by side, each place's tokens; the client's
            alone.
        new_tokens: how many to compute at most, of each prompt; the client's alone.
        helper: HOST:PORT where the third party waits, under ABY3; the client's alone.
        helps: HOST:PORT of the server whose third party this one is; the helper's alone.
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
        >>> job.party.word
        'client'
    """

    folder: Path
    settings: PrivateSettings
    address: str
    tokens: tuple[Token, ...] | None = None
    new_tokens: int | None = None
    helper: str | None = None
    helps: str | None = None
    security: Security | None = None
    plaintext: bool = False
    queries: int | None = None
    strangers: int = 8
    memory_bytes: int | None = None
    log: Path | None = None
    limits: TimeLimits = field(default_factory=TimeLimits)

    @property
    def party(self) -> Party:
        """The name of this party."""
        if self.tokens is not None:
            return Party.CLIENT
        return Party.SERVER if self.helps is None else Party.HELPER

    @property
    def sizes(self) -> dict[str, int]:
        """The tokens of the client's prompt as rows, and how many prompts it has as sequences."""
        tokens = self.tokens or ()
        several = [len(place) for place in tokens[:1] if isinstance(place, tuple)]
        return {"rows": len(tokens), "sequences": sum(several) or 1}

    def start_worker(self, command: Sequence[str], log: Path) -> Worker:
        """Starts the worker that computes for this party.

        Args:
            command: of `one_party_worker`.
            log: file for its standard error.
        """
        folder, most = self.folder.resolve(), self.memory_bytes
        job = OnePartyJob(self.party.word, folder, self.settings, self.tokens, most)
        return Worker(command, job, log, most)


def check_security(job: PartyJob) -> None:
    """Checks that nobody learns by a job's protocol what is not his, nor who listens in between.

    Raises:
        ValueError: one party would learn another's secrets, the third party is not named where
            there is one, or anybody between two machines could read and change their messages.
    """
    protocol = job.settings.protocol
    if protocol not in BETWEEN_PROCESSES:
        raise ValueError(
            f"private: between processes protocol must be {' or '.join(BETWEEN_PROCESSES)}, got "
            f"{protocol}: its dealer would be the client, who could read all; --link memory runs "
            "it in one process"
        )
    _check_third_party(job)
    for address in filter(None, (job.address, job.helper, job.helps)):
        host, _ = parse_address(address)
        try:
            local = ipaddress.ip_address(host).is_loopback
        except ValueError:
            local = host == "localhost"
        if job.security is None and not (local or job.plaintext):
            raise ValueError(
                f"private: {address} is not this machine's loopback, so --keys must be given "
                "(`aero private keys` makes them), or --plaintext to let everybody in between "
                "read along and take part"
            )


def _check_third_party(job: PartyJob) -> None:
    protocol, three = (
        job.settings.protocol,
        job.settings.parties == 3,
    )
    if job.party is Party.CLIENT and three != (job.helper is not None):
        expected = "given with protocol=aby3, whose third party it is" if three else "left out"
        raise ValueError(f"private: --helper must be {expected}, got {job.helper} with {protocol}")
    if job.helps is not None and not three:
        raise ValueError(f"private: --helps must be left out with {protocol}, which has no helper")
    if job.security is not None and three != (job.security.third is not None):
        expected = "the third party's certificate" if three else "no third party"
        raise ValueError(
            f"private: security must have {expected} with {protocol}, got {job.security.third}"
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
        worker = job.start_worker(command, log)
        try:
            run_interruptibly(_ask(job, worker, on_event, reads))
        except PartyError as error:
            text = str(error).removeprefix("private: ")
            raise PartyError(f"private: {text}{last_words(log)}") from error
        finally:
            worker.end()


async def _ask(
    job: PartyJob, worker: Worker, on_event: Callable[[Event], None], reads: Reads | None
) -> None:
    description = read_description(job.folder)
    given = job.settings
    job = await asyncio.to_thread(_in_slices, job, description)
    sizes, asked = job.sizes, {"new_tokens": job.new_tokens}
    asked |= {"prompt_length": sizes["rows"], "sequences": sizes["sequences"]}
    asked["largest_product"] = job.settings.largest_product
    request = checked_request(asked, description)
    terms = await first_report(worker, job.limits.ready)
    if job.helper is not None:
        terms = three_party_terms(terms, job.security, helper=False)
    own, limit = hello("client", terms, request), job.limits.connect
    channels = [await connect(job.address, job.security, limit, worker.check)]
    failure: PartyError | None = PartyError("stopped")
    try:
        answered = await _wait_for_slices(own, channels[0], job, description)
        if answered.settings != given:
            on_event(Sliced(answered.settings.largest_product))
        job = answered
        request = request.sliced(job.settings.largest_product)
        session = await _wait_for_turn(channels[0], job, on_event)
        if job.helper is not None:
            joined = own.in_session(session, request)
            joining = _join_helper(joined, channels, job, worker, description)
            await while_alive(joining, channels[0], job.limits.silence)
        failure = None
    except PartyError as error:
        failure = error
        text = str(error).removeprefix("private: ")
        raise PartyError(f"{text} (before the run)") from error
    finally:
        if failure is not None:
            ends = (each.close(failure=failure, where="before the run") for each in channels)
            await asyncio.gather(*ends)
    passes = Passes(description["context_length"], request)
    bound = bound_of(description, job.settings, Party.CLIENT, sizes["sequences"])
    reads = read_alone(request.new_tokens) if reads is None else reads
    await supervise(worker, channels, job.limits, on_event, passes, bound, reads)


def _in_slices(job: PartyJob, description: Description) -> PartyJob:
    """The client's job with the slices that its memory needs; raises ValueError without room."""
    sizes, most = job.sizes, job.memory_bytes
    check_sequences(sizes["sequences"], job.settings)
    settings = in_slices(description, job.settings, **sizes, parties=1, most=most)
    check_memory(description, settings, **sizes, parties=1, most=most)
    return dataclasses.replace(job, settings=settings)


async def _join_helper(
    own: Hello,
    channels: list[Channel],
    job: PartyJob,
    worker: Worker,
    description: Description,
) -> None:
    """Adds the helper's channel, once it has come into this client's session too."""
    assert job.helper is not None
    limit, security = job.limits.connect, job.security
    channel = await connect(job.helper, security, limit, worker.check, "helper", third=True)
    channels.append(channel)
    if (await _wait_for_slices(own, channel, job, description)).settings != job.settings:
        raise channel.foreign("other slices than the server and this client have agreed on")
    await _wait_for_turn(channel, job, lambda place: None)


async def _wait_for_slices(
    own: Hello, channel: Channel, job: PartyJob, description: Description
) -> PartyJob:
    """The client's job with the slices that the other party has answered to its hello."""
    channel.post(hello=own.to_dict())
    _, theirs = await channel.next_message(job.limits.connect, "hello")
    check_hello(own, theirs, channel.peer)
    channel.beat()
    name, value = "alive", 0
    while name != "slices":
        name, value = await channel.next_message(job.limits.silence, "slices", "alive")
    settings = await asyncio.to_thread(
        accepted_slices, value, description, job.settings, job.sizes, job.memory_bytes, channel.peer
    )
    return dataclasses.replace(job, settings=settings)


async def _wait_for_turn(channel: Channel, job: PartyJob, on_event: Callable[[Event], None]) -> str:
    """The name of the session, when its turn has come."""
    while True:
        name, value = await channel.next_message(job.limits.silence, "place", "go", "alive")
        if name == "place":
            on_event(Place(value))
        elif name == "go":
            return str(value)


def last_words(log: Path) -> str:
    """The last words of libraries, such as which of them is missing; for this party alone."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return f"; its worker said last: {one_line(lines[-1], 200)}" if lines else ""
