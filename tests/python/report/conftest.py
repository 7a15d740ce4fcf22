"""Run folders as training writes them, with made-up numbers that follow from label and seed."""

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aero.analysis import summarize_entropies
from aero.analysis.files import write_analysis
from aero.architecture import ArchitectureSpec
from aero.report import write_report, writing

STEPS = 60
# The labels of the demo with made-up validation perplexities of seed 1.
PERPLEXITY = {
    "SM+LN+G": 9.1,
    "SM+ScFuFFN": 12.2,
    "EReg(SM(t)+ScFuFFN)": 11.5,
    "SM+FN+ScFuFFN": 9.0,
    "SM+FN+R": 8.6,
}


def write_run(
    folder: Path,
    label: str,
    seed: int = 1,
    *,
    perplexity: float | None = None,
    diverged_at: int | None = None,
    evaluated: bool = True,
    analyzed: bool = True,
    info: dict[str, Any] | None = None,
    **sizes: Any,
) -> Path:
    """Writes one run folder and returns it."""
    spec = ArchitectureSpec.from_label(label, model="mini", **sizes)
    label = spec.label
    slug = "".join(c if c.isalnum() else "-" for c in label.lower()).strip("-")
    while "--" in slug:
        slug = slug.replace("--", "-")
    random = np.random.default_rng([zlib.crc32(label.encode()), seed])
    layers, heads, length = spec.num_layers, spec.num_heads, spec.context_length
    perplexity = perplexity or PERPLEXITY.get(label, 10.0) + 0.1 * (seed - 1)
    last = diverged_at or STEPS
    run = folder / f"{slug}-seed{seed}"
    run.mkdir(parents=True)

    metrics: list[dict[str, Any]] = []
    final = np.clip(random.normal(2.2, 0.9, (layers, heads)), 0.05, 3.8)
    for step in range(1, last + 1):
        share = step / STEPS
        loss = np.log(perplexity) + 5.5 * np.exp(-5 * share) + random.normal(0, 0.03)
        broken = diverged_at == step
        metrics.append(
            {
                "kind": "train",
                "step": step,
                "tokens": step * 4096,
                "loss": None if broken else float(loss) + 0.01,
                "lm_loss": None if broken else float(loss),
                "entropy_loss": 0.01,
                "lr": 1e-3 * (1 - share),
                "grad_norm": 0.7,
                "seconds": step * 1.25,
            }
        )
        if step % 10 == 0:
            value = float(np.log(perplexity) + 5.5 * np.exp(-5 * share))
            metrics.append(
                {
                    "kind": "validation",
                    "step": step,
                    "loss": value,
                    "perplexity": float(np.exp(value)),
                    "bits_per_byte": value / 3.5,
                    "norm_discrepancy": None,
                }
            )
            entropy = 3.88 + (final - 3.88) * share
            metrics.append(
                {
                    "kind": "entropy",
                    "step": step,
                    "head_entropy": entropy.tolist(),
                    "nan_counts": [0] * layers,
                }
            )
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))

    diverged = None
    if diverged_at:
        diverged = {
            "step": diverged_at,
            "layer": layers - 1,
            "head": 0,
            "what": "attention",
            "last_finite_checkpoint": None,
        }
    content: dict[str, Any] = {
        "format": 1,
        "status": "diverged" if diverged_at else "finished",
        "label": label,
        "slug": slug,
        "seed": seed,
        "spec": spec.to_dict(),
        "steps_done": last,
        "steps_total": STEPS,
        "tokens_per_step": 4096,
        "seconds": last * 1.25,
        "versions": {"aero": "0.1.0", "python": "3.11.7", "torch": "2.13.0"},
        "hardware": "2 x made-up CPU",
        "git_commit": None,
        "corpus": {
            "name": "stdlib",
            "sha256": "ab" * 32,
            "train_tokens": 3_000_000,
            "validation_tokens": 150_000,
            "validation_bytes": 500_000,
        },
        "diverged": diverged,
        "command": f"aero train --recipe demo --label '{label}'",
    }
    (run / "run.json").write_text(json.dumps({**content, **(info or {})}))
    if evaluated and not diverged_at:
        loss = float(np.log(perplexity))
        result = {
            "windows": "disjoint",
            "loss": loss,
            "perplexity": perplexity,
            "bits_per_byte": loss / np.log(2) / 3.4,
            "tokens": 131_072,
            "bytes": 445_000,
        }
        (run / "evaluation.json").write_text(json.dumps(result))
    if analyzed and not diverged_at:
        visible = np.log(np.arange(1, length + 1))
        # Rows keep their head's mean and reach no further than the keys they see.
        rows = np.minimum(final[:, None, :, None] * (visible / visible.mean()), visible)
        regularized = spec.entropy_regularized
        temperatures = None
        if spec.temperature == "head_position":
            drift = np.linspace(1.0, 0.6, length) + random.normal(0, 0.02, (layers, heads, length))
            temperatures = [0.5 * layer_drift for layer_drift in drift]
        write_analysis(
            run,
            summarize_entropies(
                rows,
                temperatures=temperatures,
                thresholds=random.uniform(0.3, 0.6, (layers, heads)) if regularized else None,
            ),
        )
        sample = {
            "format": 1,
            "text": "the cat <sat> on",
            "tokens": ["the", " cat", " <sat>", " on"],
            "attention": [[[[1 / i] * i for i in range(1, 5)]] * heads] * layers,
            "continuation": f" {label} wrote this",
        }
        (run / "sample.json").write_text(json.dumps(sample))
    return run


@pytest.fixture
def make_run(tmp_path) -> Callable[..., Path]:
    """`write_run` into this test's own `runs` folder."""

    def make(label: str, seed: int = 1, **options: Any) -> Path:
        return write_run(tmp_path / "runs", label, seed, **options)

    return make


@pytest.fixture(scope="session")
def demo_perplexity() -> dict[str, float]:
    """Label -> perplexity of the runs in `demo_runs`."""
    return PERPLEXITY


@pytest.fixture(scope="session")
def three_seed_runs(tmp_path_factory) -> Path:
    """Two networks over seeds 1, 2 and 3."""
    folder = tmp_path_factory.mktemp("seeds") / "runs"
    for label in ("SM+ScFuFFN", "EReg(SM(t)+ScFuFFN)"):
        for seed in (1, 2, 3):
            write_run(folder, label, seed)
    return folder


@pytest.fixture(scope="session")
def demo_runs(tmp_path_factory) -> Path:
    """The five networks of the demo, one seed."""
    folder = tmp_path_factory.mktemp("demo") / "runs"
    for label in PERPLEXITY:
        write_run(folder, label)
    return folder


@pytest.fixture(scope="session")
def three_seeds(three_seed_runs):
    """The report of two networks over three seeds."""
    return write_report([three_seed_runs], three_seed_runs.parent)


@pytest.fixture(scope="session")
def demo(demo_runs, three_seeds):
    """The demo's report, one seed, quoting three."""
    return write_report(
        [demo_runs], demo_runs.parent, command="aero report runs", seed_spread=three_seeds.json
    )


@pytest.fixture
def no_figures(monkeypatch):
    """For tests of words and numbers: drawing takes most of a report's time."""
    monkeypatch.setattr(writing, "draw_all", lambda networks, content: [])


def content_of(paths):
    return json.loads(paths.json.read_text(encoding="utf-8"))


def network(paths, label):
    (found,) = [entry for entry in content_of(paths)["networks"] if entry["label"] == label]
    return found
