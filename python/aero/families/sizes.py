"""What most configurations have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aero.families.decoders import Decoder, Decoding
from aero.families.values import Values
from aero.families.writer import Operation


@dataclass(frozen=True)
class Described:
    """The network of a configuration.

    Attributes:
        family: `model_type`.
        operations: as a description lists them.
        positions: how many positions the model has.
        vocab_size: V.
        unpriced: parts that no operation stands for, each in one line.
        fixed: every input has that many positions, whatever the context.
    """

    family: str
    operations: list[Operation]
    positions: int
    vocab_size: int
    unpriced: tuple[str, ...] = ()
    fixed: bool = False


def sizes_of(
    values: Values, *, norm: str, width: int, heads: int, hidden: int, function: str,
    head_dim: int | None = None, key_heads: int | None = None, layers: int | None = None,
    **parts: Any,
) -> Decoder:  # fmt: skip
    """A decoder with what its family leaves open as most have it."""
    if head_dim is None:
        if width % heads:
            raise values.wrong("hidden_size", f"a multiple of {heads} heads", width)
        head_dim = width // heads
    number = layers or values.size("num_hidden_layers")
    names = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")
    given = {
        "vocab_size": values.size("vocab_size"),
        "windows": (0,) * number,
        "epsilon": values.number(*names, default=1e-5),
        "scale": head_dim**-0.5,
    }
    return Decoder(
        width=width, heads=heads, key_heads=key_heads or heads, head_dim=head_dim, hidden=hidden,
        function=function, norm=norm, **{**given, **parts},
    )  # fmt: skip


def usual(values: Values, **parts: Any) -> Decoder:
    """A decoder whose configuration has the names that most have, with rotary positions."""
    width, heads = values.size("hidden_size"), values.size("num_attention_heads")
    head_dim = parts.pop("head_dim", None) or values.size("head_dim", default=width // heads)
    channels, base = values.rotary(head_dim, parts.pop("rotary_share", 1.0))
    given = {
        "hidden": values.size("intermediate_size"),
        "function": values.function("hidden_act", "hidden_activation", default="silu"),
        "key_heads": values.size("num_key_value_heads", default=heads),
        "rotary": channels,
        "rotary_base": base,
    }
    return sizes_of(values, width=width, heads=heads, head_dim=head_dim, **{**given, **parts})


def network_of(
    values: Values,
    sizes: Decoder,
    *unpriced: str,
    positions: int = 0,
    decoding: Decoding | None = None,
) -> Described:
    """The network of a decoder, and what no operation of it stands for; `decoding` writes it."""
    return Described(
        values.family,
        (decoding or Decoding(sizes)).written(),
        positions or values.size("max_position_embeddings"),
        sizes.vocab_size,
        unpriced,
    )
