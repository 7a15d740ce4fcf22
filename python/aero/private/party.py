"""One party of two, from its first look for the other to its end: a supervised worker."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aero.private.control_channel import (
    ControlChannel,
    accept,
    connect,
    free_port,
    listen,
    shown_address,
)
from aero.private.environment import private_command
from aero.private.party_errors import PartyError
from aero.private.settings import PrivateSettings
from aero.private.supervision import Event, TimeLimits, Worker, supervise

__all__ = ["PartyJob", "ask", "serve"]


@dataclass(frozen=True)
class PartyJob:
    """What one party brings to a run.

    Attributes:
        folder: the server's of `export_weights`; of the client's only `network.json` is read.
        settings: equal at both parties.
        tokens: the prompt; the client's alone.
        new_tokens: how many to compute; the client's alone.
        address: HOST:PORT where the server waits for the client.
        link_port: where this party's SPU listens for the other's; 0 is any free port. Both
            directions need a way through firewalls.
        log: file for what the worker and its libraries say of faults; default: not kept.
        limits: of time.

    Example:
        >>> job = PartyJob(Path("public"), PrivateSettings(), "localhost:7700", tokens=(1, 2))
        >>> PartyJob.from_dict(job.to_dict()).tokens
        (1, 2)
    """

    folder: Path
    settings: PrivateSettings
    address: str
    tokens: tuple[int, ...] | None = None
    new_tokens: int | None = None
    link_port: int = 0
    log: Path | None = None
    limits: TimeLimits = field(default_factory=TimeLimits)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; they hold the prompt."""
        return {
            **{each.name: getattr(self, each.name) for each in dataclasses.fields(self)},
            "folder": str(self.folder.resolve()),
            "log": None if self.log is None else str(self.log.resolve()),
            "settings": self.settings.to_dict(),
            "limits": dataclasses.asdict(self.limits),
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> PartyJob:
        """The inverse of `to_dict`."""
        tokens, log = fields["tokens"], fields["log"]
        changed = {
            "folder": Path(fields["folder"]),
            "settings": PrivateSettings.from_dict(fields["settings"]),
            "limits": TimeLimits(**fields["limits"]),
            "tokens": None if tokens is None else tuple(tokens),
            "log": None if log is None else Path(log),
        }
        return cls(**(fields | changed))


OnEvent = Callable[[Event], None]
OpenChannel = Callable[[Callable[[], None]], ControlChannel]


def serve(
    job: PartyJob,
    on_event: OnEvent,
    on_listening: Callable[[str], None],
    python: Path | None = None,
) -> None:
    """Waits for one client and computes with it what it asks for.

    Args:
        job: the server's.
        on_event: is told what the worker reports, see `aero.private.job`.
        on_listening: is told the address as soon as a client may come.
        python: of the private environment; default: `find_private_python()`.

    Raises:
        PartyError: nobody came, the terms differ, or either party failed.
    """
    with listen(job.address) as listener:
        host, port = listener.getsockname()[:2]
        on_listening(shown_address(host, port))

        def open_channel(while_waiting: Callable[[], None]) -> ControlChannel:
            return accept(listener, job.limits.connect, while_waiting)

        _take_part("server", job, open_channel, on_event, python)


def ask(job: PartyJob, on_event: OnEvent, python: Path | None = None) -> None:
    """Has a server compute with this party.

    Args:
        job: the client's.
        on_event: is told what the worker reports, see `aero.private.job`.
        python: of the private environment; default: `find_private_python()`.

    Raises:
        PartyError: nobody listens, the terms differ, or either party failed.
    """

    def open_channel(while_waiting: Callable[[], None]) -> ControlChannel:
        return connect(job.address, job.limits.connect, while_waiting)

    _take_part("client", job, open_channel, on_event, python)


def _take_part(
    party: str,
    job: PartyJob,
    open_channel: OpenChannel,
    on_event: OnEvent,
    python: Path | None,
) -> None:
    with tempfile.TemporaryDirectory(prefix="aero-private-") as folder:
        command = private_command("aero.private.party_worker", python)
        log = job.log or Path(folder) / "worker.log"
        worker = Worker(command, {"party": party, **job.to_dict()}, log)
        try:
            try:  # the worker loads while the parties find each other
                channel = open_channel(worker.check)
            except BaseException:
                worker.end()
                raise
            host = channel.own_host
            link = shown_address(host, job.link_port or free_port(host))
            supervise(worker, channel, link, job.limits, on_event)
        except PartyError as error:
            raise PartyError(f"{error}{_last_words(log)}") from error


def _last_words(log: Path) -> str:
    """What libraries said last, such as which of them is missing; for this party alone."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return f"; its worker said last: {lines[-1][:200]}" if lines else ""
