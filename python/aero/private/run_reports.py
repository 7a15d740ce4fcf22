"""A private run beside the plaintext network and beside what the simulator predicted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aero.export.numpy_forward import Network, forward
from aero.private.job import Generated
from aero.private.parties import Call, Traffic
from aero.private.prediction import predicted_pieces
from aero.private.settings import STACK, PrivateSettings
from aero.tables import in_units

__all__ = ["PassReport", "RunReport", "run_report"]

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class PassReport:
    """One forward pass, private beside plaintext.

    Attributes:
        length: T, its tokens.
        token: the private next token.
        plaintext_token: the plaintext network's after the same tokens.
        largest_difference: of the logits.
        largest_logit: of the plaintext logits, absolute.
        calls: one per piece.
        predicted: bytes that client and server were to send, by piece.
    """

    length: int
    token: int
    plaintext_token: int
    largest_difference: float
    largest_logit: float
    calls: tuple[Call, ...]
    predicted: dict[str, tuple[float, float]]

    @property
    def traffic(self) -> Traffic:
        """Of all pieces."""
        return sum((call.traffic for call in self.calls), Traffic())

    @property
    def seconds(self) -> float:
        """Of all pieces."""
        return sum(call.seconds for call in self.calls)

    @property
    def predicted_bytes(self) -> tuple[float, float]:
        """Of all pieces, by client and server."""
        sent = [self.predicted[call.name] for call in self.calls]
        return sum(client for client, _ in sent), sum(server for _, server in sent)


@dataclass(frozen=True)
class RunReport:
    """A private run.

    Attributes:
        label: of the network.
        settings: of both parties.
        prompt: its tokens.
        plaintext_tokens: the plaintext network's greedy continuation of the prompt.
        passes: one per new token.
        preparation: set-up and weights, paid once.
        predicted_set_up: bytes that client and server were to send.
        link: between the parties, as `aero private run --link` names it.
    """

    label: str
    settings: PrivateSettings
    prompt: tuple[int, ...]
    plaintext_tokens: tuple[int, ...]
    passes: tuple[PassReport, ...]
    preparation: tuple[Call, ...]
    predicted_set_up: tuple[float, float]
    link: str = "memory"

    @property
    def tokens(self) -> tuple[int, ...]:
        """The private continuation."""
        return tuple(each.token for each in self.passes)

    @property
    def same_tokens(self) -> bool:
        """Whether both continuations are the same."""
        return self.tokens == self.plaintext_tokens

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "label": self.label,
            "link": self.link,
            "stack": STACK,
            "settings": self.settings.to_dict(),
            "prompt": list(self.prompt),
            "tokens": list(self.tokens),
            "plaintext_tokens": list(self.plaintext_tokens),
            "same_tokens": self.same_tokens,
            "preparation": [
                _call_dict(call, self.predicted_set_up if call.name == "set-up" else None)
                for call in self.preparation
            ],
            "passes": [_pass_dict(each) for each in self.passes],
        }

    def to_text(self, decode: Decode | None = None) -> str:
        """A few lines for people.

        Args:
            decode: text of tokens; default: their numbers.
        """
        shown = decode or (lambda tokens: " ".join(map(str, tokens)))
        lines = [
            f"{self.label}, {len(self.prompt)} tokens of prompt, two parties over {self.link}, "
            f"weights {'private to the server' if self.settings.private_weights else 'shared'}",
            f"private:   {shown(self.tokens)!r}",
            f"plaintext: {shown(self.plaintext_tokens)!r}"
            + ("" if self.same_tokens else "  (differs)"),
            "",
            f"{'':12}{'client sent':>14}{'server sent':>14}{'predicted':>14}{'ratio':>8}{'s':>9}",
        ]
        for call in self.preparation:
            predicted = self.predicted_set_up if call.name == "set-up" else None
            lines.append(_line(call.name, call.traffic, call.seconds, predicted))
        last = self.passes[-1]
        lines += [
            _line(call.name, call.traffic, call.seconds, last.predicted[call.name])
            for call in last.calls
        ]
        lines += [
            _line(f"{each.length} tokens", each.traffic, each.seconds, each.predicted_bytes)
            for each in self.passes
        ]
        off = max(each.largest_difference for each in self.passes)
        size = max(each.largest_logit for each in self.passes)
        lines.append(f"largest difference of the logits: {off:.2g}; they go up to {size:.3g}")
        return "\n".join(lines)


def run_report(
    network: Network,
    prompt: Sequence[int],
    settings: PrivateSettings,
    found: Generated,
    link: str = "memory",
) -> RunReport:
    """Computes the plaintext side of a private run and joins it with the prediction.

    Args:
        network: the same, from `read_network`.
        prompt: its tokens.
        settings: of both parties.
        found: of `generate_privately` or `generate_over_tcp`.
        link: between the parties.

    Example:
        >>> import numpy as np
        >>> from aero.export.numpy_forward import forward
        >>> from aero.private import PrivateSettings
        >>> from aero.private.job import Generated
        >>> from aero.private.run_reports import run_report
        >>> import tempfile
        >>> from pathlib import Path
        >>> from aero.export import export_weights
        >>> from aero.export.numpy_forward import read_network
        >>> from aero.models import AeroConfig, AeroForCausalLM
        >>> config = AeroConfig.from_label("SM+ScFuFFN", model="tiny")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     network = read_network(export_weights(AeroForCausalLM(config), Path(folder)))
        >>> logits = forward(network, [[5, 6]])[0]
        >>> found = Generated([int(logits[-1].argmax())], [logits.astype(np.float32)], [[]])
        >>> run_report(network, [5, 6], PrivateSettings(), found).same_tokens
        True
    """
    described = network.description
    passes = []
    for index, token in enumerate(found.tokens):
        read = [*prompt, *found.tokens[:index]]
        private = found.logits[index]
        plain = forward(network, [read])[0][-len(private) :]
        passes.append(
            PassReport(
                length=len(read),
                token=token,
                plaintext_token=int(plain[-1].argmax()),
                largest_difference=float(np.abs(private - plain).max()),
                largest_logit=float(np.abs(plain).max()),
                calls=tuple(found.calls[index]),
                predicted=predicted_pieces(described, len(read), settings),
            )
        )
    return RunReport(
        label=described["label"],
        settings=settings,
        prompt=tuple(prompt),
        plaintext_tokens=_continuation(network, prompt, passes),
        passes=tuple(passes),
        preparation=tuple(found.preparation),
        predicted_set_up=passes[0].predicted["set-up"],
        link=link,
    )


def _continuation(
    network: Network, prompt: Sequence[int], passes: Sequence[PassReport]
) -> tuple[int, ...]:
    """The plaintext greedy tokens; those of the passes as long as they read the same."""
    tokens: list[int] = []
    for each in passes:
        if tokens == [earlier.token for earlier in passes[: len(tokens)]]:
            tokens.append(each.plaintext_token)
        else:
            logits: NDArray[np.float64] = forward(network, [[*prompt, *tokens]])
            tokens.append(int(logits[0, -1].argmax()))
    return tuple(tokens)


def _line(
    name: str, traffic: Traffic, seconds: float, predicted: tuple[float, float] | None
) -> str:
    sent = f"{_megabytes(traffic.client_bytes)}{_megabytes(traffic.server_bytes)}"
    if predicted is None:
        return f"{name:12}{sent}{'':22}{seconds:9.2f}"
    ratio = traffic.comm_bytes / sum(predicted)
    return f"{name:12}{sent}{_megabytes(sum(predicted))}{ratio:8.3f}{seconds:9.2f}"


def _megabytes(count: float) -> str:
    return f"{in_units(count, 'MB'):>11} MB"


def _pass_dict(each: PassReport) -> dict[str, Any]:
    return {
        "length": each.length,
        "token": each.token,
        "plaintext_token": each.plaintext_token,
        "largest_difference": each.largest_difference,
        "largest_logit": each.largest_logit,
        "seconds": each.seconds,
        "client_bytes": each.traffic.client_bytes,
        "server_bytes": each.traffic.server_bytes,
        "predicted_client_bytes": each.predicted_bytes[0],
        "predicted_server_bytes": each.predicted_bytes[1],
        "pieces": [_call_dict(call, each.predicted[call.name]) for call in each.calls],
    }


def _call_dict(call: Call, predicted: tuple[float, float] | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": call.name,
        "seconds": call.seconds,
        "client_bytes": call.traffic.client_bytes,
        "server_bytes": call.traffic.server_bytes,
        "client_messages": call.traffic.client_messages,
        "server_messages": call.traffic.server_messages,
    }
    if predicted is not None:
        found["predicted_client_bytes"], found["predicted_server_bytes"] = predicted
    return found
