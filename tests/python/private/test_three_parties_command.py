"""`aero private serve --helps`, and `ask` and `chat` with a third party."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from aero.private import environment
from aero.private.links.keys import CERTIFICATE

from .pretending import pretending_python
from .test_private_parties_command import run, started

NAMES = ("server", "helper", "client")


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, str]:
    """Folders of keys; server and helper know the client, and the server its helper."""
    made = {name: run("keys", "--output", tmp_path / name).output.strip() for name in NAMES}
    for name in ("server", "helper"):
        copy(tmp_path / "client" / CERTIFICATE, tmp_path / name / "clients.pem")
    copy(tmp_path / "helper" / CERTIFICATE, tmp_path / "server" / "helper.pem")
    return made


def copy(path: Path, to: Path) -> None:
    to.write_bytes(path.read_bytes())
    to.chmod(0o644)


def test_three_commands_answer_and_converse_under_keys(
    export: Path, tmp_path: Path, keys: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.VARIABLE, str(pretending_python(tmp_path)))
    public, aby3 = tmp_path / "public", ("--protocol", "aby3")
    done = run("publish", export, "--output", public, "--keys", tmp_path / "server")
    assert done.output.split() == [str(public), keys["server"], keys["helper"]]
    addresses, logs = [], []
    with contextlib.ExitStack() as stack:
        for folder, name in ((export, "server"), (public, "helper")):
            helps = ("--helps", addresses[0]) if addresses else ()
            given = (str(folder), "--listen", "127.0.0.1:0", "--keys", str(tmp_path / name))
            program = stack.enter_context(started("serve", *given, *aby3, *helps))
            assert program.stderr is not None
            lines = []
            while "waiting for clients on" not in (lines or [""])[-1]:
                lines.append(next(program.stderr))
            addresses.append(lines[-1].split()[-1])
            logs.append((lines, program.stderr))
        assert "client and helper together can read the weights" in "".join(logs[0][0])
        assert "two of them together can read everything" in "".join(logs[1][0])
        both = ("--connect", addresses[0], "--helper", addresses[1])
        client = (*both, "--keys", tmp_path / "client", "--prompt-tokens", "1,2,3", *aby3)
        asked = run("ask", public, *client, "--tokens", 2, "--json")
        assert asked.exit_code == 0, asked.output
        assert json.loads(asked.output.splitlines()[-1]) == {"tokens": [0, 1]}
        talk = ("chat", public, *client, "--tokens", 2, "--yes", "--json")
        talked = subprocess.run(
            [sys.executable, "-m", "aero.cli", "private", *map(str, talk)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert json.loads(talked.stdout)["answers"] == [[0, 1]], talked.stderr
        for _, log in logs:
            for _ in range(2):
                served = next(line for line in log if " served " in line)
                assert keys["client"] in served


def test_what_is_missing_of_a_third_party_is_named(
    export: Path, tmp_path: Path, keys: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.VARIABLE, str(pretending_python(tmp_path)))
    aby3, server = ("--protocol", "aby3"), ("--keys", tmp_path / "server")
    listening, asking = (
        ("--listen", "127.0.0.1:0"),
        ("--connect", "127.0.0.1:9", "--prompt-tokens", "1"),
    )
    (tmp_path / "server" / "helper.pem").rename(tmp_path / "helper.pem")
    for command, expected in (
        (("serve", export, *listening, *aby3, *server), "helper.pem: cannot be read"),
        (("serve", export, *listening, "--helps", "127.0.0.1:9"), "--helps must be left out"),
        (("ask", export, *asking, *aby3), "--helper must be given"),
        (("chat", export, *asking, "--yes", *aby3), "--helper must be given"),
        (("ask", export, *asking, "--helper", "127.0.0.1:8"), "--helper must be left out"),
    ):
        done = run(*command)
        assert done.exit_code == 2
        assert expected in done.output, done.output
