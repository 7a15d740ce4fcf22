"""Networks of our own among those that are priced, and the commands that train or convert them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aero.architecture import ArchitectureSpec, size_names
from aero.mpc.changes import TRAINING, Change
from aero.mpc.priced_network import PricedNetwork
from aero.mpc.simulation import described_spec

Operations = Sequence[Mapping[str, Any]]

# Families that `aero convert` takes.
CONVERTED = ("gpt2", "gpt_neox")
# A preset of each family of ours: what its sizes cannot say, such as rotary positions.
_PRESETS = {"gpt2": "gpt2", "pythia": "pythia-70m"}
# Of `aero train --set model.NAME`: those that most networks differ in, and those that follow them.
_SIZES = ("num_layers", "num_heads", "width")
_GIVEN = ("context_length", "vocab_size")
_OTHERS = ("head_dim", "hidden_width", "tied_embeddings", "final_norm", "window")
# What stands in for a decoder of others.
_DECODER = "SM+FN+R"
# Of a described operation, nothing that a price or another training depends on.
_WORDS = {"name", "weights", "transposed", "epsilon", "base"}


def flat(operations: Operations) -> Iterator[Mapping[str, Any]]:
    """The operations, those of repeated layers once."""
    for entry in operations:
        yield from entry["operations"] if "repeat" in entry else [entry]


def predicts_next(operations: Operations) -> bool:
    """True of a language model whose last position alone gives the next token."""
    every = list(flat(operations))
    return any(one.get("causal") for one in every) and all(one["op"] != "pool" for one in every)


def description_of(network: PricedNetwork) -> dict[str, Any]:
    """The network as its description, with all positions of the model."""
    sizes = network.sizes
    return {
        "label": network.label,
        "operations": network.core.operations,
        "context_length": network.positions or sizes["context_length"],
        "vocab_size": sizes["vocab_size"],
    }


def own_network(network: PricedNetwork) -> ArchitectureSpec | None:
    """The network of ours that a network is, as a GPT-2 or a Pythia is; None of others."""
    operations = network.core.operations
    fields = _fields(operations) | {name: network.sizes[name] for name in _GIVEN}
    every = list(flat(operations))
    turned = next((one["channels"] for one in every if one["op"] == "rotate"), 0)
    exact = any(one.get("function") == "gelu_erf" for one in every)
    for label in ("SM+LN+G", "SM+LN+R"):
        for parallel in (True, False) if turned else (False,):
            try:
                rotary = turned / fields["head_dim"] if turned else 0.0
                made = ArchitectureSpec.from_label(
                    label, model=_PRESETS["pythia" if turned else "gpt2"], rotary_fraction=rotary,
                    parallel_residual=parallel, **fields,
                )  # fmt: skip
            except (ValueError, KeyError):  # sizes that no network of ours has
                continue
            if _bare(described_spec(made, exact_gelu=exact)["operations"]) == _bare(operations):
                return made
    return None


def own_decoder(network: PricedNetwork) -> Iterator[Change]:
    """A network of ours as deep and wide as a decoder of others; nothing where none replaces it.

    Mixtures of experts have far more weights than it; encoders, sounds and pictures another use.
    """
    operations = network.core.operations
    every = list(flat(operations))
    if not predicts_next(operations) or any(
        one.get("causal") is False or one["op"] in {"source", "rearrange"}
        or one.get("name") == "router" for one in every
    ):  # fmt: skip
        return
    fields = _fields(operations) | {name: network.sizes[name] for name in _GIVEN}
    sizes = {name: fields[name] for name in (*_SIZES, *_GIVEN) if name in fields}
    try:
        made = ArchitectureSpec.from_label(_DECODER, **sizes)
    except ValueError:  # heads that do not divide the width
        return
    name = f"our decoder {_DECODER}, as deep and as wide"
    yield Change(name, TRAINING, network=made, label=_DECODER)


def training(target: ArchitectureSpec, preset: str = "", *, exact_gelu: bool = False) -> list[str]:
    """The command that trains a network, in a list; empty where none does.

    Args:
        target: The network.
        preset: Whose sizes it has but for a few; empty: one of its family.
        exact_gelu: Its GELU is the exact one, which no training from random weights has.
    """
    if exact_gelu and target.ffn == "gelu":
        return []
    preset = preset or _PRESETS[target.family]
    given: dict[str, Any] = {}

    def made() -> ArchitectureSpec:
        sizes = {name: getattr(target, name) for name in _GIVEN}
        return ArchitectureSpec.from_label(target.label, model=preset, **sizes, **given)

    own = ArchitectureSpec.from_label("SM", model=preset)
    given |= {name: getattr(target, name) for name in _SIZES if _differ(own, target, name)}
    try:
        found = made()
        given |= {name: getattr(target, name) for name in _OTHERS if _differ(found, target, name)}
        if made() != target:
            return []
    except ValueError:
        return []
    given["context_length"] = target.context_length
    words = (f" --set model.{name}={word_of(value)}" for name, value in given.items())
    return [f"aero train --label '{target.label}' --set model.preset={preset}{''.join(words)}"]


def conversion(own: ArchitectureSpec, target: ArchitectureSpec, folder: str) -> list[str]:
    """The command that converts a network of ours to another, in a list; empty where none does."""
    kept = {name: getattr(own, name) for name in size_names() if name != "family"}
    norm = {"final_norm": own.final_norm} if own.norm == target.norm else {}
    try:
        made = ArchitectureSpec.from_label(target.label, model=_PRESETS[own.family], **kept, **norm)
    except ValueError:
        return []
    # Dynamic norms stay, and LayerNorm in front of a convolution, which reads zeros.
    stays = own.norm.startswith("dynamic") or (own.norm == "layer" and own.convolution != "none")
    if made != target or (stays and own.norm != target.norm):
        return []
    return [f"aero convert {shlex.quote(folder)} --label '{target.label}' --output converted"]


def _fields(operations: Operations) -> dict[str, Any]:
    """Sizes as a spec names them, of a description with layers of one kind."""
    every = list(flat(operations))

    def largest(op: str, field: str) -> dict[str, int]:
        found = [one[field] for one in every if one["op"] == op]
        names = {("scores", "heads"): "num_heads", ("embed", "width"): "width",
                 ("activation", "width"): "hidden_width"}  # fmt: skip
        return {names.get((op, field), field): max(found)} if found else {}

    layers = sum(
        entry["repeat"] * any(one["op"] == "softmax" for one in entry["operations"])
        for entry in operations
        if "repeat" in entry
    )
    return {
        "num_layers": layers,
        **largest("scores", "heads"),
        **largest("scores", "head_dim"),
        **largest("embed", "width"),
        **largest("activation", "width"),
    }


def _bare(operations: Operations) -> list[Any]:
    """Operations without names of weights, in an order that does not depend on their own."""

    def one_of(one: Mapping[str, Any]) -> str:
        left_out = _WORDS | ({"rows"} if one["inputs"] == ["positions"] else set())
        return repr(
            sorted(
                (name, round(value, 6) if isinstance(value, float) else value)
                for name, value in one.items()
                if name not in left_out
            )
        )

    return [
        (entry["repeat"], sorted(map(one_of, entry["operations"])))
        if "repeat" in entry
        else one_of(entry)
        for entry in operations
    ]


def _differ(first: ArchitectureSpec, second: ArchitectureSpec, name: str) -> bool:
    return bool(getattr(first, name) != getattr(second, name))


def word_of(value: object) -> str:
    """A value as `--set` takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
