"""The contents of the files of a run folder, as shapes of `aero.reading`."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

_ORIGIN = {
    "path": str,
    "label?": str | None,
    "tokens?": int | None,
    "flops_per_token?": float | None,
}

# run.json. Of a run that has just begun some entries are missing.
RUN: dict[str, Any] = {
    "format": int,
    "status": str,
    "label": str,
    "slug": str,
    "seed": int,
    "spec": dict,
    "steps_done": int,
    "steps_total": int,
    "tokens_per_step?": int | None,
    "seconds?": float | None,
    "skipped_steps?": int | None,
    "first_score_deviations?": [float | None],
    "versions?": dict | None,
    "hardware?": str | None,
    "git_commit?": str | None,
    "command?": str | None,
    "corpus?": (
        {
            "name?": str,
            "version?": str,
            "sha256?": str,
            "folder?": str,
            "train_tokens?": int,
            "validation_tokens?": int,
            "validation_bytes?": int,
            "copied_share?": float,
            "remarks?": [str],
        },
        None,
    ),
    "diverged?": (
        {"step": int, "layer?": int | None, "head?": int | None, "what?": str | None},
        None,
    ),
    "from?": ({**_ORIGIN, "annealing": {"schedule": str}}, None),
    "distilled_from?": (_ORIGIN, None),
}

# A line of metrics.jsonl; numbers that were not finite are null.
METRIC: dict[str, Any] = {
    "kind": str,
    "step": int,
    **{
        f"{name}?": float | None
        for name in (
            "tokens", "loss", "lm_loss", "entropy_loss", "penalty_nats", "lr", "grad_norm",
            "seconds", "perplexity", "bits_per_byte", "norm_discrepancy",
        )
    },
    "head_entropy?": [[float | None]],
    "nan_counts?": [int],
    "learned?": dict,
}  # fmt: skip

# evaluation.json
EVALUATION: dict[str, Any] = {
    "windows?": str | None,
    "tokens?": int | None,
    **{f"{name}?": float | None for name in ("loss", "perplexity", "bits_per_byte")},
    "document_nll?": [float | None],
    "document_tokens?": [int],
    "context?": {
        "by_position": [{"first": int, "last": int, "loss": float | None}],
        **{name: {"loss": float | None, "tokens": int} for name in ("repeated", "new")},
    },
}


class Evaluated(NamedTuple):
    """What decides whether two perplexities compare: `evaluation.json` and the text behind it."""

    name: str
    corpus: Mapping[str, Any]
    context_length: int
    evaluation: Mapping[str, Any]


def unequal_evaluations(runs: Iterable[Evaluated]) -> str | None:
    """Returns a sentence on two runs that were evaluated on unequal parts of one text, or None.

    A window of T tokens predicts T - 1 of them, so that another T predicts others of the same text:
    the tokens of the text that windows cover are compared, and the last window may be cut off.
    Runs without their text's checksum are compared with none.
    """
    first: dict[tuple[Any, ...], Evaluated] = {}
    for run in runs:
        if run.evaluation.get("tokens") is None or run.corpus.get("sha256") is None:
            continue
        names = ("sha256", "train_tokens", "validation_tokens")
        other = first.setdefault(tuple(run.corpus.get(name) for name in names), run)
        longest = max(run.context_length, other.context_length)
        if _windows(run) != _windows(other) or abs(_covered(run) - _covered(other)) >= longest:
            return (
                f"{_measured(other)} and {_measured(run)} were evaluated on unequal parts of one "
                "text, so that their perplexities do not compare; `aero evaluate RUN` measures a "
                "run's own windows again"
            )
    return None


def _windows(run: Evaluated) -> str:
    return run.evaluation.get("windows") or "disjoint"


def _covered(run: Evaluated) -> int:
    tokens: int = run.evaluation["tokens"]
    windows = tokens // max(1, run.context_length - 1) if _windows(run) == "disjoint" else 1
    return tokens + windows


def _measured(run: Evaluated) -> str:
    return f"{run.name} ({run.evaluation['tokens']:,} tokens, {_windows(run)} windows)"


# sample.json
SAMPLE: dict[str, Any] = {
    "format": int,
    "text": str,
    "tokens": [str],
    "attention": [[[[float]]]],
    "continuation": str,
}

_SPREAD = (
    {"mean": float, "standard_deviation": float | None, "values": [float]},
    None,
)
# The quoted parts of the report.json of several seeds.
REPORT: dict[str, Any] = {
    "format": int,
    "seeds": [int],
    "made": {"at": str},
    "training": {"hardware": [str]},
    "networks": [
        {
            "name": str,
            "spec": dict,
            "perplexity": _SPREAD,
            "bits_per_byte": _SPREAD,
            "runs": [{"status": str, "ending": str | None, "tokens": int}],
        }
    ],
}
