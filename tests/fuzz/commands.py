"""Commands of `aero` in this process: a place to run them in, and how each has to end.

Trainings, other processes and sockets are not begun: a command that wants one has accepted its
input, and ends there. Nothing may be written outside the scratch folder.
"""

from __future__ import annotations

import atexit
import json
import os
import random
import re
import resource
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SCRATCH = Path(tempfile.mkdtemp(prefix="aero-fuzz-"))
atexit.register(shutil.rmtree, SCRATCH, ignore_errors=True)
for variable in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "HF_HOME"):
    os.environ[variable] = str(SCRATCH / "home")
os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1",
               "MPLBACKEND": "agg", "COLUMNS": "100"}  # fmt: skip
# Matplotlib takes seconds to list fonts, so the list stays.
FONTS = Path(__file__).resolve().parents[2] / "build" / "fuzz" / "matplotlib"
os.environ["MPLCONFIGDIR"] = str(FONTS)
(SCRATCH / "home").mkdir()
tempfile.tempdir = str(SCRATCH / "home")

import typer.main  # noqa: E402
import typer.testing  # noqa: E402

from aero import cli  # noqa: E402
from aero.train import training  # noqa: E402

COMMAND = typer.main.get_command(cli.app)
# Most of a short command's time would go into building this tree anew.
typer.testing._get_command = lambda app: COMMAND  # type: ignore[assignment]

LABEL = "EReg(SM(t)+ScFuFFN)"
SETTINGS = [
    "data.vocabulary=320", "data.validation_fraction=0.2", "model.preset=tiny",
    "model.context_length=32", "optimizer.learning_rate=1e-2",
    "training.tokens_per_step=256", "training.tokens=3072", "training.checkpoint_every_steps=3",
    "training.threads=1", "training.keep_checkpoints=9", "evaluation.every_steps=4",
    "evaluation.tokens=512", "evaluation.final_tokens=1024", "logging.every_steps=2",
    "logging.entropy_every_steps=5", "logging.entropy_windows=2",
]  # fmt: skip
WORDS = ["def", "return", "self", "value", "index", "for", "in", "if", "else", "not", "None"]
MOST_MEMORY = 8 << 30


class WorkBeganError(BaseException):
    """A command accepted its input and wants to train, to start a process or to use the network."""


def train_command(label: str, output: Path, cache: Path = SCRATCH / "cache") -> list[str]:
    settings = [f"--set={setting}" for setting in SETTINGS]
    places = ["--output", str(output), "--cache-dir", str(cache)]
    return ["train", "--label", label, "--data", str(SCRATCH / "corpus"), *places, *settings]


def write_corpus() -> None:
    generator, folder = random.Random(7), SCRATCH / "corpus"
    folder.mkdir()
    for number in range(8):
        lines = (" ".join(generator.choices(WORDS, k=6)) for _ in range(120))
        (folder / f"{number}.py").write_text("\n".join(lines))


WORK = ("subprocess.Popen", "os.posix_spawn", "os.fork", "socket.bind", "socket.connect",
        "socket.getaddrinfo")  # fmt: skip
CHANGES = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate")


class Watch:
    """Holds the audit hook; without `folder` everything is allowed."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.allows_work = False
        self.outside: list[str] = []
        sys.addaudithook(self.see)

    def see(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event in WORK and not self.allows_work:
            raise WorkBeganError(event)
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, (str, bytes)) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self.note(path)
        elif event in CHANGES:
            for path in arguments[:2]:
                if isinstance(path, (str, bytes)):
                    self.note(path)

    def note(self, path: str | bytes) -> None:
        whole = os.path.realpath(os.fsdecode(path))
        if not whole.startswith((str(SCRATCH), str(FONTS), "/dev/", "/proc/")):
            self.outside.append(whole)


WATCH = Watch()


def _no_training(*arguments: Any, **options: Any) -> None:
    raise WorkBeganError("training")


def prepare() -> None:
    """Makes a corpus, a trained run and an export, then forbids work."""
    # Python would compile what a command is the first to import, beside it and outside.
    sys.dont_write_bytecode = True
    write_corpus()
    run(train_command(LABEL, SCRATCH / "runs"))
    trained = SCRATCH / "runs" / "ereg-sm-t-scfuffn-seed0"
    for command in (
        ["analyze", trained],
        ["export", trained, "--output", SCRATCH / "export"],
        ["export", trained, "--remote-code", "--output", SCRATCH / "remote"],
    ):
        run([str(argument) for argument in command])
    import multiprocessing.util

    multiprocessing.util.spawnv_passfds = _no_processes
    training.train_runs = _no_training
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_MEMORY, resource.RLIM_INFINITY))


def run(arguments: Sequence[str]) -> None:
    """What must succeed."""
    result = typer.testing.CliRunner().invoke(cli.app, list(arguments))
    if result.exit_code:
        raise AssertionError(f"{arguments}: {result.output} {result.exception!r}")


def _no_processes(*arguments: Any) -> None:
    raise WorkBeganError("processes")


CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def end_of(arguments: Sequence[str], folder: Path) -> tuple[int, str]:
    """Runs a command in a folder and sees that it ends as commands do.

    Returns:
        Exit status and standard output; 0 and "began ..." where work would have begun.

    Raises:
        AssertionError: a traceback, no line or several, raw control characters, a file outside.
    """
    before = Path.cwd()
    os.chdir(folder)
    WATCH.folder, WATCH.outside = str(folder), []
    try:
        result = typer.testing.CliRunner().invoke(cli.app, list(arguments))
    except WorkBeganError as reached:
        return 0, f"began {reached}"
    finally:
        WATCH.folder = None
        os.chdir(before)
    assert not WATCH.outside, f"wrote outside: {WATCH.outside[:3]}"
    error = result.exception
    if isinstance(error, WorkBeganError):
        return 0, f"began {error}"
    if error is not None and not isinstance(error, SystemExit):
        raise AssertionError(
            f"traceback: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        ) from error
    status, lines = result.exit_code, result.stderr.splitlines()
    ours = [line for line in lines if line.startswith("aero: ")]
    assert status in (0, 1, 2), f"exit status {status}: {result.stderr[-300:]!r}"
    assert "Traceback" not in result.stderr, result.stderr[-1000:]
    if status == 1 and arguments[:1] == ["verify"]:  # a line for each problem
        assert result.stdout and not result.stderr, result.stderr
    elif status and "Commands:" not in lines:  # which a command without its second word shows
        assert len(ours) == 1 and lines[-1] == ours[0], (
            f"no one line of error: {result.stderr[-600:]!r}"
        )
        assert len(ours[0]) < 1300, f"{len(ours[0])} characters of error: {ours[0][:200]!r}"
        assert not CONTROL.search(result.stderr), f"raw control characters: {ours[0][:300]!r}"
    if not status and "--json" in arguments and "--help" not in arguments:
        json.loads(result.stdout, parse_constant=_refuse_constant)
    return status, result.stdout


def _refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} in JSON")
