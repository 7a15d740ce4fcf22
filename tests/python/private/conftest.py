"""Programs in the private environment, for the tests that need it, and ports for the others."""

import json
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aero
from aero.private.environment import private_command
from aero.private.links import channel
from aero.private.parties.supervision import TimeLimits

from ..export.conftest import trained
from .pretending import LIMITS, People, Served, pretending_python


@pytest.fixture(autouse=True)
def _short_farewells(monkeypatch):
    """Strangers of these tests do not close their end, and a party waits for that."""
    monkeypatch.setattr(channel, "_LINGER_SECONDS", 0.3)


@pytest.fixture(scope="session")
def run_private():
    """Runs a program of this folder in the private environment; its last line is JSON."""

    def run(program, *arguments, seconds=300):
        command = [*private_command(str(Path(__file__).parent / program)), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture
def unused_address():
    """HOST:PORT where nobody listens; no other program gets that port meanwhile."""
    with socket.socket() as taken:
        # So that the test itself may listen there.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network as a server has it."""
    return Path(aero.export_weights(trained("SM+ScFuFFN"), tmp_path_factory.mktemp("export")))


@pytest.fixture
def people(tmp_path: Path) -> People:
    """Parties with keys, by name."""
    return People(tmp_path)


@pytest.fixture
def limits() -> TimeLimits:
    """Of servers, unless a module has its own."""
    return LIMITS


@pytest.fixture
def serving(
    export: Path, people: People, limits: TimeLimits, tmp_path: Path
) -> Iterator[Callable[..., Served]]:
    """Starts servers that know these people, without TLS where nobody is named."""
    made: list[Served] = []

    def start(*known: str, **job: Any) -> Served:
        security = people.security("server", *known) if known else None
        given = {"security": security, "limits": limits, **job}
        made.append(Served(export, pretending_python(tmp_path), **given))
        return made[-1]

    yield start
    for each in made:
        each.end()
