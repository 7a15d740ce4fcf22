"""The log of `aero private serve`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from aero.cli.errors import note
from aero.cli.private import shown_progress

if TYPE_CHECKING:
    from aero.private.parties.events import Event

# docs/explanation/threat_model.md says all of it, sentence by sentence with its test.
_GUARANTEES = (
    "a client that follows the protocol learns of each pass the {reveal}, this network's "
    "description, a hash of its weights, and how long everything takes; this server learns the "
    "prompt's length, the number of tokens and who asks.\n"
    "a client that departs from the protocol is not held to this: serve those you know."
)
_HELPER = (
    "each of three parties that follow the protocol learns no more than sizes and times; two of "
    "them together can read everything: help nobody whom you would share secrets with.\n"
    "this helper learns the prompt's length, the number of tokens and who asks."
)
_THREE = (
    "client and helper together can read the weights, this server and the helper the prompt: the "
    "helper must be a friend of neither."
)
_ENCRYPTED = "who listens in between sees sizes and times; all else is under TLS 1.3."
_PLAINTEXT = "nothing is encrypted, and nobody is asked who they are: this machine's users get in."


class Shown:
    """The log of a server or a helper: a line for each event, with its client's fingerprint.

    Args:
        layers: of the network.
        encrypted: whether the parties have keys.
        reveal: of the settings.
        three: whether there is a third party.
        helper: whether this is it.
    """

    def __init__(
        self,
        layers: int,
        encrypted: bool,
        reveal: str,
        *,
        three: bool = False,
        helper: bool = False,
    ) -> None:
        self._progress = shown_progress(layers)
        self._encrypted, self._reveal = encrypted, reveal
        self._three, self._helper = three, helper
        self._whose: tuple[str | None, str | None] = (None, None)
        self._sequences = 1

    def event(self, event: Event) -> None:
        """Prints it, if there is anything to say of it."""
        from aero.private.parties import events
        from aero.private.parties.job import Generated, collect

        match event:
            case events.Listening():
                note(_HELPER if self._helper else _GUARANTEES.format(reveal=self._reveal))
                if self._three and not self._helper:
                    note(_THREE)
                note(_ENCRYPTED if self._encrypted else _PLAINTEXT)
                note(f"{_now()} waiting for clients on {event.address}")
            case events.Client():
                self._found, self._whose = Generated(), (event.address, event.who)
                self._sequences = event.sequences
                several = f"{event.sequences} prompts, each " * (event.sequences > 1)
                asked = f"{several}{event.prompt_length} tokens of prompt, {event.new_tokens} new"
                self._log(f"client: {asked}", *self._whose)
            case events.Served():
                count = self._sequences * len(self._found.calls)
                self._log(f"served {count} tokens", event.address, event.who)
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
