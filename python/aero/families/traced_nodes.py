"""Nodes of an exported program: their names, shapes and places in the source."""

from __future__ import annotations

import re
from math import prod
from pathlib import PurePath
from typing import Any, NamedTuple

# Linear with public numbers, or a move: each party computes it on its own shares.
FREE = frozenset({
    "_to_copy", "_unsafe_view", "_assert_tensor_metadata", "add", "adaptive_avg_pool1d",
    "adaptive_avg_pool2d", "alias", "avg_pool1d", "avg_pool2d", "broadcast_to", "cat", "chunk",
    "clone", "constant_pad_nd", "contiguous", "cumsum", "detach", "detach_", "diff", "dropout",
    "dropout_", "expand", "expand_as", "feature_dropout", "flatten", "flip", "gather", "getitem",
    "index", "index_select", "lift_fresh_copy", "masked_fill", "mean", "movedim",
    "narrow", "neg", "new_zeros", "pad", "permute", "repeat", "repeat_interleave", "reshape",
    "roll", "rsub", "select", "slice", "split", "split_with_sizes", "squeeze", "stack", "sub",
    "sum", "t", "to", "transpose", "tril", "triu", "type_as", "unbind", "unflatten", "unfold",
    "unsqueeze", "view", "where", "zeros_like",
})  # fmt: skip
# Of these, the argument that says which numbers are taken.
CHOOSING = {"where": 0, "masked_fill": 1, "index": 1, "index_select": 2, "gather": 2}
_FRAME = re.compile(
    r'File "(?P<file>[^"]+)", line (?P<line>\d+), in [^\n]*(?:\n    (?P<code>[^\n]*))?'
)
_LONGEST = 48
_OPEN = "0123456789"  # the axes of an ellipsis, counted from the last


class Contraction(NamedTuple):
    """A product of `heads` pairs of matrices; `sums` over a common axis, if only of one number."""

    heads: int
    rows: int
    inner: int
    columns: int
    sums: bool = True

    def turned(self) -> Contraction:
        """The same with its factors the other way round."""
        return self._replace(rows=self.columns, columns=self.rows)


def contraction_of(equation: str, shapes: list[list[int]]) -> Contraction | None:
    """What an einsum of two operands multiplies; None of others, and where a letter repeats."""
    given, arrow, result = equation.replace(" ", "").partition("->")
    terms = given.split(",")
    if len(terms) != 2 or len(shapes) != 2:
        return None
    sizes: dict[str, int] = {}
    axes: list[set[str]] = []
    for term, shape in zip(terms, shapes, strict=True):
        hidden = len(shape) - len(term.replace("...", ""))
        letters = term.replace("...", _OPEN[len(_OPEN) - hidden :])
        if len({*letters}) != len(letters):
            return None
        axes.append({*letters})
        for letter, size in zip(letters, shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    left, right = axes
    kept = {*_OPEN} | ({*result} if arrow else left ^ right)

    def count(letters: set[str]) -> int:
        return prod(sizes[letter] for letter in letters)

    both, summed = left & right & kept, (left & right) - kept
    return Contraction(
        count(both), count((left - right) & kept), count(summed), count((right - left) & kept),
        bool(summed),
    )  # fmt: skip


def word_of(node: Any) -> str:
    """What a node calls: "linear" of `aten.linear.default`, "add" of `add_`."""
    target = node.target
    words = str(target).split(".")
    word = words[1] if words[0] == "aten" and len(words) > 1 else getattr(target, "__name__", "")
    return (word or words[-1]).removesuffix("_") or words[-1]


def shape_of(node: Any) -> list[int]:
    """The shape of its tensor; of several, that of the first."""
    found = node.meta.get("val")
    while isinstance(found, list | tuple) and found:
        found = found[0]
    shape = list(getattr(found, "shape", ()))
    if not all(isinstance(size, int) for size in shape):
        raise ValueError(
            f"simulate: shapes of the program must be numbers, got {shape} of {node.name}; "
            "export it without dynamic_shapes"
        )
    return shape


def line_of(node: Any) -> str:
    """The innermost line of the user's source: "model.py:21 return self.c_proj(y)"."""
    frames = [*_FRAME.finditer(node.meta.get("stack_trace") or "")]
    own = [one for one in frames if "/torch/" not in one["file"].replace("\\", "/")]
    if not own:
        return str(node.name)
    code = (own[-1]["code"] or "").strip()
    shown = code if len(code) <= _LONGEST else f"{code[: _LONGEST - 3]}..."
    return f"{PurePath(own[-1]['file']).name}:{own[-1]['line']} {shown}".strip()


def layer_of(node: Any) -> str:
    """The path of the module that is one of a list of them: "h.0" of "h.0.attn"; "" of none."""
    paths = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    words = paths[-1].split(".") if paths else []
    for place, word in enumerate(words):
        if word.isdigit():
            return ".".join(words[: place + 1])
    return ""
