"""YAML whose nesting, numbers and expanded aliases are bounded while it is parsed."""

from __future__ import annotations

from typing import Any

import yaml

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def load_bounded(text: str, nodes: int, levels: int, digits: int) -> Any:
    """Returns the one document of a text as plain values.

    Args:
        text: YAML 1.1, of which dates stay texts.
        nodes: that it may have, those counted again that an alias stands for.
        levels: how deep nodes may lie in others.
        digits: of a number.

    Raises:
        yaml.YAMLError: it is no YAML, has more of something than it may, an entry twice, or a
            number that is not finite.
        ValueError: PyYAML's own failures on odd tags and numbers.
    """
    loader = _Loader(text)
    loader.bounds = (nodes, levels, digits)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    bounds = (0, 0, 0)

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._seen = self._level = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        alias = self.check_event(yaml.AliasEvent)
        before = self._seen
        self._seen += 1
        self._level += 1
        if self._level > self.bounds[1]:
            raise yaml.MarkedYAMLError(
                problem=f"expected at most {self.bounds[1]} levels, got more", problem_mark=mark
            )
        node: Any = super().compose_node(parent, index)
        self._level -= 1
        if alias:
            if id(node) not in self._sizes:
                raise yaml.MarkedYAMLError(
                    problem="expected no alias inside of what it stands for", problem_mark=mark
                )
            self._seen += self._sizes[id(node)]
        if self._seen > self.bounds[0]:
            raise yaml.MarkedYAMLError(
                problem=f"expected at most {self.bounds[0]:,} values, with what aliases stand for, "
                "got more",
                problem_mark=mark,
            )
        if not alias:
            self._sizes[id(node)] = self._seen - before
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if (key.tag, key.value) in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"expected every entry once, got {key.value[:80]!r} twice",
                        problem_mark=key.start_mark,
                    )
                seen.add((key.tag, key.value))
        return node

    def construct_scalar(self, node: Any) -> Any:
        if getattr(node, "tag", None) in _NUMBERS and len(node.value) > 4 * self.bounds[2]:
            raise yaml.MarkedYAMLError(
                problem=f"expected numbers of at most {self.bounds[2]} digits, got "
                f"{len(node.value)}",
                problem_mark=node.start_mark,
            )
        return super().construct_scalar(node)

    def bounded_int(self, node: Any) -> int:
        value = self.construct_yaml_int(node)
        if abs(value) >= 10 ** self.bounds[2]:
            raise yaml.MarkedYAMLError(
                problem=f"expected numbers of at most {self.bounds[2]} digits, got "
                f"{len(node.value)}",
                problem_mark=node.start_mark,
            )
        return value

    def finite_float(self, node: Any) -> float:
        value = self.construct_yaml_float(node)
        if value - value != 0:
            raise yaml.MarkedYAMLError(
                problem=f"expected finite numbers, got {node.value}", problem_mark=node.start_mark
            )
        return value


# A tag that asks for anything else, such as !!binary or !!set, is an error.
_PLAIN = {f"tag:yaml.org,2002:{kind}" for kind in ("bool", "map", "null", "seq", "str")} | {None}
_Loader.yaml_constructors = {
    tag: build for tag, build in yaml.SafeLoader.yaml_constructors.items() if tag in _PLAIN
}
_Loader.add_constructor(_NUMBERS[0], _Loader.bounded_int)
_Loader.add_constructor(_NUMBERS[1], _Loader.finite_float)
_Loader.yaml_implicit_resolvers = {
    first: [rule for rule in rules if rule[0] != "tag:yaml.org,2002:timestamp"]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
