"""Temporary folders: they hold weights, and must not outlive who made them."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from aero.private.temporary import temporary_folder


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


HOLDER = """
import sys, time
from aero.private.temporary import temporary_folder
with temporary_folder() as folder:
    (folder / "weights").write_bytes(b"secret")
    print(folder, flush=True)
    time.sleep(600)
"""


def test_nobody_else_can_enter_a_folder_and_it_ends_with_its_block() -> None:
    with temporary_folder() as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "inner").mkdir()
    assert not folder.exists()


def test_the_next_program_removes_what_a_killed_one_left_and_nothing_in_use(place: Path) -> None:
    holders = [
        subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    folders = [Path(holder.stdout.readline().strip()) for holder in holders if holder.stdout]
    (place / "aero-private.no-folder").write_bytes(b"kept")
    (place / "aero-private.link").symlink_to(place)
    holders[0].kill()
    holders[0].wait()
    assert (folders[0] / "weights").exists()
    with temporary_folder() as own:
        assert not folders[0].exists()
        assert (folders[1] / "weights").read_bytes() == b"secret"
        assert own.is_dir() and place.is_dir()
    assert (place / "aero-private.no-folder").exists()
    for holder in holders:
        holder.kill()
        holder.communicate()


def test_folders_of_other_users_are_left_alone(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = place / "aero-private.theirs"
    theirs.mkdir()
    monkeypatch.setattr(os, "getuid", lambda: theirs.stat().st_uid + 1)
    with temporary_folder():
        pass
    assert theirs.exists()
