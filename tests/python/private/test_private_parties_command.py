"""`aero private publish`, `serve` and `ask`: errors before anything is computed."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import aero
from aero.cli import app
from aero.cli.private_log import Shown
from aero.private import environment
from aero.private.links.connections import listen
from aero.private.parties import party, serving
from aero.private.parties.worker_pipe import Worker
from aero.saved.tokenizer import save_tokenizer, train_tokenizer

from ..export.conftest import trained
from .pretending import pretending_python

TIME = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ"

# Takes the place of the private environment's Python: says who it is and waits.
PRETENDER = """#!{python}
import os, sys
from pathlib import Path
Path(__file__).with_name("worker.pid").write_text(str(os.getpid()))
print('{{"event": "terms", "terms": {{}}}}', flush=True)
sys.stdin.read()
"""


@pytest.fixture
def worker_pid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    python = tmp_path / "python"
    python.write_text(PRETENDER.format(python=sys.executable))
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv(environment.VARIABLE, str(python))
    return tmp_path / "worker.pid"


@pytest.fixture
def exit_codes(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[int | None]]:
    """Of the workers that a command of this process has started, however far they came."""
    processes: list[subprocess.Popen[bytes]] = []

    class Kept(Worker):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            processes.append(self._process)

    for module in (party, serving):
        monkeypatch.setattr(module, "Worker", Kept)
    return lambda: [process.returncode for process in processes]


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(aero.export_weights(trained("SM+ScFuFFN"), tmp_path_factory.mktemp("export")))
    save_tokenizer(train_tokenizer(["to be or not to be"] * 4, 256), folder, context_length=32)
    return folder


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["private", *map(str, arguments)])


@contextlib.contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`aero private` as a program of its own, which hears SIGINT whatever started the tests."""
    with subprocess.Popen(
        [sys.executable, "-m", "aero.cli", "private", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts background programs with SIGINT ignored, and they inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as program:
        try:
            yield program
        finally:
            program.kill()  # no effect on one that has ended


def ended(pid: int) -> bool:
    end = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
        time.sleep(0.02)
    return not Path(f"/proc/{pid}").exists()


def test_what_is_published_has_no_weights_and_is_enough_to_ask(
    export: Path,
    tmp_path: Path,
    worker_pid: Path,
    unused_address: str,
    exit_codes: Callable[[], list[int | None]],
) -> None:
    public = tmp_path / "public"
    assert run("publish", export, "--output", public).exit_code == 0
    assert sorted(path.name for path in public.iterdir()) == ["network.json", "tokenizer.json"]
    description = json.loads((public / "network.json").read_text())
    assert description == json.loads((export / "network.json").read_text())
    done = run("ask", public, "--connect", unused_address, "--prompt", "to be", "--wait", 0.5)
    assert done.exit_code == 2
    assert f"aero: private: no server at {unused_address} within 0.5 s" in done.output
    assert exit_codes() == [-signal.SIGKILL]


def test_a_port_that_is_taken_ends_the_server(export: Path, worker_pid: Path) -> None:
    with listen("127.0.0.1:0") as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run("serve", export, "--listen", address)
    assert done.exit_code == 2
    assert f"aero: private: cannot listen on {address}" in done.output
    assert not worker_pid.exists()


def test_a_client_that_does_not_come_ends_a_server_for_one(
    export: Path, worker_pid: Path, exit_codes: Callable[[], list[int | None]]
) -> None:
    done = run("serve", export, "--listen", "127.0.0.1:0", "--once", "--wait", 1)
    assert done.exit_code == 2
    assert "aero: private: no client came within 1 s" in done.output
    assert exit_codes() == [-signal.SIGKILL]


def test_a_prompt_longer_than_the_context_is_refused_before_anybody_is_asked(
    export: Path, worker_pid: Path
) -> None:
    numbers = ",".join(["7"] * 33)
    done = run("ask", export, "--connect", "127.0.0.1:9", "--prompt-tokens", numbers)
    assert done.exit_code == 2
    assert "prompt's 33 tokens" in done.output
    assert "context of 32" in done.output
    assert not worker_pid.exists()


def test_off_the_loopback_keys_are_asked_for(export: Path, worker_pid: Path) -> None:
    done = run("serve", export, "--listen", "0.0.0.0:0")
    assert done.exit_code == 2
    assert "0.0.0.0:0 is not this machine's loopback, so --keys must be given" in done.output
    done = run("ask", export, "--connect", "192.0.2.1:1", "--prompt", "to be")
    assert done.exit_code == 2
    assert "192.0.2.1:1 is not this machine's loopback, so --keys must be given" in done.output
    assert not worker_pid.exists()


@pytest.mark.parametrize("chosen", [("--set", "protocol=semi2k"), ("--protocol", "semi2k")])
def test_between_processes_no_protocol_runs_that_gives_a_secret_away(
    chosen: tuple[str, str], export: Path, worker_pid: Path
) -> None:
    commands = (
        ("serve", export, "--listen", "127.0.0.1:0", *chosen),
        ("ask", export, "--connect", "127.0.0.1:9", "--prompt", "to", *chosen),
        ("run", export, "--prompt", "to", "--link", "tcp", *chosen),
        ("chat", export, "--connect", "127.0.0.1:9", "--prompt", "to", "--yes", *chosen),
    )
    for command in commands:
        done = run(*command)
        assert done.exit_code == 2
        assert "protocol must be cheetah or aby3, got semi2k" in done.output, done.output
    assert not worker_pid.exists()


def test_what_is_published_with_keys_is_enough_to_know_the_server(
    export: Path, tmp_path: Path, worker_pid: Path, unused_address: str
) -> None:
    made = [run("keys", "--output", tmp_path / name) for name in ("server", "client")]
    assert [each.exit_code for each in made] == [0, 0]
    fingerprint = made[0].output.strip()
    public = tmp_path / "public"
    done = run("publish", export, "--output", public, "--keys", tmp_path / "server")
    assert done.output.split() == [str(public), fingerprint]
    assert not any(b"PRIVATE" in path.read_bytes() for path in public.iterdir())
    again = run("keys", "--output", tmp_path / "server")
    assert again.exit_code == 2 and "has a key already" in again.output
    arguments = ("--connect", unused_address, "--prompt", "to be", "--wait", 0.5)
    done = run("ask", public, "--keys", tmp_path / "client", *arguments)
    assert f"no server at {unused_address}" in done.output
    done = run("serve", export, "--listen", "127.0.0.1:0", "--keys", tmp_path / "server")
    assert done.exit_code == 2 and "clients.pem: cannot be read" in done.output


@pytest.mark.parametrize("given", ["file", "standard input"])
def test_a_prompt_may_come_where_nobody_sees_it(
    given: str, export: Path, tmp_path: Path, worker_pid: Path, unused_address: str
) -> None:
    (tmp_path / "prompt").write_text("to be ")
    arguments = ["ask", str(export), "--connect", unused_address, "--wait", "0.5"]
    command = [sys.executable, "-m", "aero.cli", "private", *arguments, "--prompt-file"]
    with (tmp_path / "prompt").open() as opened:
        done = subprocess.run(
            [*command, "-" if given == "standard input" else str(tmp_path / "prompt")],
            stdin=opened if given == "standard input" else subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
    # It was read and understood: only the server is missing.
    assert f"no server at {unused_address}" in done.stderr


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_ends_a_server_and_its_worker(export: Path, worker_pid: Path, name: str) -> None:
    with started("serve", str(export), "--listen", "127.0.0.1:0") as server:
        assert server.stderr is not None
        lines = [next(server.stderr) for _ in range(4)]
        assert lines[0].startswith(
            "a client that follows the protocol learns of each pass the token"
        )
        assert lines[1].startswith("a client that departs from the protocol is not held to this")
        assert lines[2].startswith("nothing is encrypted")
        assert re.match(TIME + r" waiting for clients on 127\.0\.0\.1:", lines[3])
        while not (worker_pid.exists() and worker_pid.read_text()):
            time.sleep(0.02)
        os.kill(server.pid, signal.Signals[name])
        assert server.wait(60) == 130
    assert ended(int(worker_pid.read_text()))


def test_both_parties_print_that_a_run_was_not_padded(
    export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.VARIABLE, str(pretending_python(tmp_path)))
    unpriced = ("--set", "fxp_div_goldschmidt_iters=3")
    told = r"not padded: this party sent [\d,]+ bytes, expected unknown"
    with started("serve", str(export), "--listen", "127.0.0.1:0", *unpriced) as server:
        assert server.stderr is not None
        waiting = next(line for line in server.stderr if "waiting for clients on" in line)
        address = waiting.split()[-1]
        asked = run("ask", export, "--connect", address, "--prompt", "to be", *unpriced)
        assert asked.exit_code == 0 and re.search(told, asked.output)
        lines = itertools.takewhile(lambda line: "served" not in line, server.stderr)
        assert any(re.search(told, line) for line in lines)


def test_every_line_on_a_client_has_time_address_and_fingerprint(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from aero.private.parties.events import Client, Listening, Lost, Refused, Served, Unpadded

    whose = ("ab" * 32, "192.0.2.1:4711")
    shown = Shown(layers=2, encrypted=True, reveal="token")
    shown.event(Listening("0.0.0.0:7700"))
    capsys.readouterr()
    for event in (Client(*whose, 3, 1), Unpadded("too much"), Served(*whose)):
        shown.event(event)
    shown.event(Client(*whose, 3, 1))
    shown.event(Lost("it left", *whose))
    shown.event(Refused("no TLS", 1, "192.0.2.9"))
    shown.event(Refused("two connections", 99, "192.0.2.9", whose[0]))
    shown.event(Lost("no memory for a worker"))
    lines = capsys.readouterr().err.splitlines()
    known = rf"192\.0\.2\.1:4711 {whose[0]} "
    expected = [
        known + "client: 3 tokens of prompt, 1 new",
        known + "not padded: too much",
        known + "served 0 tokens",
        known + "client: 3 tokens of prompt, 1 new",
        known + "lost: it left",
        r"192\.0\.2\.9 - refused: no TLS",
        rf"192\.0\.2\.9 {whose[0]} refused 99 more: two connections",
        "- - lost: no memory for a worker",
    ]
    for line, pattern in zip(lines, expected, strict=True):
        assert re.fullmatch(f"{TIME} {pattern}", line), line


def test_a_signal_ends_both_parties_of_a_run(export: Path, worker_pid: Path) -> None:
    with started("run", str(export), "--prompt-tokens", "1,2", "--link", "tcp") as both:
        while not (worker_pid.exists() and worker_pid.read_text()):
            assert both.poll() is None, both.stderr
            time.sleep(0.02)
        os.kill(both.pid, signal.SIGTERM)
        assert both.wait(60) == 130
    assert ended(int(worker_pid.read_text()))


@pytest.mark.parametrize("folder", ["nowhere", "export"])
def test_what_was_not_published_is_named(
    folder: str, export: Path, tmp_path: Path, worker_pid: Path
) -> None:
    (tmp_path / "export").mkdir()
    asked = tmp_path / folder
    done = run("ask", asked, "--connect", "127.0.0.1:9", "--prompt", "to be")
    assert done.exit_code == 2
    assert f"private: {asked} holds no network.json; give a folder from `aero private publish`" in (
        done.output
    )
    assert not worker_pid.exists()


@pytest.mark.parametrize(
    ("link", "named"),
    [
        ("carrier-pigeon", r"link must be memory, tcp, .*got 'carrier-pigeon'"),
        ("tcp", "(server|client): the private environment has no (spu|jax)"),
    ],
)
def test_what_lacks_to_a_run_is_named(
    export: Path, monkeypatch: pytest.MonkeyPatch, link: str, named: str
) -> None:
    monkeypatch.setenv(environment.VARIABLE, sys.executable)
    done = run("run", export, "--prompt-tokens", "1,2", "--link", link)
    assert done.exit_code == 2 and re.search(named, done.output, re.DOTALL)
