"""What a run says of the machine that it runs on, and of the time that it will take."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import aero.processor
from aero.processor import processor
from aero.train.forecast import _duration
from aero.train.machine import hardware


@pytest.mark.parametrize(("threads", "words"), [(1, ", 1 thread"), (8, ", 8 threads")])
def test_the_threads_of_a_machine_are_counted(
    threads: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert hardware().endswith(words)


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
    monkeypatch.setattr(aero.processor, "_FILE", tmp_path / "cpuinfo")
    monkeypatch.setattr(aero.processor.platform, "processor", lambda: "")
    monkeypatch.setattr(aero.processor.platform, "machine", lambda: "aarch64")
    if cpuinfo is not None:
        (tmp_path / "cpuinfo").write_text(cpuinfo)
    assert processor() == text
