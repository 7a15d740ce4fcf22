"""A private run next to the plaintext network and to the simulator's prediction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aero.mpc import ComputeProfile, NetworkProfile
from aero.mpc.cost import Cost
from aero.network.description import Description, Network
from aero.network.numpy_reader import forward
from aero.private.compute.calls import Call, Traffic
from aero.private.parties.job import Generated
from aero.private.prediction import (
    machine_profiles,
    predicted_costs,
    predicted_durations,
    predicted_operations,
    remainder,
    resolution,
    total_cost,
)
from aero.private.settings import PrivateSettings
from aero.tables import in_units, table_lines

Decode = Callable[[Sequence[int]], str]

_CHANCE = (
    "±: standard deviation of one run, as SPU sends whole what it makes in advance; left: what "
    "whole refills leave of the difference"
)


@dataclass(frozen=True)
class PassReport:
    """One forward pass, private next to plaintext.

    Attributes:
        length: tokens so far, those that it read included.
        rows: how many it read of each sequence: the prompt's, or one.
        tokens: the private next one of each sequence.
        plaintext_tokens: the plaintext network's after the same tokens.
        largest_difference: of the logits.
        largest_logit: of the plaintext logits, absolute.
        calls: one per piece.
        predicted: the simulator's counts, by piece.
        predicted_seconds: by piece, where the machine is known.
    """

    length: int
    rows: int
    tokens: tuple[int, ...]
    plaintext_tokens: tuple[int, ...]
    largest_difference: float
    largest_logit: float
    calls: tuple[Call, ...]
    predicted: dict[str, Cost]
    predicted_seconds: dict[str, float]

    @property
    def traffic(self) -> Traffic:
        """The sum over all pieces."""
        return sum((call.traffic for call in self.calls), Traffic())

    @property
    def seconds(self) -> float:
        """The sum over all pieces."""
        return sum(call.seconds for call in self.calls)

    @property
    def predicted_cost(self) -> Cost:
        """The sum over all pieces."""
        return total_cost(self.predicted[call.name] for call in self.calls)


@dataclass(frozen=True)
class RunReport:
    """A private run.

    Attributes:
        label: of the network.
        settings: of both parties.
        prompts: the tokens of each; they are side by side.
        plaintext_tokens: the plaintext network's greedy continuation of each.
        passes: one per new token.
        preparation: set-up and weights, paid once.
        predicted_set_up: the simulator's counts.
        link: between the parties, as `aero private run --link` names it.
    """

    label: str
    settings: PrivateSettings
    prompts: tuple[tuple[int, ...], ...]
    plaintext_tokens: tuple[tuple[int, ...], ...]
    passes: tuple[PassReport, ...]
    preparation: tuple[Call, ...]
    predicted_set_up: Cost
    link: str = "memory"

    @property
    def tokens(self) -> tuple[tuple[int, ...], ...]:
        """The private continuation of each prompt."""
        return tuple(zip(*(each.tokens for each in self.passes), strict=True))

    @property
    def same_tokens(self) -> bool:
        """True if all continuations are the same."""
        return self.tokens == self.plaintext_tokens

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "label": self.label,
            "link": self.link,
            "stack": self.settings.stack,
            "settings": self.settings.to_dict(),
            "prompt": _one_or_all(self.prompts),
            "tokens": _one_or_all(self.tokens),
            "plaintext_tokens": _one_or_all(self.plaintext_tokens),
            "same_tokens": self.same_tokens,
            "preparation": [
                _call_dict(
                    call, self.predicted_set_up if call.name == "set-up" else None, self.settings
                )
                for call in self.preparation
            ],
            "passes": [_pass_dict(each, self.settings) for each in self.passes],
        }

    def to_text(self, decode: Decode | None = None) -> str:
        """A few lines for people.

        Args:
            decode: text of tokens; default: their numbers.
        """
        shown, last = decode or (lambda tokens: " ".join(map(str, tokens))), self.passes[-1]
        lines = [
            f"{self.label}, {len(self.prompts[0])} tokens of prompt, "
            f"{'three' if self.settings.parties == 3 else 'two'} parties over {self.link}, "
            f"weights {'private to the server' if self.settings.private_weights else 'shared'}",
        ]
        for private, plaintext in zip(self.tokens, self.plaintext_tokens, strict=True):
            differs = "" if private == plaintext else "  (differs)"
            lines += [f"private:   {shown(private)!r}", f"plaintext: {shown(plaintext)!r}{differs}"]
        lines.append("")
        rows = [
            (call.name, call.traffic, call.seconds, cost, seconds.get(call.name))
            for calls, costs, seconds in (
                (self.preparation, {"set-up": self.predicted_set_up}, {}),
                (last.calls, last.predicted, last.predicted_seconds),
            )
            for call in calls
            for cost in [costs.get(call.name)]
        ]
        rows += [
            (
                f"{each.rows} of {each.length} tokens",
                each.traffic,
                each.seconds,
                each.predicted_cost,
                sum(each.predicted_seconds.values()) or None,
            )
            for each in self.passes
        ]
        lines += table_lines([_cells(*row, self.settings) for row in rows])
        lines.append(_CHANCE)
        off = max(each.largest_difference for each in self.passes)
        size = max(each.largest_logit for each in self.passes)
        lines.append(f"largest difference of the logits: {off:.2g}; they go up to {size:.3g}")
        return "\n".join(lines)


def run_report(
    network: Network,
    prompts: Sequence[Sequence[int]],
    settings: PrivateSettings,
    found: Generated,
    link: str = "memory",
    machine: str | None = None,
) -> RunReport:
    """Computes the plaintext side of a private run and joins it with the prediction.

    Seconds are predicted with a `machine`, the path of a file of `aero private calibrate`.
    """
    described = network.description
    profiles = None if machine is None else machine_profiles(machine, link, settings.threads)
    passes = []
    count = len(prompts)
    made = [one if isinstance(one, tuple) else (one,) for one in found.tokens]
    for index, tokens in enumerate(made):
        read = [
            [*prompt, *(earlier[place] for earlier in made[:index])]
            for place, prompt in enumerate(prompts)
        ]
        length = len(read[0])
        rows = 1 if index else length
        private = found.logits[index].reshape(count, -1, described["vocab_size"])
        plain = forward(network, read)[:, -private.shape[1] :]
        passes.append(
            PassReport(
                length=length,
                rows=rows,
                tokens=tokens,
                plaintext_tokens=tuple(int(one) for one in plain[:, -1].argmax(-1)),
                largest_difference=float(np.abs(private - plain).max()),
                largest_logit=float(np.abs(plain).max()),
                calls=tuple(found.calls[index]),
                predicted=predicted_costs(described, length, settings, rows, count),
                predicted_seconds=_seconds(described, length, settings, profiles, rows, count),
            )
        )
    return RunReport(
        label=described["label"],
        settings=settings,
        prompts=tuple(map(tuple, prompts)),
        plaintext_tokens=tuple(
            _continuation(network, prompt, passes, place) for place, prompt in enumerate(prompts)
        ),
        passes=tuple(passes),
        preparation=tuple(found.preparation),
        predicted_set_up=passes[0].predicted["set-up"],
        link=link,
    )


def _seconds(
    described: Description,
    length: int,
    settings: PrivateSettings,
    profiles: tuple[NetworkProfile, ComputeProfile] | None,
    rows: int,
    sequences: int,
) -> dict[str, float]:
    if profiles is None:
        return {}
    operations = predicted_operations(described, length, settings, rows, sequences)
    return {
        piece: duration.seconds
        for piece, duration in predicted_durations(operations, *profiles).items()
    }


def _continuation(
    network: Network, prompt: Sequence[int], passes: Sequence[PassReport], place: int
) -> tuple[int, ...]:
    """The plaintext greedy tokens; those of the passes as long as they read the same."""
    tokens: list[int] = []
    for each in passes:
        if tokens == [earlier.tokens[place] for earlier in passes[: len(tokens)]]:
            tokens.append(each.plaintext_tokens[place])
        else:
            logits: NDArray[np.float64] = forward(network, [[*prompt, *tokens]])
            tokens.append(int(logits[0, -1].argmax()))
    return tuple(tokens)


def _cells(
    name: str,
    traffic: Traffic,
    seconds: float,
    cost: Cost | None,
    predicted_seconds: float | None,
    settings: PrivateSettings,
) -> dict[str, str]:
    cells = {
        "": name,
        "client sent": _megabytes(traffic.client_bytes),
        "server sent": _megabytes(traffic.server_bytes),
        **({"helper sent": _megabytes(traffic.helper_bytes)} if settings.parties == 3 else {}),
    }
    names = ("predicted", "ratio", "± %", "left %")
    if cost is None:
        cells |= dict.fromkeys(names, "")
    else:
        beside = _beside(traffic, cost, settings)
        shares = [f"{100 * beside[part]:.2f}" for part in ("resolution", "remainder")]
        found = (_megabytes(cost.comm_bytes), f"{beside['ratio']:.3f}", *shares)
        cells |= dict(zip(names, found, strict=True))
    cells["s"] = f"{seconds:.2f}"
    return (
        cells if predicted_seconds is None else cells | {"predicted s": f"{predicted_seconds:.2f}"}
    )


def _beside(traffic: Traffic, cost: Cost, settings: PrivateSettings) -> dict[str, float]:
    """One run's bytes as parts of the prediction: all, the deviation by chance, and the rest."""
    left = remainder(
        cost, 1, traffic.comm_bytes, one_bit_product_error=settings.one_bit_product_error
    )
    return {
        "ratio": traffic.comm_bytes / cost.comm_bytes,
        "resolution": resolution(cost, 1),
        "remainder": left / cost.comm_bytes,
    }


def _megabytes(count: float) -> str:
    return f"{in_units(count, 'MB')} MB"


def _one_or_all(sequences: Sequence[Any]) -> Any:
    """What one prompt has, or a list of what each of several has."""
    found = [list(one) if isinstance(one, tuple) else one for one in sequences]
    return found[0] if len(found) == 1 else found


def _pass_dict(each: PassReport, settings: PrivateSettings) -> dict[str, Any]:
    return {
        "length": each.length,
        "rows": each.rows,
        "token": _one_or_all(each.tokens),
        "plaintext_token": _one_or_all(each.plaintext_tokens),
        "largest_difference": each.largest_difference,
        "largest_logit": each.largest_logit,
        "seconds": each.seconds,
        "predicted_seconds": each.predicted_seconds,
        **_sent(each.traffic, each.predicted_cost, settings),
        "pieces": [_call_dict(call, each.predicted[call.name], settings) for call in each.calls],
    }


def _call_dict(call: Call, cost: Cost | None, settings: PrivateSettings) -> dict[str, Any]:
    return {
        "name": call.name,
        "seconds": call.seconds,
        "client_messages": call.traffic.client_messages,
        "server_messages": call.traffic.server_messages,
        **_sent(call.traffic, cost, settings),
    }


def _sent(traffic: Traffic, cost: Cost | None, settings: PrivateSettings) -> dict[str, float]:
    """Bytes of each party, and the prediction: of each of two, or of all three together."""
    found: dict[str, float] = {"client_bytes": traffic.client_bytes}
    found["server_bytes"] = traffic.server_bytes
    if settings.parties == 3:
        found["helper_bytes"] = traffic.helper_bytes
    if cost is None:
        return found
    if settings.parties == 3:
        found["predicted_bytes"] = cost.comm_bytes
    else:
        found["predicted_client_bytes"] = cost.client_bytes
        found["predicted_server_bytes"] = cost.server_bytes
    return found | _beside(traffic, cost, settings)
