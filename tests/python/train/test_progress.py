import io

import pytest

from aero.train import progress


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
