"""Longer contexts whose pass sends fewer bytes, as its ciphertexts are full."""

from __future__ import annotations

from collections.abc import Callable

from aero.mpc.cost_report import CostReport

# Lengths whose ciphertexts are full are powers of two, or multiples of one.
_PADS = (32, 64, 128, 256, 512, 1024)


def padded_lengths(length: int) -> list[int]:
    """Lengths a little above whose ciphertexts may be fuller."""
    rounded = {-(-length // pad) * pad for pad in _PADS} - {length}
    return sorted(keys for keys in rounded if keys < 1.125 * length)


def cheaper_length(
    report: CostReport, price: Callable[[int], CostReport]
) -> tuple[int, float] | None:
    """The longer context whose pass sends fewest bytes, and the share that it saves.

    Args:
        report: Of the pass as it is.
        price: Of the same pass over so many tokens.

    Returns:
        None where none is cheaper, or the network has one length.
    """
    try:
        found = [
            (price(keys).comm_bytes, keys)
            for keys in padded_lengths(report.sizes["context_length"])
        ]
    except ValueError:  # a model of pictures, whose length is its own
        return None
    sent, keys = min(found, default=(report.comm_bytes, 0))
    return (keys, 1 - sent / report.comm_bytes) if sent < report.comm_bytes else None
