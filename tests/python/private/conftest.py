"""Programs in the private environment, for the tests that need it, and ports for the others."""

import json
import socket
import subprocess
from pathlib import Path

import pytest

from aero.private.environment import private_command
from aero.private.links import channel


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
