"""What a mutant changes: cosmic-ray's operators, and three that leave something out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cosmic_ray.operators.operator import Example, Operator
from cosmic_ray.operators.provider import OperatorProvider
from parso.python.tree import Keyword

# What follows takes arguments or only renames; the other ones of a kind are as good as these.
LEFT_OUT = {"VariableReplacer", "VariableInserter"}
Span = tuple[tuple[int, int], tuple[int, int]]


class DropSubscript(Operator):
    """`labels[..., 1:]` becomes `labels`."""

    def mutation_positions(self, node: Any) -> Iterator[Span]:
        if node.type == "trailer" and node.children[0].value == "[":
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> None:
        return None

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (Example("x = labels[1:]", "x = labels"),)


class DropArgument(Operator):
    """`f(a, b)` becomes `f(a)` or `f(b)`, and `f(a)` becomes `f()`."""

    def _arguments(self, node: Any) -> list[int]:
        if node.type == "arglist":
            return [i for i, child in enumerate(node.children) if child.type != "operator"]
        if node.type == "trailer" and node.children[0].value == "(" and len(node.children) == 3:
            return [] if node.children[1].type == "arglist" else [1]
        return []

    def mutation_positions(self, node: Any) -> list[Span]:
        # A list, as cosmic-ray changes the node before it asks for the next one.
        children = [node.children[i] for i in self._arguments(node)]
        return [(child.start_pos, child.end_pos) for child in children]

    def mutate(self, node: Any, index: int) -> Any:
        first = self._arguments(node)[index]
        # With the comma that follows.
        last = first + 1 if node.type == "trailer" else first + 2
        del node.children[first:last]
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (
            Example("f(a, b)", "f( b)"),
            Example("f(a, b)", "f(a,)", occurrence=1),
            Example("f(a)", "f()"),
        )


class DropStatement(Operator):
    """A call, a `raise`, or an assignment to what was there already becomes `pass`."""

    def mutation_positions(self, node: Any) -> Iterator[Span]:
        if node.parent is None or node.parent.type != "simple_stmt":
            return
        is_new_name = (
            node.type == "expr_stmt"
            and node.children[0].type == "name"
            and (node.children[1].type == "annassign" or node.children[1].value == "=")
        )
        if node.type in ("atom_expr", "power", "raise_stmt", "expr_stmt") and not is_new_name:
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        return Keyword("pass", node.start_pos, prefix=node.get_first_leaf().prefix)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (
            Example("x.append(1)\n", "pass\n"),
            Example("x = 0\nx += 1\n", "x = 0\npass\n"),
            Example("x.y = 1\n", "pass\n"),
        )


def operators() -> dict[str, Operator]:
    """Every operator by its name."""
    core = OperatorProvider()
    found = {name: core[name]() for name in core if name not in LEFT_OUT}
    return found | {kind.__name__: kind() for kind in (DropSubscript, DropArgument, DropStatement)}
