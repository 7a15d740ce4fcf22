"""The facts that `aero info RUN` shows."""

from __future__ import annotations

from pathlib import Path

from aero.report import read_run


def run_facts(path: Path) -> dict[str, str]:
    """Returns a run's kind, progress and start, by name.

    Args:
        path: the run folder.

    Raises:
        ValueError: it is no run folder, or its files cannot be read.
    """
    run = read_run(path)
    corpus = run.info.get("corpus") or {}
    measured = (run.evaluation or {}).get("perplexity")
    # Of runs from before it was measured, or under way for less than a step.
    deviations = run.info.get("first_score_deviations")
    return {
        "network": run.spec.label,
        "seed": str(run.info["seed"]),
        "status": run.ending or "finished",
        "steps": f"{run.info['steps_done']} of {run.info['steps_total']}",
        "perplexity": "not evaluated" if measured is None else f"{measured:.3f}",
        "corpus": f"{corpus.get('name')} ({corpus.get('version')})",
        "commit": run.info.get("git_commit") or "not a git checkout",
        "hardware": run.info.get("hardware") or "unknown",
        "first scores": "not measured" if deviations is None else _by_layer(deviations),
    }


def _by_layer(deviations: list[float | None]) -> str:
    shown = ("NaN" if value is None else f"{value:.3f}" for value in deviations)
    return f"deviation by layer {' '.join(shown)}"
