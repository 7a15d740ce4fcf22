"""Programs in the private environment, for the tests that need it."""

import json
import subprocess
from pathlib import Path

import pytest

from aero.private.environment import private_command


@pytest.fixture(scope="session")
def run_private():
    """Runs a program of this folder in the private environment; its last line is JSON."""

    def run(program, *arguments, seconds=300):
        command = [*private_command(str(Path(__file__).parent / program)), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run
