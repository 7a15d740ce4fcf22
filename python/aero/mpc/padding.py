"""Longer contexts whose pass sends fewer bytes or takes less time, as its blocks are full."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from aero import _core
from aero.mpc.cost import Stack
from aero.mpc.priced_network import PricedNetwork
from aero.mpc.profiles import ComputeProfile, NetworkProfile

# Blocks of products end anywhere, such as at 77 or 289: every length up to 64 tokens more, fewer
# where long contexts take long to price and a token is a small share of them.
_NEAR, _LEAST_NEAR, _NEAR_TOKENS = 64, 8, 24 * 1024
# Beyond them most end at multiples of this power of two, of larger ones for T beyond 1,024.
_STEP = 32
# Smaller savings are not worth a word.
_LEAST = 5e-4


@dataclass(frozen=True)
class Longer:
    """A longer context that is cheaper.

    Attributes:
        keys: T.
        bytes_saved: Share of the bytes; negative where it sends more.
        seconds_saved: Share of the seconds; 0 where no link was given.
        masked: Earlier tokens see the added ones, unless a mask hides them.
    """

    keys: int
    bytes_saved: float
    seconds_saved: float
    masked: bool = False

    @property
    def text(self) -> str:
        """What it saves, in words."""
        more = f", {-100 * self.bytes_saved:.1f} % more bytes" * (self.bytes_saved <= -_LEAST)
        fewer = {
            "bytes, as its ciphertexts are full": self.bytes_saved,
            "seconds": self.seconds_saved,
        }
        said = [f"{100 * share:.1f} % fewer {of}" for of, share in fewer.items() if share > _LEAST]
        mask = "; a mask must hide the added tokens" * self.masked
        return f"pad T to {self.keys}: {', and '.join(said)}{more}{mask}"


def longer_lengths(length: int, positions: int | None = None) -> list[int]:
    """The lengths that `cheaper_lengths` looks at: its reach.

    They are T + 1 to T + 64 (for T beyond 384 fewer, T + 24 at 1,024, never fewer than eight), then
    multiples of 32 (from 1,024 on of T / 32 to T / 16) and the lengths after these; none above
    5/4 T rounded up, nor above the positions of the model. On spu-2024, spu-0.9.5, openbumblebee,
    spu-semi2k and aero-optimized, with tiny, mini, gpt2, gpt2-medium and pythia-70m up to
    T = 1,024, no length in 5/4 T saves 1 % more of the bytes, or of the seconds on lan-1gbps or
    wan-100mbps, than the best of them.
    """
    most = min(-(-5 * length // 4), positions or 5 * length)
    near = length + min(_NEAR, max(_LEAST_NEAR, _NEAR_TOKENS // length))
    step = max(_STEP, 1 << max(0, length.bit_length() - 5))
    far = (keys + one for keys in range(near // step * step, most + 1, step) for one in (0, 1))
    found = {*range(length + 1, near + 1), *far}
    return sorted(keys for keys in found if length < keys <= most)


def cheaper_lengths(
    network: PricedNetwork,
    priced: Stack,
    link: NetworkProfile | None = None,
    compute: ComputeProfile | None = None,
) -> list[Longer]:
    """The longer contexts that send fewest bytes and take least time; one where they are the same.

    It misses no length of its reach, `longer_lengths`. Each costs a fraction of a millisecond, as
    layers of one kind are priced once.

    Args:
        network: At its T.
        priced: The stack with its fields.
        link: Also compares seconds on it.
        compute: The machines of that link.

    Returns:
        Nothing where none is cheaper.
    """
    own = network.sizes["context_length"]
    price = _pricing(network, priced, link, compute)
    try:
        sent, taken = price(own)
        found = [
            Longer(keys, _share(sent, more), _share(taken, longer), not network.causal)
            for keys in longer_lengths(own, network.positions)
            for more, longer in [price(keys)]
        ]
    except ValueError:  # longer than what is priced
        return []
    best = [
        max(found, key=measure, default=None)
        for measure in (lambda one: one.bytes_saved, lambda one: one.seconds_saved)
    ]
    saving = (
        one
        for one, share in zip(best, ("bytes_saved", "seconds_saved"), strict=True)
        if one is not None and getattr(one, share) > _LEAST
    )
    return list(dict.fromkeys(saving))


def _share(own: float, other: float) -> float:
    return 1 - other / own if own else 0.0


def _pricing(
    network: PricedNetwork,
    priced: Stack,
    link: NetworkProfile | None,
    compute: ComputeProfile | None,
) -> Callable[[int], tuple[float, float]]:
    """Bytes and seconds over so many tokens: one layer of each kind, times how many there are."""
    thin: list[dict[str, Any]] = []
    counts: list[int] = []
    for one in reversed(network.core.operations):
        if "repeat" in one:
            # The last layer of all may be a kind of its own.
            is_last = priced.fields["last_layer_one_row"] and not counts and one["repeat"] > 1
            counts = [one["repeat"] - 1, 1] if is_last else [one["repeat"], *counts]
            one = one | {"repeat": 2 if is_last else 1}
        thin.insert(0, one)

    def price(keys: int) -> tuple[float, float]:
        found = _core.simulate(_core.Network(thin, keys), priced)["operations"]
        times = [1 if one.layer is None else counts[one.layer] for one in found]
        sent = sum(count * one.cost.comm_bytes for count, one in zip(times, found, strict=True))
        if link is None or compute is None:
            return sent, 0.0
        took = _nanoseconds(found, link, compute)
        return sent, sum(count * one for count, one in zip(times, took, strict=True)) / 1e9

    return price


def _nanoseconds(operations: Any, link: NetworkProfile, compute: ComputeProfile) -> Iterator[int]:
    for one in _core.operation_times(operations, link.values(), compute.values()):
        yield one.compute_alone + one.transfer_alone(link.full_duplex) + one.rounds
