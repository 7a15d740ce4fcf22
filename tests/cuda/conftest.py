"""Options, the end of the time, and a record of every test's outcome as soon as it is known."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))
sys.path.insert(0, str(FOLDER.parents[1] / "benchmarks" / "cuda"))

from gpu_run import DEVICE_LOST, Record  # noqa: E402

os.environ.setdefault("HF_HUB_OFFLINE", "1")
NEEDS_GPU = "needs a GPU"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", choices=("cuda", "cpu"), default="cuda")
    parser.addoption("--record", type=Path)
    parser.addoption("--until", type=float, default=float("inf"), help="seconds since the epoch")
    parser.addoption("--every", type=int, default=1)
    parser.addoption("--stand-in", action="store_true", help="see gpu_machine.py")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--record")
    config.record = None  # type: ignore[attr-defined]
    if path:
        config.record = Record.reopened(path)  # type: ignore[attr-defined]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what has an outcome from before, and cases between every n-th one."""
    record = config.record  # type: ignore[attr-defined]
    seen: dict[str, int] = {}
    kept = []
    for item in items:
        function = item.nodeid.partition("[")[0]
        seen[function] = seen.get(function, -1) + 1
        is_chosen = seen[function] % config.getoption("--every") == 0
        if is_chosen and not (record and record.has_ended(item.nodeid)):
            kept.append(item)
    items[:] = kept


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.time() > item.config.getoption("--until"):
        pytest.skip("the time is used up")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    """Notes which test is running, for the case that it never ends."""
    record = item.config.record  # type: ignore[attr-defined]
    if record is not None:
        record.begin(item.nodeid)
    result = yield
    if record is not None:
        record.end()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    record = item.config.record  # type: ignore[attr-defined]
    matters = call.when == "call" or (call.when == "setup" and report.outcome != "passed")
    if record is None or not matters:
        return report
    outcome = "not run" if report.skipped else report.outcome
    message = ""
    if call.excinfo is not None:
        message = call.excinfo.exconly().replace("Skipped: ", "").strip()
        message = " ".join(message.split())[:400]
    record.add(
        item.nodeid,
        {"outcome": outcome, "message": message, "seconds": round(call.duration, 2)},
    )
    if report.failed and device_is_lost(item.config):
        # Every later call in this process would fail: run.py goes on in a new one.
        record.end()
        os._exit(DEVICE_LOST)
    return report


def device_is_lost(config: pytest.Config) -> bool:
    """Whether an error of a kernel has taken the device from this process."""
    if config.getoption("--device") != "cuda":
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


@pytest.fixture
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """The type of a test's large tensors; "tf32" is float32 that products may round."""
    name = request.param
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    yield torch.float32 if name == "tf32" else getattr(torch, name)
    torch.set_float32_matmul_precision("highest")


@pytest.fixture
def device(request: pytest.FixtureRequest) -> torch.device:
    """Where the tensors lie."""
    chosen = request.config.getoption("--device")
    return torch.device("cuda", 0) if chosen == "cuda" else torch.device("cpu")


@pytest.fixture
def gpu(device: torch.device, request: pytest.FixtureRequest) -> torch.device:
    """The device, for tests of what only a GPU has."""
    if device.type != "cuda" and not request.config.getoption("--stand-in"):
        pytest.skip(NEEDS_GPU)
    return device
