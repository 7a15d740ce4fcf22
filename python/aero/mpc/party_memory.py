"""The memory that a party of a private run takes, at most, and the slices in which it takes less.

Under Cheetah the largest product decides: SPU holds all plaintext polynomials of its larger factor
at once. One of 8,192 coefficients and 3 primes takes 196,608 bytes, and holds few weights where the
other factor has many rows: an embedding of 50,257 rows takes 118 GB at 128 tokens. In slices it
takes as much as the largest of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from aero.architecture import ArchitectureSpec
from aero.mpc.cost import Cost, FieldValue
from aero.mpc.cost_report import CostReport
from aero.mpc.described_stacks import StackDescription, stack_description
from aero.mpc.given_networks import is_described, is_exported
from aero.mpc.own_networks import own_network
from aero.mpc.priced_network import PRIVATE_STACKS, PricedNetwork
from aero.mpc.simulation import described_spec, operation_cost

Operations = Sequence[Mapping[str, Any]]

_CHEETAH = "spu-0.9.5"
_POLYNOMIAL_BYTES = 8192 * 3 * 8
# Beside the largest product, the whole GPT-2 took a tenth more under Cheetah, which makes transfers
# in advance, and less than is counted under the others.
_UNCOUNTED = {_CHEETAH: 1.2}
# Of a process with JAX and SPU, with threads and what both allocate in advance.
_PROCESS_BYTES = 1_200_000_000
# Of SEMI2K and ABY3, for each weight of the largest product: masked factors, triples, results.
_PRODUCT_BYTES = 50
# Files are read as float64 and kept as float32.
_READ_BYTES = 12
#: Kinds of products between shares.
HEADS = ("QK", "PV")
# Slices of the largest product that are tried.
_SLICES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


class _Product(NamedTuple):
    """A product with a weight, or of the largest of its slices."""

    rows: int
    inner: int
    columns: int


@dataclass(frozen=True)
class PartyMemory:
    """What a party of a run takes.

    Attributes:
        operations: Of the network, as its description has them.
        weights: Numbers of all weights, shared ones as often as they are read.
        context: Tokens whose keys and values it keeps, of each sequence.
        rows: Tokens of the longest pass, of each sequence.
        stack: One that `aero private` runs.
        fields: Of it, changed ones.
        heads: What products between shares cost; read under Cheetah alone.
        sequences: Side by side.
    """

    operations: Operations
    weights: int
    context: int
    rows: int
    stack: str | StackDescription
    fields: Mapping[str, FieldValue]
    heads: Iterable[Cost] = ()
    sequences: int = 1

    @property
    def largest_product(self) -> int:
        """Weights of the largest matrix product in one piece; 0: of any number."""
        return int(self.fields.get("largest_product", 0))

    @cached_property
    def party_bytes(self) -> int:
        """What one party takes besides its process."""
        shares = share_width(self.stack)
        channels = [one["in"] for _, one in _flat(self.operations) if one["op"] == "linear"]
        kept = 2 * max(channels, default=0) * self.context * len(channels) * self.sequences
        held = self.weights * (shares + _READ_BYTES) + kept * shares
        base = stack_description(self.stack).base
        return int(_UNCOUNTED.get(base, 1.0) * held) + self._product_bytes

    def run_bytes(self, parties: int = 1) -> int:
        """What `parties` of a run take on one machine."""
        held = parties * self.party_bytes
        if self.fields.get("private_weights"):  # one of them encodes what the server knows
            held -= (parties - 1) * self._product_bytes
        return _PROCESS_BYTES + held

    def in_slices(self, most: float, parties: int = 1) -> PartyMemory | None:
        """The same with large products in as few further slices as fit; None where none do.

        Args:
            most: Bytes that they may take.
            parties: That are on this machine.
        """
        # Tables are cut along the vocabulary, as the head is, which is the longer side of both.
        sides = [sorted((one.inner, one.columns)) for one in self._products]
        other, length = max(sides, key=lambda pair: pair[0] * pair[1], default=(1, 1))
        for count in _SLICES:
            limit = -(-length // count) * other
            if count > 1 and 0 < self.largest_product <= limit:
                continue
            cut = replace(self, fields={**self.fields, "largest_product": limit})
            tried = cut if count > 1 else self
            if tried.run_bytes(parties) <= most:
                return tried
        return None

    @cached_property
    def _product_bytes(self) -> int:
        """What the largest product takes."""
        if stack_description(self.stack).base != _CHEETAH:
            sizes = (one.inner * one.columns for one in self._products)
            return _PRODUCT_BYTES * max(sizes, default=0)
        fields: dict[str, FieldValue] = {**self.fields, "largest_product": 0}
        costs = [
            operation_cost("weight_product", *size, stack=self.stack, **fields)
            for size in {*self._products}
        ]
        encoded = max(one.plaintext_encodings for one in (*costs, *self.heads))
        # A product of two shared factors is two of a plaintext; each party encodes one of them.
        halves = 1 if self.fields.get("private_weights") else 2
        return int(encoded) * _POLYNOMIAL_BYTES // halves

    @cached_property
    def _products(self) -> list[_Product]:
        found = []
        every, by_client = self.rows * self.sequences, self.fields.get("client_one_hot")
        for in_layer, one in _flat(self.operations):
            if one["op"] == "linear":
                of_head = not in_layer and self.fields.get("last_token_head")
                columns = self._slice(one["out"], one["in"])
                found.append(_Product(self.sequences if of_head else every, one["in"], columns))
            elif one["op"] == "embed" and list(one["inputs"]) == ["tokens"]:
                inner = self._slice(one["rows"], one["width"]) if by_client else one["rows"]
                found.append(_Product(every if by_client else 1, inner, one["width"]))
        return found

    def _slice(self, length: int, other: int) -> int:
        """The longest slice of a product; `PrivateSettings.slice_lengths` has them all."""
        longest = max(1, (self.largest_product or length * other) // other)
        return -(-length // -(-length // longest))


def memory_of(
    network: PricedNetwork, report: CostReport, context: int, kept: Operations = ()
) -> PartyMemory | None:
    """What a run of a priced pass takes; None where no run of ours tells it.

    Those are stacks that `aero private` does not run, and networks whose parts read other numbers
    of rows, as of pictures and sounds.

    Args:
        network: That is priced.
        report: Its price.
        context: Tokens whose keys and values are kept.
        kept: Operations whose weights a party keeps; empty: those of the network.
    """
    operations = network.core.operations
    if report.description.base not in PRIVATE_STACKS or any(
        one["op"] == "rearrange" for _, one in _flat(operations)
    ):
        return None
    length = report.sizes["context_length"]
    return PartyMemory(
        operations, _numbers(kept or operations), context, length, report.description,
        report.changed_fields(), [one.cost for one in report.operations if one.kind in HEADS],
    )  # fmt: skip


def kept_tokens(given: Any, network: PricedNetwork) -> int:
    """How many tokens a run keeps keys and values of; a network, and what it was given as.

    `aero private` has room for all positions; of what it does not run it is one pass.
    """
    length = network.sizes["context_length"]
    is_own = network.spec is not None or own_network(network) is not None
    runs = is_own or is_described(given) or is_exported(given)
    return (network.positions or length) if runs else length


def share_width(stack: str | StackDescription) -> int:
    """Bytes of a party's share: a word, of ABY3 two. SecureNN's third party has none."""
    return 16 if stack_description(stack).base == "spu-aby3" else 8


def share_bytes(given: ArchitectureSpec | Mapping[str, Any], stack: str | StackDescription) -> int:
    """A party's shares of the weights, the least that it keeps; a table that is shared once."""
    network = described_spec(given) if isinstance(given, ArchitectureSpec) else given
    return share_width(stack) * sum(
        _matrix(one) for _, one in _flat(network["operations"]) if not one.get("transposed")
    )


def _flat(operations: Operations) -> Iterator[tuple[bool, Mapping[str, Any]]]:
    """Every operation of every layer, with whether it is in one."""
    for entry in operations:
        for _ in range(entry.get("repeat", 1)):
            yield from (
                ((True, one) for one in entry["operations"])
                if "repeat" in entry
                else ((False, entry),)
            )


def _matrix(one: Mapping[str, Any]) -> int:
    if one["op"] == "linear":
        return int(one["in"]) * int(one["out"])
    return int(one["rows"]) * int(one["width"]) if one["op"] == "embed" else 0


def _numbers(operations: Operations) -> int:
    """Numbers of all weights: matrices, and vectors as wide as what they are added to."""
    found = 0
    for _, one in _flat(operations):
        vectors = [
            role for role in one.get("weights", ()) if not (role == "weight" and _matrix(one))
        ]
        found += _matrix(one) + len(vectors) * int(one.get("out", one.get("width", 1)))
    return found
