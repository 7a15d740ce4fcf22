"""The cost of one operation on secret values."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from typing import Literal

FieldValue = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a piece of work; sums over operations, layers and parts are exact.

    Attributes:
        client_bytes: Sent by the client, the owner of the input (SPU's rank 0).
        server_bytes: Sent by the server, the owner of the weights (rank 1).
        rounds: One-way messages that must be waited for; a round trip is two.
        elementwise_ciphertexts: Homomorphic evaluations in elementwise products. Cached Beaver
            triples count by their share of a ciphertext.
        ct_pt_products: Ciphertext x plaintext products in matrix products.
        plaintext_encodings: Plaintexts encoded for them.
        automorphisms: Spent on packing their responses.
        ots: Oblivious transfers.

    Example:
        >>> from aero import mpc
        >>> mpc.operation_cost("relu", 1000).rounds
        23
    """

    client_bytes: float
    server_bytes: float
    rounds: int
    elementwise_ciphertexts: float
    ct_pt_products: int
    plaintext_encodings: int
    automorphisms: int
    ots: int

    @property
    def comm_bytes(self) -> float:
        """Bytes sent by both parties; each byte counts once."""
        return self.client_bytes + self.server_bytes

    def counts(self) -> tuple[float, float, int, float, int, int, int, int]:
        """All counts in the order of the attributes."""
        return astuple(self)

    def to_dict(self) -> dict[str, float | int]:
        """All counts by name, `comm_bytes` first."""
        return {"comm_bytes": self.comm_bytes} | {name: getattr(self, name) for name in _COUNTS}


_COUNTS = tuple(field.name for field in fields(Cost))


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation on secret values.

    Attributes:
        name: Its result, such as "queries, keys, values".
        layer: Layer from 0, or None for set-up, embedding, final norm, head and argmax.
        kind: The part of the cost report it belongs to, a key of `CostReport.by_kind`.
        shape: Sizes as text: "128x768x2304"; "12 x 128x64x128" for twelve heads.
        inputs: Indices of the operations that must be finished first.
        cost: Its cost; bytes are whole.
        evaluator: Who evaluates its ciphertexts: "client", "server", or "both", half each.
        token_by_token: Whether its matrix products take one row after the other.
    """

    name: str
    layer: int | None
    kind: str
    shape: str
    inputs: tuple[int, ...]
    cost: Cost
    evaluator: Literal["both", "client", "server"] = "both"
    token_by_token: bool = False
