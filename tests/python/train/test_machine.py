"""A run's words on its machine, and on the time that it will take."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import aero.internals.machine
from aero.internals.machine import hardware, processor, settle_in
from aero.train.forecast import _duration


@pytest.mark.parametrize(("threads", "words"), [(1, ", 1 thread"), (8, ", 8 threads")])
def test_the_threads_of_a_machine_are_counted(
    threads: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert hardware().endswith(words)


@pytest.mark.parametrize(
    ("library", "blocks"), [("glibc", [(-3, 1 << 30), (-1, 1 << 30)]), ("", [])]
)
def test_glibc_keeps_blocks_of_up_to_a_gigabyte(
    library: str, blocks: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """malloc.h: M_MMAP_THRESHOLD is -3 and M_TRIM_THRESHOLD is -1."""
    asked: list[tuple[int, ...]] = []
    libc = SimpleNamespace(mallopt=lambda *given: asked.append(given))
    monkeypatch.setattr("ctypes.CDLL", lambda name: libc)
    monkeypatch.setattr("platform.libc_ver", lambda: (library, "2.36"))
    settle_in(torch.get_num_threads())
    assert asked == blocks


@pytest.mark.parametrize(("asked", "threads"), [(3, 3), (None, 2)])
def test_processes_of_one_machine_share_its_cores(
    asked: int | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_to: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(5))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    settle_in(asked)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "9")
    settle_in(None)
    assert set_to == [threads, 1]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00:00"),
        (59.4, "0:00:59"),
        (59.6, "0:01:00"),
        (3600, "1:00:00"),
        (360061, "100:01:01"),
    ],
)
def test_a_duration_is_hours_minutes_and_seconds(seconds: float, text: str) -> None:
    assert _duration(seconds) == text


@pytest.mark.parametrize(
    ("cpuinfo", "text"),
    [
        (
            "cpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n\nmodel\t: 3\n",
            "AMD EPYC, family 26 model 2",
        ),
        ("model name\t: Someone's\n", "Someone's"),
        ("processor\t: 0\nBogoMIPS\t: 50.00\n", "aarch64"),
        (None, "aarch64"),
    ],
)
def test_a_processor_is_named_with_its_family(
    cpuinfo: str | None, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aero.internals.machine, "_FILE", tmp_path / "cpuinfo")
    monkeypatch.setattr(aero.internals.machine.platform, "processor", lambda: "")
    monkeypatch.setattr(aero.internals.machine.platform, "machine", lambda: "aarch64")
    if cpuinfo is not None:
        (tmp_path / "cpuinfo").write_text(cpuinfo)
    assert processor() == text
