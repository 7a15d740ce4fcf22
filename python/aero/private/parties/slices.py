"""The slices of large products: the parties of a session agree on them before it begins.

The client asks for those that its memory needs, and the server answers with its own, which are the
same or more. A third party takes what the two have agreed on, or none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from aero.network.description import Description, operations_of
from aero.private.parties.memory import check_memory, in_slices
from aero.private.parties.passes import Request
from aero.private.party_errors import PartyError
from aero.private.settings import RANGES, PrivateSettings, check_sequences

# A party compiles and computes each slice: it takes no more of one weight because another asks.
_MOST_SLICES = 64


def sliced_request(
    request: Request,
    description: Description,
    settings: PrivateSettings,
    most: int | None,
    *,
    further: bool,
) -> Request:
    """A client's request with the slices that this party computes.

    Args:
        request: of the client, not to be trusted.
        description: of the network.
        settings: of this party.
        most: bytes of memory that this party may take; None: four fifths of the machine's.
        further: whether this party may ask for more slices than the client.

    Raises:
        PartyError: the run does not fit in memory, or in the slices that were asked for, or one
            of so many sequences cannot be.
    """
    sizes: dict[str, int] = {"rows": request.prompt_length, "sequences": request.sequences}
    try:
        check_sequences(request.sequences, settings)
        asked = _with_limit(settings, request.largest_product)
        _check_count(description, asked)
        chosen = in_slices(description, asked, **sizes, parties=1, most=most)
        _check_count(description, chosen)
        check_memory(description, chosen, **sizes, parties=1, most=most)
    except ValueError as error:
        raise PartyError(str(error).removeprefix("private: ")) from error
    limit = chosen.largest_product
    if not further and limit != request.largest_product:
        raise PartyError(
            f"largest_product must be at most {limit} as here, got {request.largest_product}; "
            f"give --set largest_product={limit}"
        )
    return request.sliced(limit)


def accepted_slices(
    limit: int,
    description: Description,
    settings: PrivateSettings,
    sizes: Mapping[str, int],
    most: int | None,
    peer: str,
) -> PrivateSettings:
    """A client's settings with the slices that another party has answered.

    Args:
        limit: weights of the largest product, not to be trusted.
        description: of the network.
        settings: that the client has asked for.
        sizes: rows, the tokens of its prompt, and sequences, how many it has.
        most: bytes of memory that it may take.
        peer: the party that answered.

    Raises:
        PartyError: those are larger than the client's, too many, or do not fit.
    """
    try:
        if not 0 <= limit <= RANGES["largest_product"][1]:
            raise ValueError(f"largest_product must be at least 0, got {limit} from the {peer}")
        found = _with_limit(settings, limit)
        if found.largest_product != limit:
            raise ValueError(
                f"largest_product must be at most {settings.largest_product} as here, got {limit} "
                f"from the {peer}"
            )
        _check_count(description, found)
        check_memory(description, found, **sizes, parties=1, most=most)
    except ValueError as error:
        raise PartyError(str(error).removeprefix("private: ")) from error
    return found


def _with_limit(settings: PrivateSettings, limit: int) -> PrivateSettings:
    """The settings with the smaller limit of two; 0 is none."""
    given = [one for one in (settings.largest_product, limit) if one]
    return dataclasses.replace(settings, largest_product=min(given, default=0))


def _check_count(description: Description, settings: PrivateSettings) -> None:
    """Checks that no weight falls into very many slices."""
    limit = settings.largest_product
    for one in operations_of(description):
        if not limit or one.op not in {"linear", "embed"}:
            continue
        is_table = one.op == "embed"
        length, other = (one["rows"], one["width"]) if is_table else (one["out"], one["in"])
        if -(-length // max(1, limit // other)) > _MOST_SLICES:
            least = other * -(-length // _MOST_SLICES)
            raise ValueError(
                f"largest_product must be 0 or at least {least} between processes, for "
                f"{_MOST_SLICES} slices of a weight, got {limit}"
            )
