"""What is priced: a network as operations, its name, its sizes, and what is to be said of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aero import _core
from aero.architecture import ArchitectureSpec
from aero.mpc.cost import Cost, FieldValue
from aero.mpc.described_stacks import StackDescription
from aero.tables import in_units

# Part -> the lines of a program that its price is of.
Lowerings = Mapping[str, Sequence[str]]
# Letter in titles -> size.
SIZES = {
    "L": "num_layers",
    "H": "num_heads",
    "d": "width",
    "T": "context_length",
    "V": "vocab_size",
}
# Of the presets that are models of others, by family; a longer context needs other weights.
_POSITIONS = {"gpt2": 1024, "pythia": 2048}

# The stacks that `aero private` runs.
PRIVATE_STACKS = ("spu-0.9.5", "spu-semi2k", "spu-aby3")
_KEPT_AS_SHARES = (
    "keys and values of earlier tokens stay with the parties as shares and cost nothing again"
)
OTHER_GELU = (
    "act: the model's GELU is the exact one, priced here as GPT-2's tanh form; gelu=erf prices it"
)
EXACT_GELU = (
    "act: the exact GELU is x/2 (1 + erf(x/sqrt(2))), as `aero private` computes it; gelu=erfc "
    "prices jax.nn.gelu, gelu=tanh the tanh form"
)
_WINDOW = (
    "softmax: scores outside the window are computed and masked; attention_block=64 skips most"
)
_SILU = {
    "tanh": "act: SiLU is x/2 (1 + tanh(x/2)), as `aero private` computes it; silu=logistic prices "
    "jax.nn.silu",
    "logistic": "act: SiLU is jax.nn.silu, x times the logistic function; silu=tanh prices "
    "x/2 (1 + tanh(x/2)), as `aero private` computes it",
}


@dataclass(frozen=True)
class PricedNetwork:
    """A network to be priced.

    Attributes:
        label: Its name in reports.
        sizes: The sizes of `SIZES`.
        core: Its operations.
        spec: Of a label.
        exact_gelu: Its GELU is the exact one, which decides the stack's field `gelu`, unless the
            user or a kernel of the stack does.
        silu: It has SiLU, whose form the stack's field `silu` decides.
        window: The least number of tokens that a layer's queries see; 0: all.
        notes: What its price leaves out or takes for granted, whatever the stack.
        positions: How many positions the model has; None where any number is as good.
        causal: Every token sees earlier ones only and has logits, as generation needs.
    """

    label: str
    sizes: Mapping[str, int]
    core: _core.Network
    spec: ArchitectureSpec | None = None
    exact_gelu: bool = False
    silu: bool = False
    window: int = 0
    notes: tuple[str, ...] = ()
    positions: int | None = None
    causal: bool = True

    @staticmethod
    def of_spec(
        spec: ArchitectureSpec, preset: str | None, *, exact_gelu: bool = False
    ) -> PricedNetwork:
        """The network of a spec; a label's has a preset of sizes."""
        return PricedNetwork(
            label=spec.label,
            sizes={size: getattr(spec, size) for size in SIZES.values()},
            core=_core.describe(spec, exact_gelu=exact_gelu),
            spec=spec,
            exact_gelu=exact_gelu,
            window=spec.window,
            positions=positions_of(preset),
        )

    def fields_on(self, stack: StackDescription) -> dict[str, FieldValue]:
        """Fields of a stack that the network decides."""
        return exact_gelu_fields(stack, self.exact_gelu)

    def said_of(
        self, stack: StackDescription, fields: Mapping[str, FieldValue], keys: int
    ) -> tuple[str, ...]:
        """The notes to its price on a stack, over so many keys."""
        found = [*self.notes, *stack.key_words(self.label, {**self.sizes, "context_length": keys})]
        if self.positions is not None and keys > self.positions:
            found.append(beyond(keys, self.positions, self.label))
        if self.exact_gelu and "gelu" not in stack.prices:
            found += {"erf": [EXACT_GELU], "tanh": [OTHER_GELU]}.get(str(fields["gelu"]), [])
        elif self.spec is not None and is_other_gelu(self.spec, stack, fields):
            found.append(OTHER_GELU)
        if 0 < self.window < keys and not fields["attention_block"]:
            found.append(_WINDOW)
        if self.silu and "silu" not in stack.prices:
            found.append(_SILU[str(fields["silu"])])
        return tuple(found)


def exact_gelu_fields(stack: StackDescription, exact: bool) -> dict[str, FieldValue]:
    """The field that prices the exact GELU, unless a kernel of the stack computes both forms."""
    return {"gelu": "erf"} if exact and stack.all_fields()["gelu"] == "tanh" else {}


def sizes_in_words(sizes: Mapping[str, int]) -> list[str]:
    """The sizes by their letters; a network without heads or vocabulary has none of them."""
    return [f"{letter} {sizes[size]}" for letter, size in SIZES.items() if sizes[size]]


def kept_as_shares(stack: str) -> str:
    """Says that a price over several tokens has a cache, and whether a private run has it."""
    if stack in PRIVATE_STACKS:
        return f"{_KEPT_AS_SHARES}, as in `aero private`"
    return f"{_KEPT_AS_SHARES}; `aero private` does not run {stack}"


def positions_of(preset: str | None) -> int | None:
    """How many positions the model behind a preset has."""
    return _POSITIONS.get((preset or "").partition("-")[0])


def beyond(keys: int, positions: int, label: str) -> str:
    """Says that a context is longer than the model's."""
    return (
        f"T {keys:,} is beyond the {positions:,} positions of the model: {label} would need "
        "weights trained for more"
    )


def is_other_gelu(
    spec: ArchitectureSpec, stack: StackDescription, fields: Mapping[str, FieldValue]
) -> bool:
    """True if the exact GELU of Pythia is priced in its tanh form."""
    is_derived = "gelu" not in stack.prices
    return (spec.family, spec.ffn, fields["gelu"]) == ("pythia", "gelu", "tanh") and is_derived


def relu_alone(
    spec: ArchitectureSpec,
    stack: StackDescription,
    fields: Mapping[str, FieldValue],
    sent: float,
    without: float,
) -> list[str]:
    """Says what ReLU instead of GELU saves; nothing where it saves nothing.

    Args:
        spec: Of a network with GELU.
        stack: On which it is priced.
        fields: Of the stack, all of them.
        sent: Its bytes.
        without: Those of a network without activation.
    """
    network = PricedNetwork.of_spec(spec.replace(ffn="relu"), None)
    total = _core.simulate(network.core, stack.with_fields(list(fields.items())))["total"]
    saved, between = sent - total.comm_bytes, sent - without
    if min(saved, between) <= 0:
        return []
    parts = f"{in_units(saved)} of the {in_units(between)} GB between them"
    return [f"ReLU instead of GELU alone saves {parts}"]


# --- words of several prices ----------------------------------------------------------------------


def words_dict(
    notes: Iterable[str], unchecked: Iterable[str], trust: str, lowerings: Lowerings
) -> dict[str, Any]:
    """What is said of prices, ready for JSON."""
    return {
        "notes": list(notes),
        "unchecked": list(unchecked),
        "trust": trust,
        "lowerings": {part: list(lines) for part, lines in lowerings.items()},
    }


def trusted(trust: str, *totals: Cost) -> str:
    """Whom users trust, and what a dealer sends beforehand, in one line."""
    if not trust or not any(total.dealer_bytes for total in totals):
        return trust
    sent = " and ".join(f"{in_units(total.dealer_bytes)} GB" for total in totals)
    return f"{trust}; the dealer sends {sent} beforehand, which no other number has in it"


def different_trust(trust: Mapping[str, str]) -> list[str]:
    """Says that stacks trust differently; nothing where they do not.

    Args:
        trust: Name of a stack -> whom it trusts.
    """
    if len({*trust.values()}) < 2:
        return []
    each = "; ".join(f"{name}: {whom}" for name, whom in trust.items())
    return [f"stacks of different trust, so their bytes are not the price of one thing: {each}"]


def of_each(texts: Iterable[tuple[str, Iterable[str]]], every: str = "") -> tuple[str, ...]:
    """Texts, each once, with the names that they are said of.

    Args:
        texts: Of each name, which may come again.
        every: In place of the names where they are all; empty: nothing.
    """
    found, names = _grouped(texts)
    return tuple(
        f"{every}{': ' * bool(every)}{text}" if len(said) == names else f"{', '.join(said)}: {text}"
        for text, said in found.items()
    )


def lowerings_of(prices: Iterable[tuple[str, Lowerings]]) -> dict[str, tuple[str, ...]]:
    """The lines of a program of several prices, part by part, with the names that differ.

    Args:
        prices: Of each name, which may come again, as a stack with other settings does.
    """
    prices = list(prices)
    found: dict[str, tuple[str, ...]] = {}
    for part in sorted({part for _, lines in prices for part in lines}):
        ways: dict[str, list[str]] = {}
        for name, lines in prices:
            way, known = ", ".join(lines.get(part, ())), ways.setdefault(name, [])
            known += [way] if way and way not in known else []
        said = [(name, [" or ".join(known)]) for name, known in ways.items() if known]
        together, names = _grouped(said)
        for way, of in together.items():
            found[part if len(of) == names else f"{part}, {' and '.join(of)}"] = (way,)
    return found


def _grouped(said: Iterable[tuple[str, Iterable[str]]]) -> tuple[dict[str, list[str]], int]:
    """Text -> the names that it is said of, and how many names there are."""
    found: dict[str, list[str]] = {}
    names = set()
    for name, texts in said:
        names.add(name)
        for text in texts:
            known = found.setdefault(text, [])
            known += [name] if name not in known else []
    return found, len(names)
