"""The measured cells: operations over a grid of shapes, and whole networks.

A cell is one thing that the parties compute, with the settings under which they do, and what of the
simulator prices it: for an operation the names and sizes of `aero.mpc.operation_cost` that add up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aero import mpc
from aero.mpc.cost import Cost
from aero.private.measuring import calibration
from aero.private.prediction import total_cost
from aero.private.settings import STACK, PrivateSettings

__all__ = ["OPERATIONS", "Cell", "NetworkCell", "grid", "network_grid", "predicted_cost"]

Sizes = tuple[int, ...]
Terms = list[tuple[str, Sizes]]


def _scaled(name: str) -> Callable[[Sizes], Terms]:
    """An operation on the elements of a vector, then the truncation."""
    return lambda sizes: [(name, sizes), ("truncation", sizes)]


def _same(name: str) -> Callable[[Sizes], Terms]:
    return lambda sizes: [(name, sizes)]


# By name what the simulator prices; sizes are elements where nothing else is said.
OPERATIONS: dict[str, Callable[[Sizes], Terms]] = {
    "truncation": _same("truncation"),
    "product": _scaled("product"),
    "product by private weights": _scaled("private_product"),
    "matmul": _same("weight_product"),  # rows, inner, columns
    "comparison": lambda sizes: [("comparison", (*sizes, 64))],
    "relu": _same("relu"),
    "maximum": lambda sizes: [("relu", (sizes[0] * (sizes[1] - 1),))],  # rows, columns
    "exp": _same("exp"),
    "reciprocal": _same("reciprocal"),
    "rsqrt": _same("reciprocal_square_root"),
    "softmax": lambda sizes: [("softmax", (sizes[0] * sizes[1], sizes[1]))],  # heads, tokens
    "layernorm": _same("layernorm"),  # rows, width
    "rmsnorm": _same("rmsnorm"),  # rows, width
    "gelu": _same("gelu"),
    "silu": _same("silu"),
    "embedding": _same("embedding"),  # tokens, vocabulary, width
    "argmax": _same("argmax"),
}


@dataclass(frozen=True)
class Cell:
    """An operation of one size.

    Attributes:
        operation: of `OPERATIONS`.
        sizes: as there.
        settings: fields of `PrivateSettings` that are not at their defaults.
    """

    operation: str
    sizes: Sizes
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Such as "matmul 128x768x768, private_weights"."""
        return ", ".join([f"{self.operation} {_by(self.sizes)}", *_shown(self.settings)])

    @property
    def key(self) -> str:
        """The name as a file's."""
        return self.name.replace(", ", "-").replace(" ", "_").replace("=", "")


@dataclass(frozen=True)
class NetworkCell(calibration.NetworkCell):
    """One forward pass of a network with random weights, under some settings.

    Attributes:
        settings: fields of `PrivateSettings` that are not at their defaults.
    """

    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Such as "SM+LN+G, mini, T=128"."""
        return ", ".join([super().name, *_shown(self.settings)])

    @property
    def key(self) -> str:
        """The name as a file's."""
        plain = self.name.replace(", ", "-").replace(" ", "_").replace("=", "")
        return "network_" + plain.replace(",", "").replace(":", "_")


def predicted_cost(cell: Cell) -> Cost:
    """The simulator's counts for a cell, averaged over many runs."""
    fields = PrivateSettings.from_dict(cell.settings).stack_fields()
    return total_cost(
        mpc.operation_cost(name, *sizes, stack=STACK, **fields)
        for name, sizes in OPERATIONS[cell.operation](cell.sizes)
    )


_PRIVATE = {"private_weights": True}
_NO_CLIP = {"exp_clip": False}
_FIVE = {"exp_squarings": 5}
_ONE_BIT = {"one_bit_product_error": True}
_PER_ELEMENT = {"broadcast_reciprocal": False}
_ONE_HOT = {"client_one_hot": True}


def grid(*, quick: bool = False) -> list[Cell]:
    """The operations.

    Args:
        quick: a few of them, small.
    """
    if quick:
        return [
            Cell("product", (1024,)),
            Cell("product", (16384,)),
            Cell("product by private weights", (8192,), _PRIVATE),
            Cell("matmul", (16, 16, 16)),
            Cell("matmul", (61, 127, 251)),
            Cell("matmul", (128, 128, 64), _PRIVATE),
            Cell("relu", (8192,)),
            Cell("softmax", (1, 32)),
        ]
    squares = {**_NO_CLIP, "exp_squarings": 1}  # exp of one squaring is a truncation and a square
    cells = [
        *(Cell("product", (n,)) for n in (1024, 8192, 16384, 65537, 393216)),
        Cell("product", (65536,), _ONE_BIT),
        Cell("product by private weights", (65537,), _PRIVATE),
        *(Cell("exp", (n,), squares) for n in (8192, 65537)),
        *(Cell("matmul", shape) for shape in _MATMULS),
        *(Cell("matmul", shape, _PRIVATE) for shape in _PRIVATE_MATMULS),
        Cell("embedding", (8, 1024, 128)),
        *(Cell("argmax", (n,)) for n in (50257, 1024)),
        Cell("relu", (65537,)),
        Cell("softmax", (4, 128)),
        Cell("layernorm", (128, 768)),
        Cell("layernorm", (61, 127)),
        Cell("rmsnorm", (128, 768)),
        Cell("gelu", (65536,)),
        Cell("silu", (65536,)),
        Cell("exp", (65536,)),
        # Small ones after large ones: extensions come at any phase then.
        *(Cell(name, (n,)) for name in ("rsqrt", "reciprocal") for n in (1024, 8192)),
        Cell("softmax", (1, 61)),
        Cell("comparison", (65536,)),
        Cell("maximum", (512, 128)),
        *(Cell("truncation", (n,)) for n in (65536, 1000003)),
        Cell("embedding", (8, 1024, 128), _PRIVATE),
        Cell("layernorm", (128, 768), _PRIVATE),
        Cell("embedding", (128, 1024, 128), {**_ONE_HOT, **_PRIVATE}),
        Cell("embedding", (128, 1024, 128), _ONE_HOT),
        Cell("exp", (65536,), _NO_CLIP),
        Cell("exp", (65536,), {**_FIVE, **_NO_CLIP}),
        Cell("softmax", (4, 128), _NO_CLIP),
        Cell("softmax", (4, 128), {**_FIVE, **_ONE_BIT}),
        Cell("softmax", (2, 128), _PER_ELEMENT),
    ]
    # A process, with keys of its own, for each group of settings; the defaults first.
    return sorted(cells, key=lambda cell: _shown(cell.settings))


# Of GPT-2: projections, scores, heads. Of `mini`: LM head, all rows and one. Small ones, whose
# responses are not packed; primes.
_MATMULS = (
    (3, 5, 7), (16, 16, 16), (61, 127, 251), (128, 64, 128), (128, 128, 64), (1, 768, 768),
    (16, 768, 1), (1, 128, 1024), (128, 128, 1024), (128, 768, 768),
)  # fmt: skip
_PRIVATE_MATMULS = (
    (16, 16, 16), (61, 127, 251), (1, 128, 1024), (128, 128, 1024), (128, 768, 768),
)  # fmt: skip

_MINI = {"vocab_size": 1024}
_GPT2_LAYER = {"num_layers": 1, "vocab_size": 256}


def network_grid(*, quick: bool = False) -> list[NetworkCell]:
    """The networks, small ones first: whole ones, and layers as wide as GPT-2's.

    Args:
        quick: a tiny one only.
    """
    tiny = NetworkCell("SM+ScFuFFN", "tiny", {}, 16)
    if quick:
        return [tiny]
    mini = [
        NetworkCell("SM+ScFuFFN", "mini", _MINI, 128),
        NetworkCell("SM+FN+R", "mini", _MINI, 128),
        NetworkCell("SM+LN+G", "mini", _MINI, 128),
        NetworkCell("SM+ScFuFFN", "mini", _MINI, 128, {**_PRIVATE, **_ONE_HOT}),
    ]
    small = [
        NetworkCell("SM+LN+G", "tiny", {}, 16),
        NetworkCell("SM+LN+R", "tiny", {}, 16),
        NetworkCell("SM+LN+R", "mini", _MINI, 32),
    ]
    layers = [
        NetworkCell("SM+ScFuFFN", "gpt2", _GPT2_LAYER, 128, {**_PRIVATE, **_ONE_HOT}),
        NetworkCell("SM+LN+G", "gpt2", _GPT2_LAYER, 128, {**_PRIVATE, **_ONE_HOT}),
    ]
    return [tiny, *small, *mini, *layers]


def _by(sizes: Sizes) -> str:
    return "x".join(map(str, sizes))


def _shown(settings: dict[str, Any]) -> list[str]:
    return [
        name if value is True else f"no {name}" if value is False else f"{name}={value}"
        for name, value in settings.items()
    ]
