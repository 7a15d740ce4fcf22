"""What a conversation costs, before it starts and while it goes on: the simulator's bytes."""

from __future__ import annotations

from dataclasses import dataclass

from aero.mpc.cost import Cost
from aero.network.description import Description
from aero.private.parties.memory import memory_of_run
from aero.private.prediction import passes_cost, set_up_cost, weight_elements
from aero.private.settings import PrivateSettings
from aero.tables import in_units


@dataclass(frozen=True)
class ConversationCost:
    """Prices of a network's conversation.

    Attributes:
        description: of the network.
        settings: of both parties.
        sequences: prompts of equal length, side by side.
    """

    description: Description
    settings: PrivateSettings
    sequences: int = 1

    def reading(self, rows: int, before: int = 0) -> Cost:
        """The cost of one pass over new tokens, after `before` others."""
        return passes_cost(self.description, [rows], self.settings, before, self.sequences)

    def answering(self, tokens: int, before: int) -> Cost:
        """The cost of so many passes of one token each."""
        return passes_cost(self.description, [1] * tokens, self.settings, before, self.sequences)

    @property
    def weights_bytes(self) -> int:
        """The shares of the weights, once, at most: factors that are folded away send nothing."""
        if self.settings.private_weights:
            return 0
        words = 4 if self.settings.parties == 3 else 1  # two of three shares to each of the others
        return 8 * words * weight_elements(self.description)

    def to_text(self, prompt: int, answer: int, most: int, parties: int) -> str:
        """A few lines for the client, who decides whether to begin.

        Args:
            prompt: tokens of it.
            answer: most tokens of an answer.
            most: most tokens of all answers; of several prompts those of one.
            parties: that are on this machine.
        """
        first = self.reading(prompt)
        one = self.answering(1, prompt).comm_bytes if answer > 1 else 0.0
        last = prompt + most - 1  # tokens read when the last one comes
        longest = self.reading(1, last - 1).comm_bytes if most > 1 else 0.0
        start = set_up_cost(self.settings).comm_bytes
        total = first.comm_bytes + self.answering(answer - 1, prompt).comm_bytes
        whole = first.comm_bytes + (one + longest) / 2 * (most - 1)
        count = self.sequences
        prompts = "the prompt's" if count == 1 else f"{count} prompts of"
        answers = "an answer" if count == 1 else f"{count} answers"
        rest = f"; {most} tokens: about {_mb(whole)}" if most > answer else ""
        lines = [
            f"once: {_mb(start)} to start and at most {_mb(self.weights_bytes)} for the weights' "
            "shares",
            f"{prompts} {prompt} tokens with the first of {answers}: {_mb(first.comm_bytes)}",
        ]
        if answer > 1:
            lines += [
                f"each further token: {_mb(one)} at first, {_mb(longest)} at the end",
                f"{answers} of {answer} tokens: {_mb(total)} at most{rest}",
            ]
        held = memory_of_run(self.description, self.settings, prompt, self.sequences)
        here = in_units(held.run_bytes(parties), "GB", 1)
        return "\n".join([*lines, f"memory here: up to {here} GB"])


def _mb(count: float) -> str:
    return f"{in_units(count, 'MB', 1)} MB"
