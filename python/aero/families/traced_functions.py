"""Functions of elements, and the largest of a row, as a program calls them."""

from __future__ import annotations

from math import prod
from typing import Any

from aero.families.traced_nodes import shape_of
from aero.families.traced_values import Tensor, Tracing


class Functions(Tracing):
    """Nodes that are an activation of the description, or a tree of them."""

    def _activated(self, given: Any, function: str, slope: float = 0.0) -> Tensor:
        return self._function(self._rows_of(given), function, slope)

    def _function(self, value: str, function: str, slope: float = 0.0) -> Tensor:
        size = self._sizes[value]
        return self._put("activation", size.rows, size.columns, value, function=function,
                         width=size.columns, slope=slope)  # fmt: skip

    def _on_gelu(self, node: Any) -> Tensor:
        is_tanh = node.kwargs.get("approximate", "none") == "tanh"
        return self._activated(node.args[0], "gelu_tanh" if is_tanh else "gelu_erf")

    def _on_relu(self, node: Any) -> Tensor:
        return self._activated(node.args[0], "relu")

    def _on_leaky_relu(self, node: Any) -> Tensor:
        slope = float(next(iter(node.args[1:2]), 0.01))
        return self._activated(node.args[0], "leaky_relu", slope)

    def _on_silu(self, node: Any) -> Tensor:
        return self._activated(node.args[0], "silu")

    def _on_tanh(self, node: Any) -> Tensor:
        return self._activated(node.args[0], "tanh")

    def _on_sigmoid(self, node: Any) -> Tensor:
        return self._activated(node.args[0], "sigmoid")

    def _on_exp(self, node: Any) -> Tensor:
        return self._activated(node.args[0], "exp")

    def _on_reciprocal(self, node: Any) -> Tensor:
        return self._inverse_of(node.args[0])

    def _inverse_of(self, given: Any) -> Tensor:
        if given.name in self._inverted:
            return self._tensor(given)
        return self._activated(given, "reciprocal")

    # --- max(x, y) = y + relu(x - y) -------------------------------------------------------------

    def _on_maximum(self, node: Any) -> Tensor:
        return self._bounded(node, 1)

    _on_minimum = _on_clamp_min = _on_clamp_max = _on_maximum

    def _on_clamp(self, node: Any) -> Tensor:
        bounds = [*node.args[1:], *node.kwargs.values()]
        return self._bounded(node, sum(one is not None for one in bounds))

    def _on_hardtanh(self, node: Any) -> Tensor:
        return self._bounded(node, 2)

    _on_relu6 = _on_hardsigmoid = _on_hardtanh

    def _bounded(self, node: Any, times: int) -> Tensor:
        values = [self._tensors[one.name].value for one in node.all_input_nodes]
        shape = shape_of(node)
        made = self._joined([*dict.fromkeys(value for value in values if value)])
        value = self._at(made.value, prod(shape[:-1]), shape[-1] if shape else 1)
        for _ in range(times):
            value = self._function(value, "relu").value
        return Tensor(value)

    def _on_max(self, node: Any) -> Tensor | None:
        if hasattr(next(iter(node.args[1:2]), None), "name"):
            return self._bounded(node, 1)
        if any(one.users and one.args[1:] == (1,) for one in node.users):  # its place as well
            return None
        return self._on_amax(node)

    _on_min = _on_max

    def _on_amax(self, node: Any) -> Tensor:
        """A tree: halves against halves, then what was left over, as SPU reduces."""
        given = node.args[0]
        shape, axes = shape_of(given), next(iter(node.args[1:2]), ())
        axes = [axes] if isinstance(axes, int) else axes
        count = prod(shape[axis] for axis in axes) if axes else prod(shape)
        rows, value, odd = prod(shape) // count, self._tensors[given.name].value, 0
        while count > 1:
            count, left = divmod(count, 2)
            value, odd = self._function(self._at(value, rows, count), "relu").value, odd + left
        for _ in range(odd):
            value = self._function(self._at(value, rows, 1), "relu").value
        return Tensor(value)

    _on_amin = _on_amax
