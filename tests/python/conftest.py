"""Settings every Python test runs under."""

import gc
import multiprocessing
import os
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
from hypothesis import settings

# Inductor's cache on disk is not invalidated by a changed fake kernel, so a corrected operator
# would keep failing.
os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
# In every process Inductor compiles a program for each vector instruction set to see if g++ can;
# one that compiles C++20 can. Its pool of compilers is another process that imports torch.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Waiting threads sleep: spinning ones cost a busy machine three quarters of its time.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# The workers of xdist keep all cores busy. The operators are tested on several: ops/conftest.py.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples in every run, so that a commit passes or fails for good.
# `pytest --hypothesis-profile=explore` draws new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, deadline=None, print_blob=True)
settings.load_profile("repeatable")

FOLDER = Path(__file__).parent
# Each takes half a minute or more. Long ones begin first, so that no core waits at the end.
LONG = [
    "test_cuda_readiness.py",
    "test_notebooks.py",
    "models/test_compile.py",
    "test_cuda_object_code.py",
    "../../benchmarks/paper/tests/test_running.py",
    "train/test_distributed.py",
    "test_cuda_mutations.py",
    "train/test_retraining.py",
    "ops/test_attention_accuracy.py",
    "train/test_training.py",
    "train/test_token_files.py",
    "test_documentation.py",
    "models/test_stock_attention.py",
    "ops/test_transforms.py",
    "ops/test_transformations.py",
    "models/test_entropy_penalty_processes.py",
    "test_registration.py",
    "export/test_remote_code.py",
    "test_cli_train.py",
    "test_fuzz.py",
]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the files that take long first; `make test` tells xdist to keep this order."""
    place = {(FOLDER / name).resolve(): number for number, name in enumerate(LONG)}
    assert all(path.exists() for path in place), "a file of LONG is gone"
    items.sort(key=lambda item: place.get(item.path, len(place)))


def pytest_collection_finish() -> None:
    """Takes all that the imports made out of the collector's sight: each training collects."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def fork_server() -> ForkServerContext:
    """In place of `spawn`: the new process is as fresh, but torch was imported once.

    The server starts here, before a test has changed the environment that its children get.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["aero.nn", "aero.train.training"])
    forkserver.ensure_running()
    return context
