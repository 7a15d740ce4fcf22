"""The settings of every Python test, a small corpus, and a probe whose cells are trained once."""

import random
from pathlib import Path

import pytest
from tests.python.conftest import fork_server as fork_server

from benchmarks.paper.cells import TargetPlan
from benchmarks.paper.running import run_cells

from . import probe

WORDS = ["def", "return", "self", "value", "index", "for", "in", "if", "else", "None", "True"]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, generator = tmp_path_factory.mktemp("corpus"), random.Random(7)
    for number in range(12):
        lines = (" ".join(generator.choices(WORDS, k=6)) for _ in range(120))
        (folder / f"module_{number:02}.py").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def trained(
    tmp_path_factory: pytest.TempPathFactory, corpus: Path, cache_dir: Path
) -> tuple[TargetPlan, Path]:
    """The probe's plan with two seeds, trained in one process."""
    plan, output = probe.plan(corpus, seeds=2), tmp_path_factory.mktemp("trained")
    run_cells(plan.cells, output=output, cache_dir=cache_dir, say=lambda text: None)
    return plan, output
