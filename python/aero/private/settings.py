"""What two parties agree on before they compute: arithmetic, protocol options, threads.

Example:
    >>> settings = PrivateSettings(private_weights=True, exp_squarings=5)
    >>> settings.stack_fields()["exp_squarings"]
    5
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

__all__ = ["EXP_CLIP", "RING_BITS", "STACK", "PrivateSettings"]

# The simulator's stack that prices what runs here.
STACK = "spu-0.9.5"
# Cheetah computes in Z_2^64; its 32-bit ring cannot hold products of 18 fraction bits.
RING_BITS = 64
# Scores that far below the largest of their row have weight 0: e^-14 is less than 2^-20.
EXP_CLIP = -14.0

# (smallest, largest) of the integers. A product has twice the fraction bits and needs some for the
# integer part; squarings shift the fraction out; OT instances are made per thread.
_RANGES = {
    "fraction_bits": (8, 26),
    "exp_squarings": (1, 17),
    "threads": (1, 64),
}
# Of the fields, those that the simulator knows under the same name.
_STACK_FIELDS = (
    "private_weights", "one_bit_product_error", "exp_squarings", "exp_clip", "broadcast_reciprocal",
    "client_one_hot", "last_token_head", "fold_score_scale", "argmax", "threads",
)  # fmt: skip


@dataclass(frozen=True)
class PrivateSettings:
    """Options of a private run; the defaults are the stack `spu-0.9.5`.

    Attributes:
        fraction_bits: of fixed-point numbers in Z_2^64, 8 to 26.
        private_weights: the server knows its weights and multiplies by them in the clear; else
            they are shared between the parties.
        one_bit_product_error: elementwise products may be off by one in the last bit.
        exp_squarings: t of exp(x) = (1 + x / 2^t)^(2^t), 1 to 17.
        exp_clip: softmax weights below e^-14 become 0, by one comparison per score. Without it the
            scores must stay within 2^(t + 1) of the largest of their row.
        broadcast_reciprocal: one reciprocal per softmax row, else one per element.
        client_one_hot: the client makes the one-hot rows of its tokens itself; else the parties
            compare shared tokens with every index of the vocabulary.
        last_token_head: logits of the last position only.
        fold_score_scale: the factor 1/sqrt(D) is multiplied into the query weights beforehand;
            else the queries are multiplied by it.
        argmax: the parties compute the next token; else the client finds it in the logits.
        threads: of each party.
        timeout_seconds: how long a party waits for a message.

    Raises:
        ValueError: naming the field, what it may be and what it is.
    """

    fraction_bits: int = 18
    private_weights: bool = False
    one_bit_product_error: bool = False
    exp_squarings: int = 8
    exp_clip: bool = True
    broadcast_reciprocal: bool = True
    client_one_hot: bool = False
    last_token_head: bool = False
    fold_score_scale: bool = False
    argmax: bool = True
    threads: int = 1
    timeout_seconds: float = 600.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type == "bool" and not isinstance(value, bool):
                raise _wrong(field.name, "True or False", value)
            if field.type == "int":
                low, high = _RANGES[field.name]
                if (
                    isinstance(value, bool)
                    or not isinstance(value, int)
                    or not low <= value <= high
                ):
                    raise _wrong(field.name, f"an integer from {low} to {high}", value)
        number = isinstance(self.timeout_seconds, int | float)
        if not number or isinstance(self.timeout_seconds, bool) or not self.timeout_seconds > 0:
            raise _wrong("timeout_seconds", "a number > 0", self.timeout_seconds)

    def to_dict(self) -> dict[str, Any]:
        """All fields by name."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> PrivateSettings:
        """Settings from fields by name, others at their defaults.

        Raises:
            ValueError: an unknown name, or a value out of range.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in fields:
            if name not in known:
                raise ValueError(f"PrivateSettings: unknown field {name!r}; {', '.join(known)}")
        return cls(**fields)

    def stack_fields(self) -> dict[str, Any]:
        """What to change in the simulator's stack `STACK`, so that it prices these settings."""
        fields = {name: getattr(self, name) for name in _STACK_FIELDS}
        # Temperatures are weights, hence secret. (Those per head are multiplied into the queries'
        # weights, those per position are a product.)
        return {**fields, "secret_temperature": True}


def _wrong(name: str, expected: str, value: object) -> ValueError:
    return ValueError(f"PrivateSettings: {name} must be {expected}, got {value!r}")
