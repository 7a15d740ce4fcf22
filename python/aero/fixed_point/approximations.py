"""The differences of a protocol stack from exact arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aero._core import Arithmetic
from aero.mpc.described_stacks import StackDescription, stack_description
from aero.mpc.simulation import plain_value

_FieldValue = bool | int | float | str

# Field of a stack (csrc/mpc/stacks.h) -> field of Approximations.
_STACK_FIELDS = {
    "exp_squarings": "exp_squarings",
    "exp_clip": "exp_clip",
    "clip_bits": "clip_bits",
    "exp_ring_bits": "exp_ring_bits",
    "gelu": "gelu",
    "one_bit_product_error": "one_bit_product_error",
    "extra_score_truncation": "score_truncation",
    "broadcast_reciprocal": "broadcast_reciprocal",
    "secret_temperature": "secret_temperature",
}
_OWN_FIELDS = ("fraction_bits", "truncation", "seed")


@dataclass(frozen=True)
class Approximations:
    """The arithmetic of a stack: the fields that change results, not those that change costs only.

    Attributes:
        fraction_bits: f, from 12 to 30.
        truncation: "floor", "nearest" or "shares", see `Arithmetic`.
        seed: of the shares' random error.
        one_bit_product_error: products may be off by one before they are truncated.
        exp_squarings: t of ``(1 + x / 2**t)**(2**t)``.
        exp_clip: exp is 0 below -14.
        clip_bits: width of that comparison.
        exp_ring_bits: ring of exp's squarings; 32 leaves 12 fraction bits.
        gelu: "tanh", "segment" or "piecewise".
        score_truncation: one more truncation of every attention score.
        broadcast_reciprocal: one reciprocal per softmax row, else a division per element.
        secret_temperature: ``1 / t`` is a separate product, else part of the queries' constant.

    Example:
        >>> from aero.fixed_point import Approximations
        >>> Approximations.of_stack("spu-2024", exp_squarings=5).exp_squarings
        5
    """

    fraction_bits: int = 18
    truncation: Literal["floor", "nearest", "shares"] = "floor"
    seed: int = 0
    one_bit_product_error: bool = False
    exp_squarings: int = 8
    exp_clip: bool = True
    clip_bits: int = 64
    exp_ring_bits: int = 64
    gelu: Literal["tanh", "segment", "piecewise"] = "tanh"
    score_truncation: bool = True
    broadcast_reciprocal: bool = True
    secret_temperature: bool = False

    @classmethod
    def of_stack(
        cls, stack: str | Path | StackDescription, /, **fields: _FieldValue
    ) -> Approximations:
        """The arithmetic of a stack of `aero.mpc`.

        Args:
            stack: such as "spu-2024", "aero-approximate" or the path of a description. Prices that
                a description quotes say nothing on arithmetic: there it is the base's.
            **fields: fields of the stack (`exp_squarings=5`), and `fraction_bits`, `truncation` and
                `seed`. Fields that only change costs change nothing.

        Raises:
            ValueError: an unknown stack or field, a value out of its range, the exact GELU, or
                `static_max`: what the static bound of the scores would be is up to the network's
                owner.
        """
        own = {name: fields.pop(name) for name in _OWN_FIELDS if name in fields}
        try:
            plain = {name: plain_value(name, value) for name, value in fields.items()}
            values = stack_description(stack).with_fields(plain.items()).fields
        except ValueError as error:
            raise ValueError(f"fixed point: {str(error).removeprefix('simulate: ')}") from None
        if values["static_max"]:
            raise ValueError(
                "fixed point: static_max needs a bound of the scores and is not simulated"
            )
        if values["gelu"] == "erf":
            raise ValueError(
                'fixed point: gelu="erf" is priced only; "tanh", "segment" or "piecewise"'
            )
        for name in ("fraction_bits", "seed"):
            if type(own.get(name, 0)) is not int:
                raise ValueError(f"fixed point: {name} must be an integer, got {own[name]!r}")
        if own.get("seed", 0) not in range(2**64):
            raise ValueError(f"fixed point: seed must be from 0 to 2^64 - 1, got {own['seed']}")
        named = {ours: values[theirs] for theirs, ours in _STACK_FIELDS.items()}
        found = cls(**named, **own)  # type: ignore[arg-type]
        found.arithmetic()  # checks the other fields
        return found

    def arithmetic(self) -> Arithmetic:
        """A fresh `Arithmetic`, its generator at the seed."""
        return Arithmetic(
            fraction_bits=self.fraction_bits,
            truncation=str(self.truncation),
            one_bit_product_error=self.one_bit_product_error,
            seed=self.seed,
        )
