"""The memory that a run takes, before it starts: one that does not fit is refused.

Under Cheetah the largest product decides: SPU holds all plaintext polynomials of its larger factor
at once. One of 8,192 coefficients and 3 primes takes 196,608 bytes, and holds few weights where the
other factor has many rows: an embedding of 50,257 rows takes 118 GB at 128 tokens. In slices it
takes as much as the largest of them.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from aero import mpc
from aero.network.description import Description, operations_of
from aero.private.parties.worker_pipe import most_memory
from aero.private.prediction import predicted_operations, weight_elements
from aero.private.settings import PrivateSettings

_POLYNOMIAL_BYTES = 8192 * 3 * 8
# Beside the largest product, the whole GPT-2 took a tenth more under Cheetah, which makes transfers
# in advance, and less than is counted under the others.
_UNCOUNTED = {"cheetah": 1.2, "semi2k": 1.0, "aby3": 1.0}
# Of a process with JAX and SPU, with threads and what both allocate in advance.
_PROCESS_BYTES = 1_200_000_000
# Of SEMI2K and ABY3, for each weight of the largest product: masked factors, triples, results.
_PRODUCT_BYTES = 50
# Files are read as float64 and kept as float32; a share is a word, of ABY3 two.
_READ_BYTES, _SHARE_BYTES = 12, {"cheetah": 8, "semi2k": 8, "aby3": 16}
# Kinds of products between shares.
_HEADS = ("QK", "PV")
# Slices of the largest product that are tried.
_SLICES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


def party_bytes(
    description: Description, settings: PrivateSettings, rows: int, sequences: int = 1
) -> int:
    """What one party takes besides its process, at most.

    Args:
        description: of the network.
        settings: of the run.
        rows: tokens of its longest pass, of each sequence.
        sequences: side by side.
    """
    shares = _SHARE_BYTES[settings.protocol]
    weights = weight_elements(description)
    channels = [one["in"] for one in operations_of(description) if one.op == "linear"]
    context: int = description["context_length"]
    kept = 2 * max(channels, default=0) * context * len(channels) * sequences
    held = weights * (shares + _READ_BYTES) + kept * shares
    held = int(_UNCOUNTED[settings.protocol] * held)
    return held + _largest_product(description, settings, rows, sequences)


def run_bytes(
    description: Description,
    settings: PrivateSettings,
    rows: int,
    *,
    parties: int,
    sequences: int = 1,
) -> int:
    """What `parties` of a run take on one machine, at most; arguments as of `party_bytes`."""
    held = parties * party_bytes(description, settings, rows, sequences)
    if settings.private_weights:  # one of them encodes what the server knows
        held -= (parties - 1) * _largest_product(description, settings, rows, sequences)
    return _PROCESS_BYTES + held


def check_memory(
    description: Description,
    settings: PrivateSettings,
    rows: int,
    *,
    parties: int,
    most: int | None = None,
    sequences: int = 1,
) -> None:
    """Checks that a run fits on this machine.

    Args:
        description: of the network.
        settings: of the run.
        rows: tokens of its longest pass, as a rule the prompt's.
        parties: that are on this machine.
        most: bytes that they may take; default: four fifths of the machine's.
        sequences: side by side.

    Raises:
        ValueError: it would take more.
    """
    takes = run_bytes(description, settings, rows, parties=parties, sequences=sequences)
    may = most_memory(most)
    if takes > may:
        several = f" of each of {sequences} prompts" * (sequences > 1)
        fewer = "fewer prompts, " * (sequences > 1)
        raise ValueError(
            f"private: a pass over {rows} tokens{several} takes up to {takes / 1e9:.1f} GB of "
            f"memory here, and may take {may / 1e9:.1f}; give {fewer}a shorter prompt, a smaller "
            "largest_product, which sends more, or another protocol"
        )


def in_slices(
    description: Description,
    settings: PrivateSettings,
    rows: int,
    *,
    parties: int,
    most: int | None = None,
    sequences: int = 1,
) -> PrivateSettings:
    """The settings with large products in as few further slices as memory needs.

    Arguments are `check_memory`'s. Where no number of slices fits, the settings are as they were.
    """
    products = _products(description, settings, rows, sequences)
    if not products:
        return settings
    largest = max(products, key=lambda one: one.inner * one.columns)
    # Tables are cut along the vocabulary, as the head is, which is the longer side of both.
    other, length = sorted((largest.inner, largest.columns))
    for count in _SLICES:
        limit = -(-length // count) * other
        if count == 1:
            tried = settings
        elif 0 < settings.largest_product <= limit:
            continue
        else:
            tried = dataclasses.replace(settings, largest_product=limit)
        takes = run_bytes(description, tried, rows, parties=parties, sequences=sequences)
        if takes <= most_memory(most):
            return tried
    return settings


def _largest_product(
    description: Description, settings: PrivateSettings, rows: int, sequences: int
) -> int:
    products = _products(description, settings, rows, sequences)
    if settings.protocol != "cheetah":
        return _PRODUCT_BYTES * max((one.inner * one.columns for one in products), default=0)
    fields = {**settings.stack_fields(), "largest_product": 0}
    sizes = {(one.rows, one.inner, one.columns) for one in products}
    costs = [
        mpc.operation_cost("weight_product", *size, stack=settings.stack, **fields)
        for size in sizes
    ]
    operations = predicted_operations(description, rows, settings, sequences=sequences)
    costs += [one.cost for one in operations if one.kind in _HEADS]
    encoded = max(cost.plaintext_encodings for cost in costs)
    # A product of two shared factors is two of a plaintext; each party encodes one of them.
    return int(encoded) * _POLYNOMIAL_BYTES // (1 if settings.private_weights else 2)


class _Product(NamedTuple):
    """A product with a weight, or of the largest of its slices."""

    rows: int
    inner: int
    columns: int


def _products(
    description: Description, settings: PrivateSettings, rows: int, sequences: int
) -> list[_Product]:
    found = []
    every = rows * sequences
    for one in operations_of(description):
        if one.op == "linear":
            of_head = one.layer is None and settings.last_token_head
            columns = settings.slice_lengths(one["out"], one["in"] * one["out"])[0]
            found.append(_Product(sequences if of_head else every, one["in"], columns))
        elif one.op == "embed" and one.inputs == ("tokens",):
            inner = one["rows"]
            if settings.client_one_hot:
                inner = settings.slice_lengths(inner, inner * one["width"])[0]
            found.append(_Product(every if settings.client_one_hot else 1, inner, one["width"]))
    return found
