"""`aero cost` as tests call it, and the link and the sizes that they share."""

from __future__ import annotations

from typing import Any

from typer.testing import CliRunner

from aero.cli import app
from aero.mpc.profiles import link_profile

LINK = link_profile(20, 200)
TINY: dict[str, Any] = {"model": "tiny", "context_length": 16}


def run(*arguments: str) -> str:
    """What `aero cost` prints."""
    done = CliRunner().invoke(app, ["cost", *arguments])
    assert done.exit_code == 0, done.output
    return str(done.stdout)
