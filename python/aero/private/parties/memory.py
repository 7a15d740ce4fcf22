"""The memory that a run takes, before it starts: one that does not fit is refused.

Under Cheetah the largest product decides: SPU holds all plaintext polynomials of its larger factor
at once. One of 8,192 coefficients and 3 primes takes 196,608 bytes, and holds few weights where the
other factor has many rows: an embedding of 50,257 rows takes 118 GB at 128 tokens.
"""

from __future__ import annotations

from typing import Any

from aero.network.description import operations_of
from aero.private.parties.worker_pipe import most_memory
from aero.private.prediction import predicted_operations, weight_elements
from aero.private.settings import PrivateSettings

_POLYNOMIAL_BYTES = 8192 * 3 * 8
# Of a process with JAX and SPU, with threads and what both allocate in advance.
_PROCESS_BYTES = 1_200_000_000
# Of SEMI2K and ABY3, for each weight of the largest product: masked factors, triples, results.
_PRODUCT_BYTES = 50
# Files are read as float64 and kept as float32; a share is a word, of ABY3 two.
_READ_BYTES, _SHARE_BYTES = 12, {"cheetah": 8, "semi2k": 8, "aby3": 16}


def party_bytes(description: dict[str, Any], settings: PrivateSettings, rows: int) -> int:
    """What one party takes besides its process, at most.

    Args:
        description: of the network.
        settings: of the run.
        rows: tokens of its longest pass.
    """
    shares = _SHARE_BYTES[settings.protocol]
    weights = weight_elements(description)
    products, channels = _sizes(description)
    context: int = description["context_length"]
    kept = 2 * max(channels, default=0) * context * len(products)
    held = weights * (shares + _READ_BYTES) + kept * shares
    return held + _largest_product(description, settings, rows)


def run_bytes(
    description: dict[str, Any], settings: PrivateSettings, rows: int, *, parties: int
) -> int:
    """What `parties` of a run take on one machine, at most; arguments as of `party_bytes`."""
    return _PROCESS_BYTES + parties * party_bytes(description, settings, rows)


def check_memory(
    description: dict[str, Any],
    settings: PrivateSettings,
    rows: int,
    *,
    parties: int,
    most: int | None = None,
) -> None:
    """Checks that a run fits on this machine.

    Args:
        description: of the network.
        settings: of the run.
        rows: tokens of its longest pass, as a rule the prompt's.
        parties: that are on this machine.
        most: bytes that they may take; default: four fifths of the machine's.

    Raises:
        ValueError: it would take more.
    """
    takes, may = run_bytes(description, settings, rows, parties=parties), most_memory(most)
    if takes > may:
        raise ValueError(
            f"private: a pass over {rows} tokens takes up to {takes / 1e9:.1f} GB of memory here, "
            f"and may take {may / 1e9:.1f}; give a shorter prompt, or private_weights=true or "
            "another protocol"
        )


def _largest_product(description: dict[str, Any], settings: PrivateSettings, rows: int) -> int:
    if settings.protocol != "cheetah":
        return _PRODUCT_BYTES * max(_sizes(description)[0], default=0)
    # A product of two shared factors is two of a plaintext; each party encodes one of them.
    encoded = max(
        one.cost.plaintext_encodings for one in predicted_operations(description, rows, settings)
    )
    return int(encoded) * _POLYNOMIAL_BYTES // (1 if settings.private_weights else 2)


def _sizes(description: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Weights of each product, and channels of each that has some."""
    found: tuple[list[int], list[int]] = ([], [])
    for one in operations_of(description):
        if one.op == "linear":
            found[0].append(one["in"] * one["out"])
            found[1].append(one["in"])
        elif one.op == "embed" and one.inputs == ("tokens",):
            found[0].append(one["rows"] * one["width"])
    return found
