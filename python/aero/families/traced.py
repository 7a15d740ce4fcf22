"""A program of `torch.export` as operations, line by line; what has no price is listed.

Reads the program's graph by what its nodes have, so that nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from aero.families.sizes import Described
from aero.families.traced_functions import Functions
from aero.families.traced_nodes import (
    CHOOSING,
    FREE,
    Contraction,
    contraction_of,
    line_of,
    shape_of,
    word_of,
)
from aero.families.traced_values import Tensor


def described_program(program: Any) -> Described:
    """The operations of a `torch.export.ExportedProgram`, over the shapes that it was traced with.

    Raises:
        ValueError: shapes that are not numbers, or a program that computes nothing on its inputs
            that has a price.
    """
    found = _Program(program)
    for node in program.graph.nodes:
        found.take(node)
    found.end()
    if all(one["op"] in ("source", "rearrange") for one, _ in found.placed):
        lacking = "; ".join(found.unpriced()) or "none"
        raise ValueError(
            f"simulate: the program must compute something on its inputs that has a price, got "
            f"{lacking}"
        )
    return Described(
        found.name or "program", found.operations(), found.rows, 0, found.unpriced(), fixed=True
    )


class _Program(Functions):
    """Turns node after node into operations: `_on_softmax` takes a softmax."""

    def take(self, node: Any) -> None:
        """Adds what a node computes."""
        self._node = node
        if node.op == "placeholder":
            self._tensors[node.name] = self._given(node)
        elif node.op == "call_function":
            self._tensors[node.name] = self._called(node, word_of(node))
            stack = node.meta.get("nn_module_stack") or {}
            kind = str(next((kind for _, kind in stack.values()), ""))
            self.name = self.name or kind.split(".")[-1]

    # --- nodes -----------------------------------------------------------------------------------

    def _called(self, node: Any, word: str) -> Tensor:
        read = [self._tensors[one.name] for one in node.all_input_nodes]
        values = list(dict.fromkeys(one.value for one in read if one.value))
        if not values:
            return Tensor(is_weight=any(one.is_weight for one in read))
        write: Callable[[Any], Tensor | None] | None = getattr(
            self, f"_on_{word.lstrip('_')}", None
        )
        made = write(node) if write is not None else None
        if made is None and (word not in FREE or self._chooses_by_secret(node, word)):
            shape = "x".join(map(str, shape_of(node))) or "one number"
            self._lacking[word, shape, line_of(node)] += 1
        return made or self._joined(values)

    def _chooses_by_secret(self, node: Any, word: str) -> bool:
        """True if a mask or places are secret; only public ones are free."""
        if word not in CHOOSING:
            return False
        chosen = node.args[CHOOSING[word]]
        every = chosen if isinstance(chosen, list | tuple) else [chosen]
        return any(self._tensor(one).value for one in every)

    def _on_embedding(self, node: Any) -> Tensor | None:
        table, ids = node.args[:2]
        if not self._tensor(ids).value or self._tensor(table).value:
            return None
        rows, width = shape_of(table)
        count = prod(shape_of(ids))
        given = self._at(self._tensor(ids).value, count, 1)
        return self._put("embed", count, width, given, rows=rows, width=width)

    def _on_linear(self, node: Any) -> Tensor | None:
        return self._product(node, node.args[0], node.args[1])

    def _on_addmm(self, node: Any) -> Tensor | None:
        return self._product(node, node.args[1], node.args[2])

    def _on_conv2d(self, node: Any) -> Tensor | None:
        given, weight = node.args[:2]
        outer, *kernel = shape_of(weight)
        is_grouped = shape_of(given)[-len(kernel)] != kernel[0]
        if is_grouped or not self._tensor(weight).is_weight:
            return None
        return self._linear(given, prod(shape_of(node)) // outer, prod(kernel), outer)

    _on_conv1d = _on_conv3d = _on_conv2d

    def _on_batch_norm(self, node: Any) -> Tensor | None:
        """A factor for each channel, once training is over."""
        channels = shape_of(node)[1]
        if node.args[5]:
            return None
        rows = prod(shape_of(node)) // channels
        value = self._at(self._tensor(node.args[0]).value, rows, channels)
        return self._put("norm", rows, channels, value, kind="diagonal", width=channels,
                         epsilon=0.0)  # fmt: skip

    def _on_matmul(self, node: Any) -> Tensor | None:
        left, right = node.args[:2]
        if not (self._tensor(left).value and self._tensor(right).value):
            return self._product(node, left, right)
        if min(len(shape_of(left)), len(shape_of(right))) < 2:
            return None
        (*heads, rows, columns), inner = shape_of(node), shape_of(left)[-1]
        return self._of_heads(left, right, Contraction(prod(heads), rows, inner, columns))

    _on_mm = _on_bmm = _on_matmul

    def _product(self, node: Any, given: Any, weight: Any) -> Tensor | None:
        """A value times a weight; None where it is times something public."""
        if self._tensor(weight).value:
            given, weight = weight, given
        if self._tensor(weight).value:
            return None
        if not self._tensor(weight).is_weight:
            self._folded[line_of(node)] += 1
            return Tensor(self._tensor(given).value)
        sizes = shape_of(node)
        outer, total = sizes[-1], prod(sizes)
        if not self._tensor(node.args[0]).value:  # W x, of columns
            outer = sizes[-2]
        return self._linear(given, total // outer, prod(shape_of(given)) * outer // total, outer)

    def _linear(self, given: Any, rows: int, inner: int, outer: int) -> Tensor:
        value = self._at(self._tensor(given).value, rows, inner)
        sizes_of_it = {"in": inner, "out": outer, "transposed": False}
        return self._put("linear", rows, outer, value, **sizes_of_it)

    def _on_einsum(self, node: Any) -> Tensor | None:
        """Reads a product of two operands: letters of both and of the result are heads."""
        equation, operands = node.args[:2]
        if len(operands) == 1:
            return self._tensor(operands[0])
        found = contraction_of(equation, [shape_of(one) for one in operands])
        if found is None:
            return None
        left, right = operands
        if self._tensor(left).value and self._tensor(right).value:
            if not found.sums:
                return self._times(node, [left, right])
            if self._is_weighting(self._tensor(right).value):
                return self._of_heads(right, left, found.turned())
            return self._of_heads(left, right, found)
        if not self._tensor(left).value:
            left, right, found = right, left, found.turned()
        if not found.sums:
            return self._scaled(node, left, right)
        if not self._tensor(right).is_weight:
            self._folded[line_of(node)] += 1
            return Tensor(self._tensor(left).value)
        return self._linear(left, found.heads * found.rows, found.inner, found.columns)

    def _of_heads(self, left: Any, right: Any, sizes_of_it: Contraction) -> Tensor:
        """Shares times shares, for each of the heads."""
        heads, rows, inner, columns, _ = sizes_of_it
        first = self._at(self._tensor(left).value, rows, inner)
        sizes = {"heads": heads, "key_heads": heads}
        if self._is_weighting(first):
            second = self._at(self._tensor(right).value, inner, columns)
            return self._put("weighted_sum", rows, columns, first, second, **sizes,
                             head_dim=columns)  # fmt: skip
        second = self._at(self._tensor(right).value, columns, inner)
        return self._scores(first, second, rows, columns, inner, 1.0, sizes)

    def _scores(
        self, first: str, second: str, rows: int, columns: int, inner: int, scale: float,
        sizes: dict[str, int],
    ) -> Tensor:  # fmt: skip
        plain = {"temperature": False, "per_position": False, "soft_cap": 0.0}
        return self._put(
            "scores", rows, columns, first, second, **sizes, head_dim=inner, scale=scale, **plain
        )

    def _on_scaled_dot_product_attention(self, node: Any) -> Tensor:
        names = ("attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
        settings = {**dict(zip(names, node.args[3:], strict=False)), **node.kwargs}
        queries, keys, values = node.args[:3]
        (rows, inner), (columns, width) = shape_of(queries)[-2:], shape_of(values)[-2:]
        sizes = {"heads": prod(shape_of(queries)[:-2]), "key_heads": prod(shape_of(keys)[:-2])}
        scale = settings.get("scale")
        scores = self._scores(
            self._heads_of(queries), self._heads_of(keys), rows, columns, inner,
            inner**-0.5 if scale is None else float(scale), sizes,
        )  # fmt: skip
        mask = settings.get("attn_mask")
        if mask is not None and self._tensor(mask).value:
            scores = self._joined([scores.value, self._tensor(mask).value])
        weights = self._put("softmax", rows, columns, scores.value, heads=sizes["heads"],
                            causal=bool(settings.get("is_causal", False)), window=0)  # fmt: skip
        return self._put("weighted_sum", rows, width, weights.value, self._heads_of(values),
                         **sizes, head_dim=width)  # fmt: skip

    def _on_softmax(self, node: Any) -> Tensor | None:
        shape = shape_of(node)
        if node.args[1] not in (-1, len(shape) - 1):
            return None
        value = self._tensor(node.args[0]).value
        heads = prod(shape[:-2])
        if (self._sizes[value].rows, self._sizes[value].columns) != tuple(shape[-2:]):
            heads, value = 1, self._rows_of(node.args[0])
        size = self._sizes[value]
        return self._put("softmax", size.rows, size.columns, value, heads=heads, causal=False,
                         window=0)  # fmt: skip

    def _normed(self, node: Any, kind: str, width: int) -> Tensor:
        rows = prod(shape_of(node.args[0])) // width
        value = self._at(self._tensor(node.args[0]).value, rows, width)
        gain = next(iter(node.args[2:3]), None) or node.kwargs.get("weight")
        weights: dict[str, Any] = {} if gain is None else {"weights": {"weight": gain.name}}
        return self._put("norm", rows, width, value, kind=kind, width=width, epsilon=1e-5,
                         **weights)  # fmt: skip

    def _on_layer_norm(self, node: Any) -> Tensor:
        return self._normed(node, "layer", prod(node.args[1]))

    def _on_rms_norm(self, node: Any) -> Tensor:
        return self._normed(node, "rms", prod(node.args[1]))

    def _on_rsqrt(self, node: Any) -> Tensor:
        """Reads an RMSNorm: 1 / sqrt of a mean of squares, times what was squared."""
        value = self._tensor(node.args[0]).value
        made = self._sizes[value].made
        if made["op"] != "multiply" or made["inputs"][0] != made["inputs"][1]:
            return self._activated(node.args[0], "rsqrt")
        made |= {"op": "norm", "inputs": made["inputs"][:1], "kind": "rms", "epsilon": 1e-5}
        rows = prod(shape_of(node))
        factor = self._put("rearrange", rows, 1, value, positions=rows, width=1)
        self._factors[factor.value] = value
        return factor

    def _on_sqrt(self, node: Any) -> Tensor | None:
        """Reads 1 / sqrt, of which SPU's compiler makes rsqrt, where all that follows divides."""
        if any(
            word_of(one) not in ("div", "reciprocal") or one.args[-1] is not node
            for one in node.users
        ):
            return None
        self._inverted.add(node.name)
        return self._on_rsqrt(node)

    def _on_mul(self, node: Any) -> Tensor | None:
        return self._multiplied(node, *node.args[:2])

    def _multiplied(self, node: Any, first: Any, second: Any) -> Tensor | None:
        values = [self._tensor(first).value, self._tensor(second).value]
        if all(values):
            for factor, other in (values, values[::-1]):
                norm = self._factors.get(factor)
                if norm and self._moved(other) == self._moved(self._sizes[norm].made["inputs"][0]):
                    self._bare.add(self._factors.pop(factor))  # a second product is its own
                    return Tensor(norm)
            return self._times(node, [first, second])
        known, given = (second, first) if self._tensor(first).value else (first, second)
        return self._scaled(node, given, known)

    def _on_div(self, node: Any) -> Tensor | None:
        given, factor = node.args[:2]
        if node.kwargs.get("rounding_mode") is not None:
            return None
        if self._tensor(factor).value:
            return self._multiplied(node, given, self._inverse_of(factor))
        return self._scaled(node, given, factor if hasattr(factor, "name") else 1 / factor)

    def _on_pow(self, node: Any) -> Tensor | None:
        given, power = node.args[:2]
        if power == -0.5:
            return self._on_rsqrt(node)
        if power not in (2, 3):
            return None
        square = self._times(node, [given, given])
        return square if power == 2 else self._times(node, [given, square])

    def _on_glu(self, node: Any) -> Tensor:
        shape = shape_of(node)
        half = self._at(self._tensor(node.args[0]).value, prod(shape[:-1]), shape[-1])
        return self._times(node, [node.args[0], self._function(half, "sigmoid")])

    def _on_hardswish(self, node: Any) -> Tensor:
        return self._times(node, [node.args[0], self._bounded(node, 2)])

    def _on_square(self, node: Any) -> Tensor:
        return self._times(node, [node.args[0], node.args[0]])

    def _times(self, node: Any, factors: list[Any]) -> Tensor:
        shape = shape_of(node)
        values = [self._tensor(one).value for one in factors]
        rows, width = prod(shape[:-1]), shape[-1] if shape else 1
        placed = {one: self._at(one, rows, width) for one in values}
        return self._put("multiply", rows, width, *(placed[one] for one in values), width=width)

    def _scaled(self, node: Any, given: Any, factor: Any) -> Tensor:
        """Times what the server knows, or times public numbers."""
        value = self._tensor(given).value
        size = self._sizes[value]
        if hasattr(factor, "name") and self._tensor(factor).is_weight:
            if value in self._bare:  # its gain, once
                self._bare.remove(value)
                size.made["weights"] = {"weight": factor.name}
                return Tensor(value)
            width = shape_of(node)[-1]
            value = self._at(value, prod(shape_of(node)) // width, width)
            return self._put("norm", self._sizes[value].rows, width, value, kind="diagonal",
                             width=width, epsilon=0.0)  # fmt: skip
        if size.made["op"] == "scores" and not hasattr(factor, "name"):
            size.made["scale"] = size.made["scale"] * float(factor)
            return Tensor(value)
        if factor != 1:
            self._folded[line_of(node)] += 1
        return Tensor(value)
