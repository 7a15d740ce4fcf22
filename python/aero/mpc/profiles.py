"""Networks and machines: how fast bytes travel and parties compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from aero import _core
from aero.internals.number_checks import plain
from aero.mpc.other_words import name_here
from aero.reading import UnreadableFileError, one_line, printable, read_json


@dataclass(frozen=True)
class NetworkProfile:
    """The link between client and server.

    Attributes:
        uplink_mbps: From client to server, in 1e6 bit/s; 0.001 to 1e6.
        downlink_mbps: From server to client.
        round_trip_seconds: On the wire; 0 to 3600. A round takes half of it.
        software_seconds: Also per round: serialization, scheduling, system calls.
        full_duplex: Whether both directions carry bytes at once, else they share one channel.
        name: Its name in reports.
        source: Where the numbers come from.

    Raises:
        ValueError: Naming the field and its range.

    Example:
        >>> from aero import mpc
        >>> cable = mpc.NetworkProfile(uplink_mbps=50, downlink_mbps=500, round_trip_seconds=0.015)
        >>> round(mpc.simulate("SM+ScFuFFN").latency(network=cable).minutes, 1)
        13.7
    """

    uplink_mbps: float
    downlink_mbps: float
    round_trip_seconds: float
    software_seconds: float = 0.0
    full_duplex: bool = True
    name: str = "custom"
    source: str = "given by the user"

    def __post_init__(self) -> None:
        _core.network_fields("paper-testbed", self.values())

    def values(self) -> list[tuple[str, Any]]:
        """Returns every field but name and source, with its value."""
        return _values(self)

    def to_dict(self) -> dict[str, Any]:
        """Returns its values ready for JSON."""
        return {"name": self.name, "source": self.source} | dict(self.values())


@dataclass(frozen=True)
class ComputeProfile:
    """The computing rates of both parties: seconds of one thread per item.

    0 means free or contained in another item. A party divides the seconds by its threads.

    Attributes:
        threads: Of each party; 1 to 4096.
        ct_pt_product_seconds: Ciphertext x plaintext product in a matrix product; 0 to 60.
        embedding_product_seconds: The same where the embedding multiplies one row at a time.
        plaintext_encoding_seconds: Encoding of a plaintext for such products.
        automorphism_seconds: For packing their responses.
        elementwise_ciphertext_seconds: One ciphertext of an elementwise product.
        ot_seconds: One oblivious transfer, at each party.
        share_byte_seconds: Of protocols without ciphertexts, for each byte that a party sends.
        ring_product_seconds: Of those, one multiplication of a matrix product.
        client_slowdown: The client's seconds over the server's; 0.001 to 1000.
        name: Its name in reports.
        source: Where the numbers come from.

    Raises:
        ValueError: Naming the field and its range.

    Example:
        >>> from aero import mpc
        >>> mpc.compute_profile("paper-testbed", client_slowdown=4).client_slowdown
        4.0
    """

    threads: int
    ct_pt_product_seconds: float
    embedding_product_seconds: float
    plaintext_encoding_seconds: float = 0.0
    automorphism_seconds: float = 0.0
    elementwise_ciphertext_seconds: float = 0.0
    ot_seconds: float = 0.0
    share_byte_seconds: float = 0.0
    ring_product_seconds: float = 0.0
    client_slowdown: float = 1.0
    name: str = "custom"
    source: str = "given by the user"

    def __post_init__(self) -> None:
        _core.compute_fields("paper-testbed", self.values())

    def values(self) -> list[tuple[str, Any]]:
        """Returns every field but name and source, with its value."""
        return _values(self)

    def to_dict(self) -> dict[str, Any]:
        """Returns its values ready for JSON."""
        return {"name": self.name, "source": self.source} | dict(self.values())


def network_names() -> list[str]:
    """The named networks.

    `paper-testbed` is the link that the paper's minutes show (4.8 s per GB of both parties' bytes,
    6.0 ms per round); `lan-1gbps` (0.5 ms), `wan-400mbps` (4 ms) and `wan-100mbps` (80 ms, the
    network that the paper states) are wires alone, without software.

    Example:
        >>> from aero.mpc.profiles import network_names
        >>> network_names()
        ['paper-testbed', 'lan-1gbps', 'wan-400mbps', 'wan-100mbps']
    """
    return _core.network_names()


def compute_names() -> list[str]:
    """The named compute profiles.

    `paper-testbed` is fitted to the paper's minutes, `spu-epyc` measured on SPU 0.9.5 operation by
    operation (seconds of one core), and with `none` computing takes no time.

    Example:
        >>> from aero import mpc
        >>> mpc.compute_profile("spu-epyc").elementwise_ciphertext_seconds
        0.00761
    """
    return _core.compute_names()


def link_profile(rtt_ms: float, mbps: float) -> NetworkProfile:
    """A link of a round trip and a rate, both directions at once."""
    return NetworkProfile(
        uplink_mbps=mbps,
        downlink_mbps=mbps,
        round_trip_seconds=rtt_ms / 1000,
        software_seconds=0.0,
        full_duplex=True,
        name=f"{mbps:g} Mbit/s, {rtt_ms:g} ms",
    )


def link_words(link: NetworkProfile) -> str:
    """A link as `--network` takes it: a named one, with what differs."""
    known = network_profile("lan-1gbps")
    pairs = zip(link.values(), known.values(), strict=True)
    changes = [f"{field}={_word(value)}" for (field, value), (_, own) in pairs if value != own]
    return ",".join([known.name, *changes])


def network_profile(network: str | NetworkProfile, **changes: float | bool) -> NetworkProfile:
    """Returns a network profile by name or description, with some fields changed.

    Args:
        network: A profile (returned as it is), a name of `network_names()` or the path of a .json
            file of `aero private calibrate`, or one with changes:
            "wan-100mbps,uplink_mbps=20,software_seconds=0.006".
        **changes: Fields of a named network.

    Raises:
        ValueError: Names the field and its range.

    Example:
        >>> from aero import mpc
        >>> mpc.network_profile("wan-100mbps,uplink_mbps=20").uplink_mbps
        20.0
    """
    if isinstance(network, NetworkProfile):
        return network
    return _named(
        NetworkProfile, "network", _core.network_fields, _core.network_source, network, changes
    )


def compute_profile(compute: str | ComputeProfile, **changes: float) -> ComputeProfile:
    """Returns a compute profile by name or description ("paper-testbed,threads=8").

    A description is read as by `network_profile`.

    Raises:
        ValueError: Names the field and its range.

    Example:
        >>> from aero import mpc
        >>> mpc.compute_profile("paper-testbed,threads=8").threads
        8
    """
    if isinstance(compute, ComputeProfile):
        return compute
    return _named(
        ComputeProfile, "compute", _core.compute_fields, _core.compute_source, compute, changes
    )


_Profile = TypeVar("_Profile", NetworkProfile, ComputeProfile)


def _named(
    kind: type[_Profile],
    what: str,
    checked: Callable[[str, list[tuple[str, Any]]], dict[str, Any]],
    source: Callable[[str], str],
    text: object,
    changes: dict[str, Any],
) -> _Profile:
    if not isinstance(text, str):
        raise ValueError(
            f"latency: {what} must be a name or a {kind.__name__}, got {type(text).__name__}"
        )
    name, *settings = (piece.strip() for piece in text.split(","))
    written: list[tuple[str, Any]] = [_setting(what, setting) for setting in settings]
    own = {field.name for field in fields(kind)}
    for field in [field for field, _ in written] + [*changes]:
        if field not in own and (answer := name_here(field)) is not None:
            raise ValueError(f"latency: {what} has no field {field!r}; here it is {answer}")
    changed = "; changed by the user" if written or changes else ""
    shown = text if not changes else f"{text}, changed"
    if not name.endswith(".json"):
        values = checked(name, [*written, *changes.items()])
        return kind(**values, name=shown, source=source(name) + changed)
    machine = read_json(name, {"network": dict, "compute": dict, "source": str})
    try:
        told: list[tuple[str, Any]] = kind(**machine[what]).values()
    except (TypeError, ValueError) as error:
        raise UnreadableFileError(
            f"{printable(name)}: expected the {what} of `aero private calibrate`, got "
            f"{one_line(error)}"
        ) from None
    values = checked("paper-testbed", [*told, *written, *changes.items()])
    return kind(**values, name=shown, source=f"{one_line(machine['source'])}{changed}")


def _setting(what: str, text: str) -> tuple[str, float | int | bool]:
    field, equals, value = (part.strip() for part in text.partition("="))
    if not equals:
        raise ValueError(f"latency: {what} must be NAME,FIELD=VALUE,..., got {text!r} as a setting")
    if value in {"true", "True", "false", "False"}:
        return field, value.lower() == "true"
    for number in (int, float):
        try:
            return field, number(value)
        except ValueError:
            continue
    raise ValueError(f"latency: {field} must be a number, true or false, got {value!r}")


def _word(value: Any) -> str:
    return str(value) if isinstance(value, bool) else repr(value).removesuffix(".0")


def _values(profile: NetworkProfile | ComputeProfile) -> list[tuple[str, Any]]:
    # The core would take numbers of other libraries for truth values.
    return [
        (field.name, plain(getattr(profile, field.name)))
        for field in fields(profile)
        if field.name not in {"name", "source"}
    ]
