"""Questions with the answers of the declared tests, as tables of the manual, from results files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import penalty_effects
from committed import Compared, compared, newest

from aero.tables import markdown_table

HEADER = ("question", "answer", "effect (95 % interval)", "verdict", "measured")
#: What a verdict answers to a question that asks whether the first network is better.
WORDS = {"holds": "yes", "does not hold": "no", "level": "as good", "undecided": "not known"}


@dataclass(frozen=True)
class Question:
    """A question in plain words, and the comparison that answers it.

    Attributes:
        text: asks whether one network has less perplexity than another.
        stem, target, claim, part: name the comparison, as `committed.compared` takes them.
    """

    text: str
    stem: str
    target: str
    claim: str
    part: int = 0


_OWN_SHAPE, _WIDE = "In SM+LN+G's own shape but", "Without any activation"
_RELU, _TENTH = "With ReLU and a foldable norm, in SM+LN+G's own", "With ReLU and one layer"
_SHORT, _LONG = ("front_mini", "front"), ("front_mini", "front_long")
_SHIFT = ("token_shift_mini", "token_shift")
_ONE_HEAD = ("one_head_mini", "one_head")
_CONVOLUTION = ("convolution_mini", "convolution")
_CONVOLUTION_LONG = ("convolution_long_mini", "convolution_long")
_WINDOWS = ("windows_mini", "windows")
_AGAIN = ("start_again", "start_again")
_FROM = ("retraining", "retraining")
#: Name of a table -> its questions, each about two networks of the same result.
TABLES: Mapping[str, tuple[Question, ...]] = {
    "answers_front": (
        Question("Four wide layers without activation, 0.82 million tokens?", *_SHORT, _WIDE),
        Question("The same, 3.3 million tokens?", *_LONG, _WIDE),
        Question("GPT-2's own shape, one head, more tokens, 0.82 million?", *_SHORT, _OWN_SHAPE),
        Question("The same, 3.3 million?", *_LONG, _OWN_SHAPE),
        Question("ReLU and a foldable norm in GPT-2's shape, 0.82 million?", *_SHORT, _RELU),
        Question("The same, 3.3 million?", *_LONG, _RELU),
        Question("One layer of ReLU at a tenth of the bytes, 0.82 million?", *_SHORT, _TENTH),
        Question("The same, 3.3 million?", *_LONG, _TENTH),
    ),
    "answers_front_steps": (
        Question(
            "GPT-2's kind from embeddings of variance 1, 0.82 million tokens?",
            *_SHORT, "Embeddings of variance 1",
        ),
        Question("The same, 3.3 million?", *_LONG, "Embeddings of variance 1"),
        Question(
            "The same, warm-up of a fifth?",
            "front_warmup_mini", "front_long_warmup", "Embeddings of variance 1",
        ),
        Question("A wide network with a teacher paid from its own FLOPs?", *_LONG, "A teacher"),
    ),
    "answers_shift": (
        Question("Softmax only with the last four tokens, against without?", *_SHIFT, "A shift"),
        Question("GPT-2's kind with them, against without?", *_SHIFT, "It lowers that"),
        Question(
            "Softmax only with them, against GPT-2's kind without?", *_SHIFT, "With it the softmax"
        ),
        Question(
            "The same, and softmax only has one head?",
            *_ONE_HEAD, "With one head and S4 the softmax",
        ),
        Question(
            "One head against four, softmax only with them?",
            *_ONE_HEAD, "With S4 one head is better than four in the softmax",
        ),
        Question(
            "One head against four, GPT-2's kind with them?",
            *_ONE_HEAD, "With S4 one head is better than four in GPT",
        ),
    ),
    "answers_convolution": (
        Question(
            "`C4`, softmax only?",
            *_CONVOLUTION, "A full convolution lowers the perplexity of SM+ScFuFFN with one",
        ),
        Question(
            "`D4`, softmax only?",
            *_CONVOLUTION, "A depthwise convolution lowers the perplexity of SM+ScFuFFN with one",
        ),
        Question(
            "`S4`, softmax only?",
            *_CONVOLUTION, "A shift into q, k, v lowers the perplexity of SM+ScFuFFN with one",
        ),
        Question(
            "`C4`, foldable norm and ReLU?",
            *_CONVOLUTION, "A full convolution lowers the perplexity of SM+FN+R with one head",
        ),
        Question(
            "`D4`, foldable norm and ReLU?",
            *_CONVOLUTION, "A depthwise convolution lowers the perplexity of SM+FN+R with one head",
        ),
        Question(
            "`S4`, foldable norm and ReLU?",
            *_CONVOLUTION, "A shift into q, k, v lowers the perplexity of SM+FN+R with one head",
        ),
        Question(
            "`C4`, GPT-2's kind?",
            *_CONVOLUTION, "A full convolution lowers the perplexity of SM+LN+G with one head",
        ),
        Question(
            "`D4`, GPT-2's kind?",
            *_CONVOLUTION, "A depthwise convolution lowers the perplexity of SM+LN+G with one head",
        ),
        Question(
            "`S4`, GPT-2's kind?",
            *_CONVOLUTION, "A shift into q, k, v lowers the perplexity of SM+LN+G with one head",
        ),
    ),
    "answers_convolution_long": (
        Question(
            "`C4`, softmax only, one head?",
            *_CONVOLUTION_LONG, "A full convolution lowers the perplexity of SM+ScFuFFN with one",
        ),
        Question(
            "`S4`, softmax only, one head?",
            *_CONVOLUTION_LONG, "A shift into q, k, v lowers the perplexity of SM+ScFuFFN with one",
        ),
        Question(
            "`S4`, GPT-2's kind, four heads?",
            *_CONVOLUTION_LONG, "A shift into q, k, v lowers the perplexity of SM+LN+G with four",
        ),
        Question(
            "Softmax only with `S4` and one head, against GPT-2's kind without?",
            *_CONVOLUTION_LONG, "Softmax-only with a shift into q, k, v has less perplexity",
        ),
        Question(
            "ReLU in the first two layers, against twice the layers?",
            *_CONVOLUTION_LONG, "Two layers of ReLU bring more than twice the layers",
        ),
        Question(
            "ReLU in the first two layers, against half as much width again?",
            *_CONVOLUTION_LONG, "Two layers of ReLU bring more than half as much width again",
        ),
    ),
    "answers_windows": (
        Question("GPT-2's kind?", *_WINDOWS, "LayerNorm and GELU: "),
        Question("Foldable norm and ReLU?", *_WINDOWS, "foldable norm and ReLU: "),
        Question("Softmax only?", *_WINDOWS, "softmax only: "),
        Question(
            "Softmax only, one head, with `S4`?", *_WINDOWS, "softmax only, one head and a shift: "
        ),
    ),
    "answers_start": (
        Question("Variance 1, softmax only?", *_AGAIN, "The scale improves the softmax-only"),
        Question("Variance 1, `SM+LN+G`?", *_AGAIN, "The scale improves the LayerNorm"),
        Question("And a final LayerNorm, softmax only?", *_AGAIN, "A final LayerNorm"),
        Question("And a foldable norm, softmax only?", *_AGAIN, "A foldable norm"),
        Question("And temperatures alone?", *_AGAIN, "Temperatures alone"),
        Question("And temperatures with the penalty?", *_AGAIN, "The penalty adds to it"),
        Question(
            "The penalty beside a foldable norm?", *_AGAIN, "The penalty adds to scale and foldable"
        ),
        Question(
            "The penalty beside a final LayerNorm?", *_AGAIN, "The penalty adds to scale and final"
        ),
        Question("Softmax only in place of `SM+LN+G`?", *_AGAIN, "The softmax-only network"),
    ),
    "answers_retraining": (
        Question(
            "Softmax only, annealed from a baseline, against from scratch?",
            *_FROM, "From a baseline",
        ),
        Question(
            "Foldable norm, cut at once, against from scratch?",
            *_FROM, "So is the one with a foldable norm.",
        ),
        Question(
            "Foldable norm and ReLU, cut at once, against from scratch?",
            *_FROM, "So is the one with a foldable norm and ReLU",
        ),
        Question("Annealing in place of cutting (foldable norm)?", *_FROM, "Annealing helps"),
        Question("The baseline as a teacher of the annealed network?", *_FROM, "A teacher"),
        Question("The penalty in the annealed network?", *_FROM, "The penalty improves"),
    ),
}  # fmt: skip


def answers(name: str, root: str) -> str:
    """The table of some questions; `root` leads from the page to the repository."""
    rows = []
    for question in TABLES[name]:
        found = compared(question.stem, question.target, question.claim, question.part)
        page = f"[results]({root}benchmarks/results/{newest(question.stem, '.md').name})"
        rows.append([question.text, _answer(found), _effect(found), found.verdict, page])
    return markdown_table(HEADER, rows)


def decided_penalties() -> str:
    """The decided effects of the penalty on the perplexity, from the smallest to the largest."""
    decided = [each for each in penalty_effects.effects() if each.verdict != "undecided"]
    rows = [
        [
            each.name,
            "yes" if each.verdict == "better" else "no",
            f"{each.effect:+.1f} % ({each.low:+.1f} to {each.high:+.1f})",
        ]
        for each in sorted(decided, key=lambda each: each.effect)
    ]
    return markdown_table(("network", "does the penalty lower perplexity?", HEADER[2]), rows)


def _answer(found: Compared) -> str:
    ours, theirs = (f"{mean:.1f}" for mean in found.means)
    return f"{WORDS[found.verdict]}: {ours} against {theirs}"


def _effect(found: Compared) -> str:
    return f"{found.effect:+.1f} % ({found.low:+.1f} to {found.high:+.1f})"
