"""The operations of a description: fields, weights and meaning, one row each.

Letters: B batch, T tokens, C width, H heads, G key heads, D head width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

# A list holds a number for each time that the operation's layer is repeated.
Real = (float, [float])
Shape = list[int]


@dataclass(frozen=True)
class Primitive:
    """An operation of a description.

    Attributes:
        meaning: shapes and formula in words.
        inputs: how many values it reads; None for two or more.
        fields: the types of its own entries, as `aero.reading.checked` takes them.
        weights: the shape of each weight by its role, of an operation and the context length.
        optional: roles that it may lack.
        lengths: whether it may read the lengths of padded sequences too, as its last input.
        earlier: the input whose rows of earlier tokens it reads, and of its fields how many of
            them; None for all.
    """

    meaning: str
    inputs: int | None = 1
    fields: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, Callable[[dict[str, Any], int], Shape]] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    lengths: bool = False
    earlier: tuple[int, Callable[[dict[str, Any]], int | None]] | None = None

    @property
    def moves_tokens(self) -> bool:
        """Tells whether it only moves tokens to later positions."""
        return self.earlier is not None and self.earlier[0] == 0


def _width(operation: dict[str, Any], _: int) -> Shape:
    return [operation["width"]]


def _heads(operation: dict[str, Any], _: int) -> Shape:
    return [operation["heads"]]


def _distances(operation: dict[str, Any], context: int) -> Shape:
    return [operation["heads"], 2 * context - 1]


def _all_keys(_: dict[str, Any]) -> None:
    return None


def _scalar(_: dict[str, Any], __: int) -> Shape:
    return [1]


def _matrix(operation: dict[str, Any], _: int) -> Shape:
    sizes = [operation["in"], operation["out"]]
    return sizes[::-1] if operation["transposed"] else sizes


# Which of the weights below a norm has.
NORM_ROLES = {
    "layer": ("weight", "bias"),
    "rms": ("weight",),
    "diagonal": ("scale",),
    "dynamic_tanh": ("weight", "bias", "alpha"),
    "dynamic_erf": ("weight", "bias", "alpha", "shift"),
}
FUNCTIONS = (
    "relu", "leaky_relu", "gelu_tanh", "gelu_erf", "silu", "tanh", "sigmoid", "exp", "reciprocal",
    "rsqrt", "relu_squared",
)  # fmt: skip
POOLS = ("last", "first", "mean")
SCORINGS = ("softmax", "sigmoid", "softmax_of_chosen")

PRIMITIVES: dict[str, Primitive] = {
    "embed": Primitive(
        "Rows of a table [rows, width]: of tokens [B, T], or the first T for `positions`.",
        fields={"rows": int, "width": int},
        weights={"weight": lambda operation, _: [operation["rows"], operation["width"]]},
    ),
    "linear": Primitive(
        "x W + b of the last axis, row vectors; W is [in, out], or [out, in] where transposed.",
        fields={"in": int, "out": int, "transposed": bool},
        weights={"weight": _matrix, "bias": lambda operation, _: [operation["out"]]},
        optional=frozenset({"bias"}),
    ),
    "split_heads": Primitive(
        "Channels from `start` on as heads of head_dim consecutive ones: [B, T, *] to "
        "[B, heads, T, head_dim].",
        fields={"start": int, "heads": int, "head_dim": int},
    ),
    "join_heads": Primitive("[B, H, T, D] to [B, T, H D]."),
    "rotate": Primitive(
        "On the first `channels` of each head: pairs (i, i + channels / 2) turn by the angle "
        "position * base^(-2 i / channels).",
        fields={"heads": int, "channels": int, "base": Real},
    ),
    "scores": Primitive(
        "scale * inverse_temperature[head, position of the query] * q k^T, [B, H, T, S], of "
        "queries [B, heads, T, head_dim] and keys [B, key_heads, S, head_dim]; consecutive "
        "query heads share a key head. Above 0, soft_cap c makes c tanh(s / c) of a score s.",
        inputs=2,
        fields={
            "heads": int, "key_heads": int, "head_dim": int, "scale": Real, "temperature": bool,
            "per_position": bool, "soft_cap": Real,
        },
        weights={"inverse_temperature": lambda operation, context: [operation["heads"], context]},
        optional=frozenset({"inverse_temperature"}),
        earlier=(1, _all_keys),
    ),
    "softmax": Primitive(
        "Over the keys: if causal, those up to the query's position; of these the last `window` if "
        "that is above 0; of padded sequences their own. bias[head, T - 1 + i - j] of a context of "
        "T tokens is added to the score of query i and key j before. A sink is one more score of "
        "each row of its head, whose share is left out. A row without keys is 0.",
        fields={"heads": int, "causal": bool, "window": int},
        weights={"bias": _distances, "sink": _heads},
        optional=frozenset({"bias", "sink"}),
        lengths=True,
    ),
    "shape": Primitive(
        "identity I + softmax P - uniform M of the weights P, one factor per head each; row i of M "
        "is 1 / (i + 1) up to i.",
        fields={"heads": int},
        weights={"identity": _heads, "softmax": _heads, "uniform": _heads},
    ),
    "weighted_sum": Primitive(
        "P v of weights [B, heads, T, S] and values [B, key_heads, S, head_dim].",
        inputs=2,
        fields={"heads": int, "key_heads": int, "head_dim": int},
        earlier=(1, _all_keys),
    ),
    "norm": Primitive(
        "Over the channels; layer and rms also over those of each head. layer: (x - mean) / "
        "sqrt(variance + epsilon) * weight + bias; rms: x / sqrt(mean of squares + epsilon) * "
        "weight; diagonal: x * scale; dynamic_tanh: tanh(alpha x) * weight + bias; dynamic_erf: "
        "erf(alpha x + shift) * weight + bias.",
        fields={"kind": str, "width": int, "epsilon": Real},
        weights={
            "weight": _width, "bias": _width, "scale": _width, "alpha": _scalar, "shift": _scalar,
        },
        optional=frozenset({"weight", "bias", "scale", "alpha", "shift"}),
    ),
    "activation": Primitive(
        "relu; leaky_relu: slope x below 0; gelu_tanh: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 "
        "x^3))); gelu_erf: 0.5 x (1 + erf(x / sqrt(2))); silu: x / (1 + exp(-x)); tanh; "
        "sigmoid: 1 / (1 + exp(-x)); exp; reciprocal: 1 / x; rsqrt: 1 / sqrt(x); relu_squared: "
        "relu(x)^2.",
        fields={"function": str, "width": int, "slope": Real},
    ),
    "multiply": Primitive("The product, element by element.", inputs=2, fields={"width": int}),
    "add": Primitive("The sum.", inputs=None),
    "scale": Primitive("factor * x.", fields={"factor": Real}),
    "shift": Primitive(
        "Along the tokens, by `tokens` to later positions; zeros come in.",
        fields={"tokens": int},
        earlier=(0, lambda fields: fields["tokens"]),
    ),
    "unfold": Primitive(
        "Each token with the `taps` - 1 before it, its own channels first: [B, T, C] to "
        "[B, T, taps C]; zeros come in.",
        fields={"taps": int},
        earlier=(0, lambda fields: fields["taps"] - 1),
    ),
    "pool": Primitive(
        "[B, T, C] to [B, C]: the last position, the first, or the mean; of padded sequences among "
        "their own.",
        fields={"kind": str},
        lengths=True,
    ),
    "source": Primitive(
        "[B, positions, width] of the client's own, beside the tokens: frames of a sound, patches "
        "of a picture; 0 positions: the tokens of an encoder, as many as the context has.",
        inputs=0,
        fields={"positions": int, "width": int},
    ),
    "rearrange": Primitive(
        "[B, *, *] to [B, positions, width]: the same numbers and known ones in other places, as "
        "the windows of a convolution or a row in front.",
        fields={"positions": int, "width": int},
    ),
    "route": Primitive(
        "[B, T, experts] twice: of a router's logits the weights of the experts that each token "
        "takes, 0 of the others. softmax: over all experts; sigmoid; softmax_of_chosen: over the "
        "chosen ones. With groups only in the chosen_groups whose group_best largest have the "
        "largest sum. normalized: they add up to 1; revealed: all parties see the choice, and only "
        "the chosen ones are left.",
        fields={
            "experts": int, "chosen": int, "scoring": str, "normalized": bool, "revealed": bool,
            "groups": int, "chosen_groups": int, "group_best": int,
        },
    ),
    "argmax": Primitive("The first index of the largest of the last axis.", fields={"width": int}),
}  # fmt: skip

# What an operation may have beside its plain form: by its fields, the roles of its weights and how
# many values it reads.
Form = Callable[[Mapping[str, Any], Iterable[str], int], bool]
FORMS: dict[str, dict[str, Form]] = {
    "scores": {
        "groups": lambda fields, _, __: fields["key_heads"] < fields["heads"],
        "temperature": lambda fields, _, __: fields["temperature"],
        "soft cap": lambda fields, _, __: fields["soft_cap"] > 0,
    },
    "softmax": {
        "both sides": lambda fields, _, __: not fields["causal"],
        "window": lambda fields, _, __: fields["window"] > 0,
        "bias": lambda _, weights, __: "bias" in weights,
        "sink": lambda _, weights, __: "sink" in weights,
        "lengths": lambda _, __, inputs: inputs == 2,
    },
    "pool": {"lengths": lambda _, __, inputs: inputs == 2},
}
# And what it may be: one of the words of a field.
CHOICES: dict[str, tuple[str, tuple[str, ...]]] = {
    "norm": ("kind", tuple(NORM_ROLES)),
    "activation": ("function", FUNCTIONS),
    "pool": ("kind", POOLS),
    "route": ("scoring", SCORINGS),
}


def _form(op: str, form: str) -> str:
    return f"{op}, {form}"


def _with_forms(names: Iterable[str]) -> frozenset[str]:
    found = set(names)
    for op in frozenset(found):
        _, words = CHOICES.get(op, ("", ()))
        found |= {_form(op, form) for form in (*FORMS.get(op, ()), *words)}
    return frozenset(found)


# Of pictures, sounds, encoders beside a decoder, and experts: they have a price, no numbers yet.
_COMPUTED = frozenset(PRIMITIVES) - {"source", "rearrange", "route"}
# The operations that each reader knows, and the forms of them.
READERS: dict[str, frozenset[str]] = {
    "NumPy": _with_forms(_COMPUTED),
    "fixed point": _with_forms(_COMPUTED),
    "private": _with_forms(_COMPUTED),
    "cost": _with_forms(PRIMITIVES),
}
# What continues no text: earlier tokens would have to be read again, or no logits of a next token
# are left.
NOT_CONTINUED = frozenset({_form("softmax", "both sides"), "pool", "argmax"})


def functions_of(
    module: Mapping[str, Any], names: Iterable[str], **words: Mapping[str, Any]
) -> dict[str, Callable[..., Any]]:
    """The function of each operation: `_norm` of a module for "norm".

    Args:
        module: its names.
        names: of operations.
        **words: the functions of an operation's words, by the operation.

    Raises:
        LookupError: a function is missing, or one of a word.
    """
    for op, functions in words.items():
        missing = {*CHOICES[op][1]} ^ {*functions}
        if missing:
            raise LookupError(f"{module['__name__']}: {op} lacks or has alone {sorted(missing)}")
    return {name: module[f"_{name}"] for name in names if name in PRIMITIVES}


def names_of(
    op: str, fields: Mapping[str, Any], weights: Iterable[str], inputs: int
) -> Iterator[str]:
    """What `READERS` calls an operation and the forms that it has."""
    yield op
    if op in CHOICES:
        yield _form(op, fields[CHOICES[op][0]])
    for form, has in FORMS.get(op, {}).items():
        if has(fields, weights, inputs):
            yield _form(op, form)
