"""Changes of a network, a run or its surroundings that could make a private pass cheaper."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aero.architecture import ArchitectureSpec
from aero.mpc.attention_changes import fewer_key_heads, key_heads_of, with_window
from aero.mpc.cost import FieldValue
from aero.mpc.optimization import optimizations

Operations = list[dict[str, Any]]

# What a change does to the function that is computed.
NONE, APPROXIMATE, TRAINING = "none", "approximate", "needs training"
# Settings of a private run among the optimizations, in `PrivateSettings` under the same names.
_RUN_FIELDS = (
    "client_one_hot", "private_weights", "last_token_head", "fold_score_scale",
    "one_bit_product_error", "exp_squarings=5",
)  # fmt: skip
_LEAST_WINDOW = 8
# Queries that go together where attention goes by blocks: the fewest bytes of most networks.
BLOCK = 64
# Weights of 8 bytes in the 256 MiB that SPU's matrix products are cut to.
_TILE = 1 << 25
# What other systems compute, and no private run here: title, how far it is off, fields.
_ELSEWHERE: tuple[tuple[str, str, dict[str, FieldValue]], ...] = (
    (
        "SHAFT's constant-round softmax: 16 steps of two products, without maximum and exp",
        "softmax error up to 0.09 on N(0,1) scores of 128 keys, 0.05 with 32 steps",
        {"softmax_steps": 16},
    ),
    (
        "no truncation at all: the most that TruncFormer, which leaves some out, can save",
        "last bits, as long as nothing overflows; a bound that no program reaches",
        {"truncations": False},
    ),
)


@dataclass(frozen=True)
class Change:
    """One change.

    Attributes:
        name: In words.
        effect: On the function: `NONE`, `TRAINING`, or `APPROXIMATE` and how far it is off; behind
            a semicolon who sees or hides more.
        fields: Of the stack.
        network: Instead of the given network.
        label: Of that network, where it is one of ours at the sizes of a label.
        stack: Instead of the given one.
        keys: T, instead of the given one.
        link: Factors of bandwidth and round trip.
        runs: `aero private` has it.
        keeps: Operations whose weights a party keeps; empty: those of the network.
    """

    name: str
    effect: str = NONE
    fields: Mapping[str, FieldValue] = field(default_factory=dict)
    network: Any = None
    label: str = ""
    stack: str = ""
    keys: int = 0
    link: tuple[float, float] = (1.0, 1.0)
    runs: bool = True
    keeps: Sequence[Mapping[str, Any]] = ()

    @property
    def short(self) -> str:
        """Its name in few letters: the stack, or the settings, as `--set` takes them."""
        if self.stack or not self.fields or self.network is not None:
            return self.stack or self.name
        words = (str(one).lower() if isinstance(one, bool) else one for one in self.fields.values())
        return ", ".join(f"{name}={word}" for name, word in zip(self.fields, words, strict=True))


def run_changes(*, next_token: bool = True) -> Iterator[Change]:
    """Settings that `aero private run --set` takes, and what others compute instead.

    Without `next_token` all positions of the result are wanted, as of masked tokens, or one that is
    no token's, as of classes: the head of the last position alone is another function then.
    """
    for one in optimizations():
        if one.name in _RUN_FIELDS and (next_token or one.name != "last_token_head"):
            fields = {name: value for name, value in one.fields.items() if name in one.name}
            exact = one.changes.startswith("no")
            yield Change(one.title, NONE if exact else f"{APPROXIMATE}: {one.changes}", fields)
    yield Change(
        f"attention in blocks of {BLOCK} queries, which read no keys that they cannot see",
        NONE, {"attention_block": BLOCK},
    )  # fmt: skip
    yield Change(
        f"products of at most {_TILE:,} weights at once; what SPU itself cuts sends more",
        NONE, {"largest_product": _TILE},
    )  # fmt: skip
    for title, off, others in _ELSEWHERE:
        effect = f"{APPROXIMATE}: {off}; no run of `aero private`"
        yield Change(title, effect, others, runs=False)
    yield Change(
        f"the client finds the {'next token' if next_token else 'largest logit'} itself",
        "none; the client sees its logits", {"argmax": False},
    )  # fmt: skip


def spec_changes(spec: ArchitectureSpec) -> Iterator[Change]:
    """Networks of other labels and sizes; each needs training."""
    foldable = {"norm": "foldable_channel", "final_norm": "foldable"}
    bare = {"norm": "none", "final_norm": "none"}
    wanted: list[tuple[str, dict[str, Any]]] = []
    if spec.ffn == "gelu":
        wanted.append(("ReLU instead of GELU", {"ffn": "relu"}))
    if spec.norm == "layer":
        wanted.append(("norms that fold into the weights", foldable))
    wanted.append(("ReLU, and norms that fold into the weights", {"ffn": "relu", **foldable}))
    wanted.append(("no activation and no norm: softmax only", {"ffn": "scaled_fused", **bare}))
    if spec.num_heads % 2 == 0:
        halved = {"num_heads": spec.num_heads // 2, "head_dim": spec.head_dim * 2}
        wanted.append((f"{spec.num_heads // 2} wider heads instead of {spec.num_heads}", halved))
    known = [spec]
    for name, fields in wanted:
        try:
            made = spec.replace(**fields)
        except ValueError:  # not a network of this family
            continue
        if made not in known:
            known.append(made)
            # A label says nothing of the number of heads.
            label = made.label if made.num_heads == spec.num_heads else ""
            yield Change(name, TRAINING, network=made, label=label)


def attention_changes(description: Mapping[str, Any], length: int) -> Iterator[Change]:
    """Key heads for several query heads, and windows of the last keys, over T = `length`."""
    heads = key_heads_of(description)
    for to in sorted({count // 2 for count in heads if count % 2 == 0} | {1}, reverse=True):
        made = fewer_key_heads(description, to) if len(heads) == 1 else None
        if made is not None:
            named = "one key head" if to == 1 else f"{to} key heads"
            yield Change(f"{named} instead of {max(heads)}", TRAINING, network=made)
    for window in (length // 4, length // 8):
        made = with_window(description, window) if window >= _LEAST_WINDOW else None
        if made is not None:
            yield Change(
                f"a window of {window} tokens", TRAINING, {"attention_block": BLOCK}, network=made,
            )  # fmt: skip


def described_changes(description: Mapping[str, Any]) -> Iterator[Change]:
    """The same of a described network, operation by operation."""
    smooth = {"gelu_erf", "gelu_tanh", "silu", "tanh"}

    def activation(new: str, old: set[str]) -> Callable[[dict[str, Any]], None]:
        def change(one: dict[str, Any]) -> None:
            if one["op"] == "activation" and one["function"] in old:
                one["function"] = new

        return change

    def foldable(one: dict[str, Any]) -> None:
        if one["op"] == "norm" and one["kind"] in {"layer", "rms"}:
            one["kind"] = "diagonal"

    tanh = activation("gelu_tanh", {"gelu_erf"})
    relu = activation("relu", smooth)
    wanted: list[tuple[str, str, list[Callable[[dict[str, Any]], None]]]] = [
        ("GELU's tanh form", f"{APPROXIMATE}: off by up to 5e-4, and SPU's tanh by 5e-3", [tanh]),
        ("ReLU instead of a smooth activation", TRAINING, [relu]),
        ("norms that fold into the weights", TRAINING, [foldable]),
        ("ReLU, and norms that fold into the weights", TRAINING, [relu, foldable]),
    ]
    known = [description["operations"]]
    for name, effect, changes in wanted:
        made = changed(description, changes)
        if made["operations"] not in known:
            known.append(made["operations"])
            yield Change(name, effect, network=made)
    halved = _halved_heads(description)
    if halved is not None:
        yield Change("half as many heads, twice as wide", TRAINING, network=halved)


def changed(
    description: Mapping[str, Any], changes: list[Callable[[dict[str, Any]], None]]
) -> dict[str, Any]:
    """A description whose operations went through some functions."""
    made = {**description, "operations": copy.deepcopy(description["operations"])}
    for entry in made["operations"]:
        for one in entry["operations"] if "repeat" in entry else [entry]:
            for change in changes:
                change(one)
    return made


def _halved_heads(description: Mapping[str, Any]) -> dict[str, Any] | None:
    """None where a number of heads is odd, or a norm sees single heads."""
    widths: set[int] = set()
    odd = False

    def look(one: dict[str, Any]) -> None:
        nonlocal odd
        odd = odd or any(one.get(name, 2) % 2 for name in ("heads", "key_heads"))
        widths.update({one["head_dim"]} if "head_dim" in one else ())

    def see(one: dict[str, Any]) -> None:
        nonlocal odd
        odd = odd or (one["op"] == "norm" and one["width"] in widths)

    def halve(one: dict[str, Any]) -> None:
        for name in ("heads", "key_heads"):
            if name in one:
                one[name] //= 2
        if "head_dim" in one:
            one["head_dim"] *= 2

    changed(description, [look])
    changed(description, [see])
    return None if odd or not widths else changed(description, [halve])
