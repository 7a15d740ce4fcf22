import io
import math
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from aero.train import progress
from aero.train import training as runs
from aero.train.runs.planning import plan_runs


@pytest.fixture
def clock(monkeypatch):
    """Lets tqdm believe that time passes only when a test says so."""
    now = [1000.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    return now


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_a_bar_appears_after_two_seconds_with_an_estimate(stream, clock, monkeypatch):
    output = stream()
    monkeypatch.setattr("sys.stderr", output)
    with progress.progress_bar("reading", 10, "file") as bar:
        bar.update(1)
        assert output.getvalue() == ""
        clock[0] += 20.0
        bar.update(4)
        assert "reading" in output.getvalue() and "5/10" in output.getvalue()
        assert "00:20<" in output.getvalue()


def test_short_work_shows_nothing(clock, monkeypatch):
    output = Terminal()
    monkeypatch.setattr("sys.stderr", output)
    with progress.progress_bar("reading", 2, "file") as bar:
        clock[0] += 1.0
        bar.update(2)
    assert output.getvalue() == ""


def test_other_processes_of_a_run_are_silent(clock, monkeypatch):
    output = Terminal()
    monkeypatch.setattr("sys.stderr", output)
    monkeypatch.setenv("RANK", "1")
    with progress.progress_bar("reading", 10, "file") as bar:
        clock[0] += 20.0
        bar.update(5)
    assert output.getvalue() == ""
    assert not progress.is_main_process()


class Bar(nullcontext):
    """The calls of a bar."""

    def __init__(self, description, total, unit, *, initial):
        super().__init__(self)
        self.asked = (description, total, unit, initial)
        self.n, self.total, self.shown, self.losses = initial, total, [], []

    def set_description(self, text, refresh):
        assert not refresh
        self.shown.append((text, self.n, self.total))

    def set_postfix_str(self, text, refresh):
        assert not refresh
        self.losses.append(text)

    def update(self, steps):
        self.n += steps

    def clear(self):
        self.shown.append(("clear", self.n, self.total))


def test_the_bar_counts_runs_and_the_steps_that_are_left(monkeypatch, tiny_recipe, tmp_path):
    plan = plan_runs(tiny_recipe, ["SM", "SM+R"], [0], output=tmp_path)
    bars, said = [], []

    class OneRun:
        """The first run diverges at its seventh step of twenty."""

        def __init__(self, run, data, stop, advance, say):
            self.run, self.advance = run, advance

        def train(self):
            for step in range(7 if self.run.name.startswith("SM seed") else 20):
                self.advance(math.nan if step == 3 else 0.5 + step)
            return "done"

    def bar_of(*arguments, **options):
        bars.append(Bar(*arguments, **options))
        return bars[-1]

    monkeypatch.setattr(runs, "progress_bar", bar_of)
    monkeypatch.setattr(runs, "OneRun", OneRun)
    data = SimpleNamespace(remarks=["a file is left out"])
    monkeypatch.setattr(runs, "prepare_data", lambda *arguments, **options: data)
    monkeypatch.setattr(runs, "settle_in", lambda threads: None)
    runs.train_runs(plan, cache_dir=tmp_path, say=said.append)
    (bar,) = bars
    assert bar.asked == ("training", 40, "step", 0)
    assert bar.shown == [
        ("[1/2] SM seed 0", 0, 40),
        ("clear", 7, 27),
        ("[2/2] SM+R seed 0", 7, 27),
        ("clear", 27, 27),
    ]
    assert bar.losses[:4] == ["loss 0.500", "loss 1.500", "loss 2.500", "loss 4.500"]
    assert said == ["data: a file is left out", "SM seed 0: done", "SM+R seed 0: done"]
