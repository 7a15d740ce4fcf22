"""A target and a scale of seconds, and a program that trains them for tests with processes.

python -m benchmarks.paper.tests.probe CORPUS CACHE OUTPUT
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from benchmarks.paper.cells import TargetPlan, plan_target
from benchmarks.paper.running import run_cells
from benchmarks.paper.scales import Scale
from benchmarks.paper.targets import read_target

SETTINGS = {
    "data.vocabulary": 320,
    "data.validation_fraction": 0.2,
    "optimizer.learning_rate": 1e-2,
    "training.tokens_per_step": 256,
    "training.tokens": 2560,  # 10 steps
    "training.checkpoint_every_steps": 2,
    "training.threads": 1,
    "regularization.temperature_init": 1.0,
    "evaluation.every_steps": 5,
    "evaluation.tokens": 512,
    "evaluation.final_tokens": 1024,
    "logging.every_steps": 2,
    "logging.entropy_every_steps": 5,
    "logging.entropy_windows": 2,
    "logging.tensorboard": False,
}
TARGET = read_target(
    "probe",
    {
        "title": "A small comparison",
        "paper": "Table 99",
        "rows": [
            {"label": "SM+R", "context_length": 32, "paper": {"perplexity": 2.94}},
            {"label": "SM+LR(layer)", "context_length": 32},
            {
                "name": "gamma = 0.1",
                "label": "EReg(SM(t)+ScFFN)",
                "context_length": 32,
                "settings": {"regularization.tolerance_margin": 0.1},
            },
        ],
        "baseline": "SM+R",
        "show": ["perplexity", "change", "share_highest", "largest_slope"],
        "figures": [
            "quarters", "loss", "heat_maps", "layerwise", "thresholds", "thresholds_by_layer",
            "slopes", "scales", "nan_counts",
        ],
        "claims": [
            {"claim": "Finite.", "where": "here", "holds_if": "perplexity: SM+R < 1e9"},
            {"claim": "Alike.", "where": "here", "holds_if": "perplexity: SM+R < 99 x gamma = 0.1"},
        ],
    },
)  # fmt: skip


def plan(corpus: object, *, steps: int = 10, seeds: int = 1) -> TargetPlan:
    settings = {**SETTINGS, "training.tokens": 256 * steps, "data.source": str(corpus)}
    scale = Scale(
        "probe",
        1,
        {"codeparrot": {"recipe": "demo", "settings": settings}},
        {"gpt2": {"model.preset": "tiny"}},
    )
    return plan_target(TARGET, scale, seeds=seeds)


def _kill_when_a_checkpoint_is_there(checkpoints: Path) -> None:
    while not (checkpoints / "step-2").exists():
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    corpus, cache, output = sys.argv[1:]
    cells = plan(corpus).cells
    # Of the cell that this process takes first: others may be another process's.
    mine = cells[0].folder(output).checkpoints
    threading.Thread(target=_kill_when_a_checkpoint_is_there, args=(mine,), daemon=True).start()
    run_cells(cells, output=output, cache_dir=cache)
