"""Stacks described in a file: fields changed, and prices quoted from a protocol's paper.

A description is YAML or JSON:

    format: 1
    name: my-stack              # as reports show it
    base: openbumblebee         # the stack or optimized stack that it starts from
    source: "where the prices come from"     # required with prices
    trust: "three parties"      # whom it trusts; default: as the base
    fields: {exp_squarings: 6}  # any of `aero.mpc.stack_fields(base)`
    prices:
      softmax: {bytes_factor: 0.5}                    # half of what the base sends
      gelu: {bytes_per_output: 403.2, rounds: 40}    # or a price of its own
    keys:                       # of a dealer, where published: by label or family, sizes and T
      - {networks: [gpt2], num_layers: 12, num_heads: 12, width: 768, context_length: 128,
         gigabytes: 15.3}

These operations have prices: setup, embedding, weight_product, head_product, truncation (one of
RoPE's two), softmax, argmax; the norms layernorm and rmsnorm; elementwise_product (the gate of a
SwiGLU) and weight_scaling; the functions gelu, silu, relu, relu_squared, tanh, logistic, exp,
reciprocal, reciprocal_square_root, soft_cap, one_hot, masked, dynamic_tanh and dynamic_erf, and
with relu a leaky one. A price changes the derived cost (`bytes_factor`, `rounds_factor`) or
replaces it: `bytes_per_call`, `bytes_per_row`, `bytes_per_input`, `bytes_per_output` of both
parties, `rounds`, `rounds_per_level`, and `client_share` of the bytes (0.5). Rows, inputs and
outputs of an m x k x n product are m, m k and m n, with `causal_skip` only the live ones; of
softmax and norms rows and elements; of the others elements. A row of n elements that softmax or
argmax reduces has ceil(log2 n) levels. Operations with prices of their own have no ciphertexts and
OTs, so times on machines count their bytes and rounds only.

Two descriptions come with the package: `blb`, a factor on another stack, and `sigma`, prices per
element, row and level.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from aero import _core
from aero.mpc.cost import FieldValue, Stack
from aero.mpc.other_words import nearest, stack_here
from aero.reading import checked, parse_yaml, read_json, read_yaml, shown

_KEYS = ("format", "name", "base", "source", "trust", "fields", "prices", "keys")
_FORMAT = 1
_SIZES = ("num_layers", "num_heads", "width", "context_length")
_KEYS_OF = {"networks": [str], **dict.fromkeys(_SIZES, int), "gigabytes": int | float}


@dataclass(frozen=True)
class StackDescription:
    """A stack as data.

    Attributes:
        name: As reports show it.
        base: The stack or optimized stack that it starts from.
        fields: Fields of the base that differ.
        prices: Operation -> field of the price -> value.
        source: Where the prices come from; they are quoted, not measured.
        trust: Whom its users trust: parties, how they behave, a dealer, and what is not counted;
            empty: as the base.
        keys: What a dealer's keys, which no price counts, take of networks that were run.
    """

    name: str
    base: str
    fields: Mapping[str, FieldValue] = field(default_factory=dict)
    prices: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    source: str = ""
    trust: str = ""
    keys: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        if not self.trust:
            object.__setattr__(self, "trust", Stack(self.base).trust)

    def with_fields(self, overrides: Iterable[tuple[str, FieldValue]] = ()) -> Stack:
        """The stack that operations are priced on; `overrides` win."""
        prices = {name: dict(price) for name, price in self.prices.items()}
        return Stack(self.base, [*self.fields.items(), *overrides], prices)

    def takes(self, name: str, value: FieldValue) -> bool:
        """Tells whether a field may have a value here: stacks of shares lack some of Cheetah's."""
        try:
            self.with_fields([(name, value)])
        except (ValueError, TypeError):
            return False
        return True

    def key_words(self, label: str, sizes: Mapping[str, Any]) -> list[str]:
        """Says what the dealer's keys take for a network; nothing where there are none."""
        known = [
            f"{one['gigabytes']:g} GB for {label}, T {sizes['context_length']}"
            for one in self.keys
            if label in one["networks"] and all(one[size] == sizes[size] for size in _SIZES)
        ]
        said = (known or ["not known for this network and size"])[0]
        return [f"setup: the dealer's keys, in no other number: {said}"] if self.keys else []

    def all_fields(self) -> dict[str, FieldValue]:
        """Every field of the stack, before overrides."""
        return {**Stack(self.base).fields, **self.fields}


def described_stack_names() -> list[str]:
    """Protocols of other papers that come with the package; `simulate` takes them as `stack`."""
    return [*_shipped_names()]


def stack_description(stack: str | Path | StackDescription) -> StackDescription:
    """The stack that a name, a path or a description stands for.

    Args:
        stack: A name of `stack_names()`, `optimized_stack_names()` or `described_stack_names()`; a
            path that ends with .yaml, .yml or .json; or a description.

    Raises:
        ValueError: For an unknown name, or a file that is no description.
    """
    if isinstance(stack, StackDescription):
        return stack
    if not isinstance(stack, (str, Path)):
        raise ValueError(f"simulate: stack must be a name or a file, got {type(stack).__name__}")
    if isinstance(stack, Path) or stack.endswith((".yaml", ".yml", ".json")):
        return load_stack(stack)
    if stack in _shipped_names():
        return _shipped_description(stack)
    named = [*_core.stack_names(), *_core.optimized_stack_names()]
    if stack not in named:
        *others, last = (f'"{name}"' for name in [*named, *described_stack_names()])
        raise ValueError(
            f"simulate: stack must be {', '.join(others)} or {last}, or the path of a .yaml, .yml "
            f'or .json description, got "{stack}"'
            f"{stack_here(stack, [*named, *described_stack_names()])}"
        )
    return StackDescription(stack, stack)


def default_compute(*stacks: str | Path | StackDescription) -> str:
    """The machines that time stacks unless others are named: one set for all.

    It is `paper-testbed`, which counts no arithmetic on shares; with a stack of shares `spu-epyc`,
    which alone has its rates.
    """
    cheetah = Stack("spu-2024").trust
    bases = {stack_description(stack).base for stack in stacks}
    return "paper-testbed" if all(Stack(one).trust == cheetah for one in bases) else "spu-epyc"


@cache
def _shipped_description(name: str) -> StackDescription:
    content = (_shipped() / f"{name}.yaml").read_bytes()
    return _described(parse_yaml(content, f"{name}.yaml"), f"{name}.yaml")


def load_stack(path: str | Path) -> StackDescription:
    """Reads and checks a stack description.

    Args:
        path: A YAML or JSON file.

    Raises:
        ValueError: It cannot be read, or an entry is wrong; names the entry, its range and value.

    Example:
        >>> from pathlib import Path
        >>> import tempfile
        >>> from aero import mpc
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "six.yaml"
        ...     _ = path.write_text("{format: 1, name: six, base: spu-2024, "
        ...                         "fields: {exp_squarings: 6}}")
        ...     mpc.simulate("SM", stack=path).stack_fields["exp_squarings"]
        6
    """
    path = Path(path)
    read = read_json if path.suffix == ".json" else read_yaml
    return _described(read(path), path.name)


@cache
def _shipped_names() -> tuple[str, ...]:
    return tuple(sorted(path.name.removesuffix(".yaml") for path in _shipped().iterdir()))


def _shipped() -> Any:
    return resources.files("aero").joinpath("data/stacks")


def _described(data: dict[str, Any], name: str) -> StackDescription:
    where = f"stack description {name}"
    for key in data:
        if key not in _KEYS:
            hint = nearest(str(key), _KEYS) or f"; expected {', '.join(sorted(_KEYS))}"
            raise ValueError(f"{where}: has no entry {key!r}{hint}")
    if data.get("format") != _FORMAT:
        raise ValueError(f"{where}: format must be {_FORMAT}, got {data.get('format')!r}")
    fields = _mapping(data, "fields", where)
    prices = {
        str(operation): _price(price, f"{where}: prices.{operation}")
        for operation, price in _mapping(data, "prices", where).items()
    }
    source = _text(data, "source", where) if prices or "source" in data else ""
    trust = _text(data, "trust", where) if "trust" in data else ""
    keys = checked(data.get("keys", []), [_KEYS_OF], f"{where}: keys")
    name, base = _text(data, "name", where), _text(data, "base", where)
    try:
        description = StackDescription(name, base, fields, prices, source, trust, keys)
        description.with_fields()
    except (ValueError, TypeError) as error:  # ranges and names are the C++ side's to check
        text = str(error).removeprefix("stack description: ").removeprefix("simulate: ")
        raise ValueError(f"{where}: {text}") from error
    if name in (*_core.stack_names(), *_core.optimized_stack_names()):
        raise ValueError(f"{where}: name must not be that of a stack, got {name!r}")
    return description


def _text(data: dict[str, Any], key: str, where: str) -> str:
    value = data.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}: {key} must be a text, got {shown(value)}")
    return value


def _mapping(data: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    value = data.get(key, {})
    if not isinstance(value, dict):
        raise ValueError(f"{where}: {key} must be a mapping, got {type(value).__name__}")
    for name, entry in value.items():
        if key == "fields" and not isinstance(entry, bool | int | float | str):
            raise ValueError(
                f"{where}: fields.{name} must be a bool, a number or a text, "
                f"got {type(entry).__name__}"
            )
    return {str(name): entry for name, entry in value.items()}


def _price(price: object, where: str) -> dict[str, float]:
    if not isinstance(price, dict) or not price:
        raise ValueError(f"{where} must be a mapping of prices, got {shown(price)}")
    for name, value in price.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{where}.{name} must be a number, got {shown(value)}")
    return {str(name): float(value) for name, value in price.items()}
