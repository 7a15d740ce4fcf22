"""The terms that two parties compare before any protocol message, and a client's request."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from typing import Any

from aero import __version__
from aero.internals.errors import extra
from aero.network.description import Description, layer_count
from aero.private.parties.passes import Request
from aero.private.party_errors import PartyError
from aero.private.settings import RANGES, PrivateSettings
from aero.reading import one_line, shown

with extra("private"):
    import msgspec

PROTOCOL = "aero-private 8"
_MOST_SEQUENCES = 1024


def flat_terms(**groups: object) -> dict[str, object]:
    """Terms by dotted name, so that a difference has the name of one field."""
    flat: dict[str, object] = {}
    for name, value in groups.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": field for inner, field in flat_terms(**value).items()}
        else:
            flat[name] = value
    return flat


class Hello(msgspec.Struct, frozen=True, omit_defaults=True):
    """A party's description of itself.

    Attributes:
        protocol: that it speaks.
        role: "client", "server" or "helper".
        terms: names and JSON values that must be equal at both parties. None stands for what this
            party does not know, such as the client the weights' hash; it agrees with everything.
        request: of the client: the run that it asks for.
        session: with the third party, the one that the server has named.
    """

    protocol: str
    role: str
    terms: Mapping[str, object]
    request: Request | None = None
    session: str | None = None

    def in_session(self, session: str, request: Request) -> Hello:
        """Returns what it says to the third party of a session."""
        return msgspec.structs.replace(self, session=session, request=request)

    def to_dict(self) -> dict[str, object]:
        """Returns JSON values."""
        values: dict[str, object] = msgspec.to_builtins(self)
        return values


def hello(role: str, terms: Mapping[str, object], request: Request | None = None) -> Hello:
    """What a party of this version says of itself."""
    return Hello(PROTOCOL, role, terms, request)


def check_hello(own: Hello, other: Mapping[str, Any], peer: str) -> None:
    """Compares the descriptions of both; both parties find the same difference.

    Args:
        own: of this party.
        other: of the other, which has the shape of a hello; else nothing about it is trusted.
        peer: the other's role.

    Raises:
        PartyError: names the first field that differs, its value here and the received one.
    """
    for name, word in (("protocol", PROTOCOL), ("role", peer)):
        if other.get(name) != word:
            raise _difference(peer, name, word, other.get(name))
    mine, theirs = own.terms, other["terms"]
    for name in (*mine, *sorted(theirs.keys() - mine.keys())):
        expected, got = mine.get(name), theirs.get(name)
        known_to_both = expected is not None and got is not None
        if (known_to_both and expected != got) or (name in mine) != (name in theirs):
            raise _difference(peer, name, expected, got)


def _difference(peer: str, name: str, expected: object, got: object) -> PartyError:
    return PartyError(
        f"{one_line(name, 80)} must be {shown(expected)} as here, got {shown(got)} from the {peer}"
    )


# Of `network.json`: words, and the weights' hash, which the client need not know.
_NOT_COMPARED = {"meaning", "weights"}
# Settings that each party may choose for itself, and those on which they agree by the request.
_OWN_SETTINGS = {"timeout_seconds", "largest_product"}


def party_terms(description: Description, settings: PrivateSettings) -> dict[str, object]:
    """The values that must be equal at both parties before they start, the general first.

    Args:
        description: content of `network.json`; the client's may lack the hash of the weights.
        settings: of this party.

    Returns:
        Versions, settings, the network in words and as a hash, the stages, the weights' hash.

    Raises:
        PartyError: outside the private environment.
    """
    public = {key: description[key] for key in description if key not in _NOT_COMPARED}
    text = json.dumps(public, sort_keys=True)
    layers = layer_count(description)
    stages = ["embedding", f"layer 0 to {layers - 1}", "head"]
    if settings.argmax or settings.reveal == "top-k":
        stages.append("top-k" if settings.reveal == "top-k" else "argmax")
    try:
        versions = {name: importlib.metadata.version(name) for name in ("spu", "jax", "numpy")}
    except importlib.metadata.PackageNotFoundError as error:
        raise PartyError(f"the private environment has no {error.name}") from error
    return flat_terms(
        aero=__version__,
        **versions,
        settings={k: v for k, v in settings.to_dict().items() if k not in _OWN_SETTINGS},
        network={
            "label": description["label"],
            "spec": description["spec"],
            "stages": ", ".join(stages),
            "description": hashlib.sha256(text.encode()).hexdigest(),
        },
        weights=description.get("weights", {}).get("sha256"),
    )


def checked_request(request: Any, description: Description) -> Request:
    """The run that a client, not to be trusted, asks for.

    Raises:
        PartyError: they do not fit in the context, or a value is out of range.
    """
    context = description["context_length"]
    asked: list[int] = []
    for name in ("prompt_length", "new_tokens"):
        value = request.get(name) if isinstance(request, dict) else None
        if type(value) is not int or not 1 <= value <= context:
            raise PartyError(f"{name} must be an integer from 1 to {context}, got {shown(value)}")
        asked.append(value)
    length, new_tokens = asked
    limit, most = request.get("largest_product", 0), RANGES["largest_product"][1]
    if type(limit) is not int or not 0 <= limit <= most:
        raise PartyError(f"largest_product must be an integer from 0 to {most}, got {shown(limit)}")
    sequences = request.get("sequences", 1)
    if type(sequences) is not int or not 1 <= sequences <= _MOST_SEQUENCES:
        raise PartyError(
            f"sequences must be an integer from 1 to {_MOST_SEQUENCES}, got {shown(sequences)}"
        )
    if length + new_tokens - 1 > context:
        raise PartyError(
            f"prompt_length + new_tokens - 1 must be at most the context of {context}, got "
            f"{length} + {new_tokens} - 1"
        )
    return Request(length, new_tokens, limit, sequences)
