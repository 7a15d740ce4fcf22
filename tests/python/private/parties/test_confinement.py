"""What a worker can still do, once it is taken over."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aero.private.parties.worker_pipe import Worker

PROGRAM = Path(__file__).parents[1] / "confined_program.py"


@pytest.fixture
def tried(tmp_path: Path) -> Callable[..., Any]:
    def run(*more: str) -> Any:
        allowed, keys = tmp_path / "allowed", tmp_path / "keys"
        for folder, name in ((allowed, "network.json"), (keys, "key.pem")):
            folder.mkdir()
            (folder / name).write_text("{}")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = str(listener.getsockname()[1])
            command = [sys.executable, str(PROGRAM), str(allowed), str(keys), port, *more]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_a_worker_that_is_taken_over_gets_no_key_no_program_and_no_network(tried: Any) -> None:
    found = tried()
    done, refused = "done", "PermissionError"
    assert found["read its network"] == found["import"] == found["write its own"] == done
    assert found["listen at a local socket"] == done
    assert found["core"] == [0, 0] and found["dumpable"] == 0
    assert found["status"]["NoNewPrivs"] == "1"
    assert {int(found["status"][f"Cap{kind}"], 16) for kind in ("Eff", "Prm", "Amb")} == {0}
    limited = {
        "files and programs": (
            "read a key", "list another folder", "write", "start a program", "start its own",
            "look into its supervisor",
        ),
        "TCP": ("connect", "listen"),
        "signals": ("signal its supervisor",),
    }  # fmt: skip
    for what, names in limited.items():
        if f"no limits on {what}" not in found["missing"]:
            assert {name: found[name] for name in names} == dict.fromkeys(names, refused)


def test_threads_that_would_keep_everything_are_named(tried: Any) -> None:
    assert "expected to come before all threads, got 2" in tried("with a thread")["refused"]


def test_a_worker_inherits_no_secret_of_the_environment_and_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    program = (
        "import json, os, sys; from pathlib import Path; sys.stdin.readline()\n"
        "open_ = [int(each) for each in os.listdir('/proc/self/fd')]\n"
        "found = {'names': sorted(os.environ), 'open': sorted(open_)[:-1]}\n"
        "Path(sys.argv[1]).write_text(json.dumps(found))\n"
        "sys.stdin.read()"
    )
    written = tmp_path / "found"
    with (tmp_path / "inherited").open("w") as opened:
        os.set_inheritable(opened.fileno(), True)
        worker = Worker([sys.executable, "-c", program, str(written)], {}, tmp_path / "log")
        while not written.exists() or not written.read_text():
            worker.check()
        worker.end()
    found = json.loads(written.read_text())
    assert found["open"] == [0, 1, 2]
    assert "HF_TOKEN" not in found["names"] and "HOME" not in found["names"]
    assert "OMP_NUM_THREADS" in found["names"]
