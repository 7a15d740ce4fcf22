"""The settings that the parties agree on before they compute: arithmetic, protocols, threads.

Example:
    >>> from aero.private import PrivateSettings
    >>> settings = PrivateSettings(private_weights=True, exp_squarings=5)
    >>> settings.stack_fields()["exp_squarings"]
    5
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, NamedTuple

# The simulator's stack that prices Cheetah's runs, and those of all protocols.
STACK = "spu-0.9.5"
STACKS = {"cheetah": STACK, "semi2k": "spu-semi2k", "aby3": "spu-aby3"}
# Those under which no process learns another's secrets: SEMI2K's dealer, SPU's party of rank 0,
# holds all seeds.
BETWEEN_PROCESSES = ("cheetah", "aby3")
# Cheetah computes in Z_2^64; its 32-bit ring cannot hold products of 18 fraction bits.
RING_BITS = 64
# Scores that far below the largest of their row have weight 0: e^-14 is less than 2^-20.
EXP_CLIP = -14.0

# (smallest, largest) of the integers. A product has twice the fraction bits and needs some for the
# integer part; squarings shift the fraction out; OT instances are made per thread.
RANGES = {
    "fraction_bits": (8, 26),
    "exp_squarings": (1, 17),
    "threads": (1, 64),
    "top_k": (1, 64),
    "largest_product": (0, 1 << 50),
    "attention_block": (0, 1 << 24),
}
UNITS = {
    "fraction_bits": "bits",
    "exp_squarings": "squarings",
    "threads": "threads",
    "top_k": "tokens",
    "largest_product": "weights",
    "attention_block": "tokens",
    "timeout_seconds": "seconds",
}
# The client's results of each pass, from least to most.
REVEALS = ("token", "top-k", "last-logits", "all")


class SpuField(NamedTuple):
    """A field of SPU's configuration: the values that are not its default, and its effect."""

    values: tuple[bool | int | str, ...]
    default: bool | int | str
    unit: str
    meaning: str


# Further fields of SPU's configuration that change a Cheetah run of these networks, by name: of its
# runtime, of Cheetah in it, of its compiler.
SPU_FIELDS = {
    "fxp_div_goldschmidt_iters": SpuField(
        (1, 3, 4), 2, "iterations", "how many Goldschmidt iterations 1/x takes"
    ),
    "enable_lower_accuracy_rsqrt": SpuField((True,), False, "", "a cheaper, less exact 1/sqrt"),
    "fxp_exp_mode": SpuField(
        ("EXP_PADE",), "EXP_TAYLOR", "", "exp by a Padé approximation instead of squarings"
    ),
    "experimental_disable_mmul_split": SpuField(
        (True,), False, "", "SPU does not split matrix products above 256 MiB; experimental in SPU"
    ),
    "disable_matmul_pack": SpuField(
        (True,), False, "", "the results of a matrix product are not packed into fewer ciphertexts"
    ),
    "ot_kind": SpuField(
        ("YACL_Softspoken", "EMP_Ferret"), "YACL_Ferret", "", "the oblivious transfer extension"
    ),
    "disable_reduce_truncation_optimization": SpuField(
        (True,), False, "", "the compiler does not merge two public factors of a secret into one"
    ),
    "disable_select_optimization": SpuField(
        (True,), False, "", "selections that share a condition each convert it again"
    ),
    "disallow_mix_types_opts": SpuField(
        (True,), False, "", "integers become fixed-point numbers before every product with one"
    ),
}
# Of the fields, those that the simulator knows under the same name.
_STACK_FIELDS = (
    "private_weights", "one_bit_product_error", "exp_squarings", "exp_clip", "broadcast_reciprocal",
    "client_one_hot", "last_token_head", "fold_score_scale", "largest_product",
    "attention_block", "argmax", "threads",
)  # fmt: skip


@dataclass(frozen=True)
class PrivateSettings:
    """Settings of a private run; the defaults are the stack `spu-0.9.5`.

    Attributes:
        protocol: "cheetah"; "aby3", of three parties; "semi2k", with a dealer, who is one of the
            parties and knows all, and so in one process alone.
        fraction_bits: fraction bits of the fixed-point numbers in Z_2^64, 8 to 26.
        private_weights: the server knows its weights and multiplies by them in the clear; else
            they are shared between the parties.
        one_bit_product_error: elementwise products may be off by one in the last bit.
        exp_squarings: t of exp(x) = (1 + x / 2^t)^(2^t), 1 to 17.
        exp_clip: softmax weights below e^-14 become 0, by one comparison per score. Without it the
            scores must stay within 2^(t + 1) of the largest of their row.
        broadcast_reciprocal: one reciprocal per softmax row, else one per element.
        client_one_hot: the client makes the one-hot rows of its tokens itself; else the parties
            compare shared tokens with every index of the vocabulary.
        last_token_head: the head computes the last position only.
        fold_score_scale: the factor 1/sqrt(D) is multiplied into the query weights beforehand;
            else the queries are multiplied by it.
        largest_product: weights of the largest matrix product; one with more is computed in slices,
            which takes less memory and sends more; 0: in one piece.
        attention_block: causal attention goes by blocks of so many queries, each of which reads
            only the keys that one of its queries sees; 0: all queries at once.
        argmax: the parties compute the next token; else the client finds it in the logits.
        reveal: the client's part of a pass, and nothing else: "token", the next one; "top-k",
            the likeliest tokens with their logits; "last-logits", those of the last position;
            "all", those of every position that the head computes.
        top_k: how many tokens "top-k" reveals, 1 to 64.
        threads: how many each party has.
        timeout_seconds: how long a party waits for a message.
        spu_fields: further fields of SPU's configuration, see `SPU_FIELDS`. The simulator does not
            price them.

    Raises:
        ValueError: names the field, its range and its value.
    """

    protocol: str = "cheetah"
    fraction_bits: int = 18
    private_weights: bool = False
    one_bit_product_error: bool = False
    exp_squarings: int = 8
    exp_clip: bool = True
    broadcast_reciprocal: bool = True
    client_one_hot: bool = False
    last_token_head: bool = False
    fold_score_scale: bool = False
    largest_product: int = 0
    attention_block: int = 0
    argmax: bool = True
    reveal: str = "token"
    top_k: int = 5
    threads: int = 1
    timeout_seconds: float = 600.0
    spu_fields: dict[str, bool | int | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if each.type == "bool" and not isinstance(value, bool):
                raise _wrong(each.name, "True or False", value)
            if each.type == "int":
                low, high = RANGES[each.name]
                if (
                    isinstance(value, bool)
                    or not isinstance(value, int)
                    or not low <= value <= high
                ):
                    raise _wrong(each.name, f"an integer from {low} to {high}", value)
        if self.protocol not in STACKS:
            *others, last = STACKS
            raise _wrong("protocol", f"{', '.join(others)} or {last}", self.protocol)
        for name in ("private_weights", "one_bit_product_error"):
            if self.protocol != "cheetah" and getattr(self, name):
                raise _wrong(name, f"False with {self.protocol}", value=True)
        if self.reveal not in REVEALS:
            raise _wrong("reveal", f"{', '.join(REVEALS[:-1])} or {REVEALS[-1]}", self.reveal)
        if self.reveal == "token" and not self.argmax:
            raise _wrong("argmax", "True with reveal=token", self.argmax)
        number = isinstance(self.timeout_seconds, int | float)
        if not number or isinstance(self.timeout_seconds, bool) or not self.timeout_seconds > 0:
            raise _wrong("timeout_seconds", "a number > 0", self.timeout_seconds)
        for name, value in self.spu_fields.items():
            if name not in SPU_FIELDS:
                raise _wrong("spu_fields", f"of {', '.join(SPU_FIELDS)}", name)
            known = SPU_FIELDS[name].values
            if type(value) is not type(known[0]) or value not in known:
                raise _wrong(name, " or ".join(map(str, known)), value)

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields by name."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> PrivateSettings:
        """Builds settings from fields by name, with defaults for the others.

        Args:
            fields: of this class; those of `SPU_FIELDS` may stand next to them.

        Raises:
            ValueError: an unknown name, or a value out of range.
        """
        known = [each.name for each in dataclasses.fields(cls)]
        for name in fields:
            if name not in known and name not in SPU_FIELDS:
                names = ", ".join([*known, *SPU_FIELDS])
                raise ValueError(f"PrivateSettings: unknown field {name!r}; {names}")
        further = {name: value for name, value in fields.items() if name in SPU_FIELDS}
        own = {name: value for name, value in fields.items() if name not in SPU_FIELDS}
        return cls(**{**own, "spu_fields": {**own.get("spu_fields", {}), **further}})

    @property
    def stack(self) -> str:
        """The simulator's stack that prices these."""
        return STACKS[self.protocol]

    @property
    def cached_weights(self) -> bool:
        """Returns whether only the first pass of a session opens the weights, under masks."""
        return self.protocol == "semi2k"

    def slice_lengths(self, length: int, weights: int) -> list[int]:
        """Returns the lengths of the slices along one side of a product's weight.

        Args:
            length: of that side.
            weights: elements of the whole weight.
        """
        longest = max(1, (self.largest_product or weights) // (weights // length))
        step = -(-length // -(-length // longest))
        return [min(step, length - start) for start in range(0, length, step)]

    @property
    def parties(self) -> int:
        """The number of those that compute."""
        return 3 if self.protocol == "aby3" else 2

    def stack_fields(self) -> dict[str, Any]:
        """Returns the changes to `stack` with which the simulator prices these."""
        fields = {name: getattr(self, name) for name in _STACK_FIELDS}
        return {**fields, "cached_weights": self.cached_weights}


def _wrong(name: str, expected: str, value: object) -> ValueError:
    return ValueError(f"PrivateSettings: {name} must be {expected}, got {value!r}")


def check_sequences(count: int, settings: PrivateSettings) -> None:
    """Checks that so many prompts can go side by side.

    Raises:
        ValueError: what is revealed is of one.
    """
    if count > 1 and settings.reveal == "top-k":
        raise ValueError(
            f"private: reveal must be token, last-logits or all with several prompts, got "
            f"{settings.reveal}"
        )
