"""Generating text in private: prompts first, then token by token with cached keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from aero import _core
from aero.architecture import ArchitectureSpec
from aero.internals.number_checks import whole
from aero.mpc.cost import Cost, FieldValue
from aero.mpc.cost_report import CostReport, words_of
from aero.mpc.described_stacks import StackDescription, stack_description
from aero.mpc.priced_network import PricedNetwork, kept_as_shares
from aero.mpc.profiles import ComputeProfile, NetworkProfile
from aero.mpc.simulation import network_and_fields
from aero.tables import in_units

Sampling = Literal["argmax", "client"]
#: How `aero private chat` computes by default: SPU's release, under Cheetah.
PRIVATE_STACK = "spu-0.9.5"
_PRIVATE_FIELDS: dict[str, FieldValue] = {
    "client_one_hot": True, "last_token_head": True, "threads": 1
}  # fmt: skip
# And what is cheaper under one protocol.
_PROTOCOL_FIELDS: dict[str, dict[str, FieldValue]] = {
    "spu-0.9.5": {"private_weights": True},
    "spu-semi2k": {"largest_product": 1 << 24},
}


def private_fields(stack: str = PRIVATE_STACK, *, next_token: bool = True) -> dict[str, FieldValue]:
    """The fields in which commands of `aero private` differ from the stack of their protocol.

    Among them are the weights that are secret there. Without `next_token`, as of a classifier or an
    encoder, the head computes every position.
    """
    found = {**_PRIVATE_FIELDS, **_PROTOCOL_FIELDS.get(stack, {})}
    return {name: found[name] for name in found if next_token or name != "last_token_head"}


@dataclass(frozen=True)
class GenerationReport:
    """The cost of `new_tokens` tokens for each of `batch` prompts of T tokens.

    Attributes:
        network: The network; its T is the prompts'.
        stack: Name of the stack.
        batch: Sequences side by side.
        new_tokens: Of each sequence.
        sampling: "argmax" in secret, or "client": the client gets the logits.
        prefill: The pass over the prompts, which makes the first token of each sequence.
        per_token: The cost of each token, all sequences together; the first is the prefill.
        total: Their exact sum.
        by_kind: The sum per part, as in `CostReport`.
    """

    network: PricedNetwork
    stack: str
    batch: int
    new_tokens: int
    sampling: Sampling
    prefill: CostReport
    per_token: tuple[Cost, ...]
    total: Cost
    by_kind: dict[str, Cost]

    @property
    def label(self) -> str:
        """The network's name."""
        return self.network.label

    @property
    def spec(self) -> ArchitectureSpec | None:
        """The spec of a label."""
        return self.network.spec

    @property
    def context_length(self) -> int:
        """T, tokens of each prompt."""
        return self.network.sizes["context_length"]

    @property
    def notes(self) -> tuple[str, ...]:
        """What the price leaves out or takes for granted."""
        kept = [kept_as_shares(self.stack)] if self.new_tokens > 1 else []
        return (*self.prefill.notes, *kept)

    @property
    def comm_bytes(self) -> float:
        """Bytes sent by both parties for all tokens."""
        return self.total.comm_bytes

    @property
    def rounds(self) -> int:
        """One-way messages in sequence for all tokens."""
        return self.total.rounds

    def seconds_per_token(
        self,
        network: str | NetworkProfile = "paper-testbed",
        compute: str | ComputeProfile | None = None,
    ) -> tuple[float, ...]:
        """Closed-form time of each token's pass; see `CostReport.latency`."""
        return tuple(
            self.token_report(token).latency(network, compute).seconds
            for token in range(self.new_tokens)
        )

    def token_report(self, token: int) -> CostReport:
        """The full cost report of one token's pass, from 0: the prefill."""
        if not 0 <= token < self.new_tokens:
            raise ValueError(
                f"token_report: token must be from 0 to {self.new_tokens - 1}, got {token}"
            )
        description = self.prefill.description
        stack = description.with_fields(self.prefill.changed_fields().items())
        keys = self.context_length + token
        found = _core.simulate_pass(
            self.network.core,
            stack,
            batch=self.batch,
            queries=1 if token else keys,
            keys=keys,
            sampling=self.sampling,
        )
        return CostReport.of(self.network, description, stack, found, keys)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-ready values."""
        return {
            "label": self.label,
            "spec": None if self.spec is None else self.spec.to_dict(),
            "sizes": dict(self.network.sizes),
            "stack": self.stack,
            "stack_fields": dict(self.prefill.stack_fields),
            "batch": self.batch,
            "new_tokens": self.new_tokens,
            "sampling": self.sampling,
            **self.total.to_dict(),
            "by_kind": {kind: cost.to_dict() for kind, cost in self.by_kind.items()},
            "per_token": [cost.to_dict() for cost in self.per_token],
            **words_of(self.prefill),
            "notes": list(self.notes),
        }

    def __len__(self) -> int:
        return self.new_tokens

    def __repr__(self) -> str:
        return (
            f"<GenerationReport {self.label} on {self.stack}: {self.new_tokens} tokens, "
            f"{in_units(self.comm_bytes)} GB>"
        )


def simulate_generation(
    label_or_model: Any,
    *,
    new_tokens: int,
    batch: int = 1,
    sampling: Sampling = "argmax",
    model: str = "gpt2",
    context_length: int | None = None,
    vocab_size: int | None = None,
    stack: str | Path | StackDescription | None = None,
    **overrides: FieldValue,
) -> GenerationReport:
    """Computes the cost of continuing prompts of T tokens by n tokens each.

    The first pass works on the prompts and makes the first new token. Each later pass works on one
    position per sequence, whose query sees T + i keys: keys and values of all earlier positions
    stay with the parties as shares and cost nothing again.

    Args:
        label_or_model: As in `simulate`; it must attend to earlier tokens only.
        new_tokens: n >= 1, tokens made per sequence.
        batch: Prompts of equal length, side by side.
        sampling: "argmax": the argmax is computed in secret and its index opened to the client.
            "client": the last logits are opened to the client, who samples as it likes and learns
            more about the weights that way.
        model: For a label, the preset that gives the sizes.
        context_length: T of the prompts. Defaults as in `simulate`.
        vocab_size: V. Defaults as in `simulate`.
        stack: As in `simulate`. Default: `spu-0.9.5` as `aero private chat` computes on it, where
            the client makes the rows of its own tokens, the head computes the last position and
            the server knows its weights.
        **overrides: Fields of stack and network, as in `simulate`.

    Raises:
        ValueError: Names the argument, its range and the given value.

    Example:
        >>> from aero import mpc
        >>> report = mpc.simulate_generation("SM+ScFuFFN", new_tokens=16)
        >>> [round(cost.comm_bytes / 1e6) for cost in report.per_token[:2]], report.rounds
        ([4581, 431], 112700)
    """
    description = stack_description(PRIVATE_STACK if stack is None else stack)
    if stack is None:
        overrides = private_fields() | overrides
    network, fields = network_and_fields(
        label_or_model, model, context_length, vocab_size, description, overrides
    )
    if not network.causal:
        raise ValueError(
            f"simulate_generation: {network.label} must be a language model whose tokens see "
            "earlier tokens only, got an encoder or a classifier; aero.mpc.simulate prices a pass"
        )
    core = description.with_fields(fields)
    new_tokens, batch = _integer("new_tokens", new_tokens), _integer("batch", batch)
    passes: dict[str, Any] = {"batch": batch, "sampling": sampling}
    found = _core.simulate_generation(network.core, core, new_tokens=new_tokens, **passes)
    length = network.sizes["context_length"]
    prompts = _core.simulate_pass(network.core, core, queries=length, keys=length, **passes)
    return GenerationReport(
        network=network,
        stack=description.name,
        batch=batch,
        new_tokens=new_tokens,
        sampling=sampling,
        prefill=CostReport.of(network, description, core, prompts, length + new_tokens - 1),
        **found,
    )


def _integer(name: str, value: Any) -> int:
    found = whole(value)
    if found is None:
        raise ValueError(f"simulate_generation: {name} must be an integer, got {value!r}")
    return found
