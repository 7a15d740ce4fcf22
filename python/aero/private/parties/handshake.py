"""Before any protocol message the parties say what they are about to compute, and compare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aero.private.party_errors import PartyError
from aero.reading import one_line, shown

__all__ = ["check_hello", "flat_terms", "hello"]

PROTOCOL = "aero-private 2"


def flat_terms(**groups: Any) -> dict[str, Any]:
    """Terms by dotted name, so that a difference has the name of one field.

    Example:
        >>> from aero.private.parties.handshake import flat_terms
        >>> flat_terms(spu="0.9.5", settings={"threads": 1, "argmax": True})
        {'spu': '0.9.5', 'settings.threads': 1, 'settings.argmax': True}
    """
    flat: dict[str, Any] = {}
    for name, value in groups.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": field for inner, field in flat_terms(**value).items()}
        else:
            flat[name] = value
    return flat


def hello(
    role: str, terms: Mapping[str, Any], request: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What a party says of itself.

    Args:
        role: "client" or "server".
        terms: names and JSON values that must be equal at both parties. None stands for what this
            party does not know, such as the client the weights' hash; it agrees with everything.
        request: of the client: what is to be computed.
    """
    said = {"protocol": PROTOCOL, "role": role, "terms": dict(terms)}
    return said | ({} if request is None else {"request": dict(request)})


def check_hello(own: Mapping[str, Any], other: Mapping[str, Any], peer: str) -> None:
    """Compares what both said of themselves; both parties find the same difference.

    Args:
        own: of this party.
        other: of the other, which has the shape of a hello; else nothing about it is trusted.
        peer: the other's role.

    Raises:
        PartyError: naming the first field that differs, what it is here and what came.

    Example:
        >>> from aero.private.parties.handshake import check_hello, hello
        >>> server = hello("server", {"threads": 1, "weights": "5f3a"})
        >>> check_hello(server, hello("client", {"threads": 1, "weights": None}), "client")
        >>> check_hello(server, hello("client", {"threads": 2, "weights": None}), "client")
        Traceback (most recent call last):
        aero.private.party_errors.PartyError: threads must be 1 as here, got 2 from the client
    """
    for name, expected in (("protocol", PROTOCOL), ("role", peer)):
        if other.get(name) != expected:
            raise _difference(peer, name, expected, other.get(name))
    mine, theirs = own["terms"], other["terms"]
    for name in (*mine, *sorted(theirs.keys() - mine.keys())):
        expected, got = mine.get(name), theirs.get(name)
        known_to_both = expected is not None and got is not None
        if (known_to_both and expected != got) or (name in mine) != (name in theirs):
            raise _difference(peer, name, expected, got)


def _difference(peer: str, name: str, expected: Any, got: Any) -> PartyError:
    return PartyError(
        f"{one_line(name, 80)} must be {shown(expected)} as here, got {shown(got)} from the {peer}"
    )
