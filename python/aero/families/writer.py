"""Collects the operations of a description, with the names of their weights."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

Operation = dict[str, Any]


class Writer:
    """Writes operations one after the other; in layers, the names of weights have a place for it.

    Attributes:
        operations: as a description lists them.
    """

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._prefix = ""

    def add(self, op: str, output: str, *inputs: str, name: str = "", part: str = "",
            weights: dict[str, str] | None = None, **fields: Any) -> str:  # fmt: skip
        """Adds an operation; returns its output."""
        entry = {"op": op, "name": name, "part": part, "inputs": list(inputs), "output": output}
        own: dict[str, Any] = {"weights": weights} if weights else {}
        self.operations.append({**entry, **fields, **own})
        return output

    def table(self, output: str, given: str, key: str, rows: int, width: int) -> str:
        """Rows of a table of embeddings."""
        return self.add("embed", output, given, name=key.replace("_", " "), part="embed", rows=rows,
                        width=width, weights={"weight": key})  # fmt: skip

    def linear(self, output: str, given: str, key: str, name: str, part: str, inner: int,
               outer: int, *, bias: bool = False) -> str:  # fmt: skip
        """A product with weights [in, out]."""
        sizes: dict[str, Any] = {"in": inner, "out": outer, "transposed": False}
        roles = ("weight", "bias") if bias else ("weight",)
        return self.add("linear", output, given, name=name, part=part,
                        weights=self._weights(key, roles), **sizes)  # fmt: skip

    def norm(self, output: str, given: str, key: str, name: str, kind: str, width: int,
             epsilon: float, *, bias: bool) -> str:  # fmt: skip
        """A LayerNorm ("layer") or an RMSNorm ("rms"), over the last axis."""
        roles = ("weight", "bias") if bias else ("weight",)
        return self.add("norm", output, given, name=name, part="layernorm",
                        weights=self._weights(key, roles), kind=kind, width=width,
                        epsilon=epsilon)  # fmt: skip

    def activation(self, value: str, function: str, width: int) -> str:
        """A function of each element of a value."""
        return self.add("activation", value, value, name="activation", part="act",
                        function=function, width=width, slope=0.0)  # fmt: skip

    def layers(self, kinds: Sequence[Any], write: Callable[[Any], None]) -> None:
        """Writes the layers, each of its kind, and repeats neighbours of one kind."""
        outside, self._prefix = self.operations, "layers.{layer}."
        for kind, run in itertools.groupby(kinds):
            self.operations = []
            write(kind)
            outside.append({"repeat": len(list(run)), "operations": self.operations})
        self.operations, self._prefix = outside, ""

    def _weights(self, key: str, roles: Sequence[str]) -> dict[str, str]:
        return {role: f"{self._prefix}{key}.{role}" for role in roles}
