"""Trainings killed at random moments and resumed, beside one that nothing disturbed.

A training is a process of its own. It is killed at the n-th time that it opens, renames, makes or
removes a file, so that a seed repeats the moment, or after a share of its time. SIGKILL, SIGTERM
and SIGINT take turns, up to three times, in one folder. Then the same command runs to its end. Its
weights, records and evaluation must be those of the undisturbed run, bit for bit. In one case of
ten two processes train in one folder: one of them trains, the other gives up in one line.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

from commands import COMMAND, LABEL, SCRATCH, train_command, write_corpus
from drawing import Draw

EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree")
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
LABELS = (LABEL, "SM+FN+R")
LONGEST = 300.0  # seconds of one training


class Training:
    """`aero train` in a process that is forked from this one, which has imported everything."""

    def __init__(
        self, label: str, output: Path, *, kill: tuple[int, int] | None = None, name: str = "report"
    ) -> None:
        output.mkdir(parents=True, exist_ok=True)
        self.report, self.events = output / f"{name}.txt", output / f"{name}.events"
        self.pid = os.fork()
        if self.pid == 0:
            self._train(label, output, kill)

    def _train(self, label: str, output: Path, kill: tuple[int, int] | None) -> None:
        status = 70
        try:
            with self.report.open("wb") as report:
                os.dup2(report.fileno(), 1)
                os.dup2(report.fileno(), 2)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            count = 0

            def see(event: str, arguments: tuple[Any, ...]) -> None:
                nonlocal count
                if event in EVENTS and str(output) in str(arguments[0]):
                    count += 1
                    if kill is not None and count == kill[0]:
                        os.kill(os.getpid(), kill[1])

            sys.addaudithook(see)
            try:
                COMMAND(train_command(label, output), prog_name="aero")
                status = 0
            except SystemExit as ended:
                status = int(ended.code or 0)
            self.events.write_text(str(count))
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(status)

    def end(self, longest: float = LONGEST) -> int:
        """Waits; returns the exit status, negative for a signal."""
        until = time.monotonic() + longest
        while time.monotonic() < until:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.005)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        raise AssertionError(f"a training has not ended after {longest:g} s")

    def text(self) -> str:
        return self.report.read_text(encoding="utf-8", errors="replace")


def result_of(output: Path) -> dict[str, object]:
    """What must not depend on what happened on the way."""
    (run,) = (path.parent for path in output.glob("*/run.json"))
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        record.pop("seconds", None)
    weights = run / "model" / "model.safetensors"
    return {
        "weights": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "records": records,
        "evaluation": json.loads((run / "evaluation.json").read_text()),
        "status": json.loads((run / "run.json").read_text())["status"],
        "partial": [path.name for path in run.rglob("*partial*")],
    }


def difference(got: Any, exact: Any) -> str:
    if not isinstance(exact, list):
        return f"{got}, undisturbed {exact}"[:500]
    pairs = itertools.zip_longest(got, exact)
    number, pair = next((n, pair) for n, pair in enumerate(pairs) if pair[0] != pair[1])
    return f"entry {number} is {pair[0]}, undisturbed {pair[1]}"[:900]


write_corpus()
_whole: dict[str, tuple[dict[str, object], int, float]] = {}


def whole(label: str) -> tuple[dict[str, object], int, float]:
    """The undisturbed run: its result, how many events it has, and how many seconds."""
    if label not in _whole:
        output, begun = SCRATCH / "whole" / str(len(_whole)), time.monotonic()
        training = Training(label, output)
        status = training.end()
        assert status == 0, training.text()[-2000:]
        seconds = time.monotonic() - begun
        _whole[label] = result_of(output), int(training.events.read_text()), seconds
    return _whole[label]


def attack(seed: int) -> int:
    draw = Draw(seed)
    label, output = draw.choice(LABELS), SCRATCH / "case"
    exact, events, seconds = whole(label)
    shutil.rmtree(output, ignore_errors=True)
    story: list[str] = [label]
    try:
        kills = two_at_once(draw, label, output, seconds, story)
        if not kills:
            kills = killed_and_resumed(draw, label, output, events, seconds, story)
        got = result_of(output)
        for name in exact:
            assert got[name] == exact[name], f"{name}: {difference(got[name], exact[name])}"
    except Exception as error:
        raise AssertionError(f"{'; '.join(story)}: {error}") from error
    return kills


def killed_and_resumed(
    draw: Draw, label: str, output: Path, events: int, seconds: float, story: list[str]
) -> int:
    kills = 0
    for _ in range(draw.choice((1, 1, 2, 3))):
        number = draw.choice(SIGNALS)
        at = draw.randint(1, events) if draw.chance(0.7) else 0
        training = Training(label, output, kill=(at, number) if at else None)
        if not at:
            wait = draw.random() * seconds
            story.append(f"{number.name} after {wait:.2f} s")
            time.sleep(wait)
            os.kill(training.pid, number)
        else:
            story.append(f"{number.name} at event {at}")
        status = training.end()
        kills += status != 0
        # Before it listens, the process ends by the signal itself.
        assert status in (0, 130, -number), f"exit status {status}: {training.text()[-600:]}"
        assert "Traceback" not in training.text(), training.text()[-600:]
    training = Training(label, output)
    status = training.end()
    assert status == 0, f"resumed with status {status}: {training.text()[-600:]}"
    return kills


def two_at_once(draw: Draw, label: str, output: Path, seconds: float, story: list[str]) -> int:
    """Two processes in one folder; 0 where this is not such a case."""
    if not draw.chance(0.1):
        return 0
    wait = draw.random() * seconds
    story.append(f"a second process after {wait:.2f} s")
    first = Training(label, output)
    time.sleep(wait)
    second = Training(label, output, name="second")
    statuses = (first.end(), second.end())
    texts = first.text() + second.text()
    assert 0 in statuses and set(statuses) <= {0, 2}, f"{statuses}: {texts[-900:]}"
    assert statuses == (0, 0) or "is being trained by" in texts, texts[-900:]
    return 1
