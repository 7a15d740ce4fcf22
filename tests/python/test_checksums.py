"""`SHA256SUMS` as the system's own tool reads and writes it, and the names of damage."""

import hashlib
import subprocess

import pytest

from aero.internals.atomic_files import checksums_of, damage, read_checksums, write_checksums
from aero.reading import UnreadableFileError

CONTENTS = {"a": b"", "b c.json": b"{}", "deep/er/d.bin": bytes(range(256)) * 9000}


@pytest.fixture
def folder(tmp_path):
    for name, content in CONTENTS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / ".lock").write_text("hidden")
    write_checksums(tmp_path, checksums_of(tmp_path))
    return tmp_path


def test_the_systems_tool_agrees(folder):
    expected = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENTS.items()}
    assert read_checksums(folder) == expected
    command = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count(": OK") == len(CONTENTS), done.stderr
    written = subprocess.run(["sha256sum", *CONTENTS], cwd=folder, capture_output=True)
    (folder / "SHA256SUMS").write_bytes(written.stdout)
    assert damage(folder) == []


@pytest.mark.parametrize("name", CONTENTS)
def test_what_is_flipped_added_or_gone_is_named(name, folder):
    file, content = folder / name, CONTENTS[name]
    file.write_bytes(bytes([content[0] ^ 1]) + content[1:] if content else b"x")
    assert damage(folder) == [f"{file} does not match its SHA-256"]
    assert damage(folder, ["a", "b c.json", "deep/er/d.bin"]) == damage(folder)
    assert damage(folder, CONTENTS.keys() - {name}) == []
    file.unlink()
    assert damage(folder) == [f"{file} is missing"]
    file.mkdir()
    assert damage(folder) == [f"{file} is missing"]


def test_a_list_that_was_cut_or_flipped_vouches_for_nothing(folder):
    whole = (folder / "SHA256SUMS").read_bytes()
    for size in range(len(whole) - 1):  # the last line end protects nothing
        (folder / "SHA256SUMS").write_bytes(whole[:size])
        assert damage(folder), size
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1
        (folder / "SHA256SUMS").write_bytes(flipped)
        assert damage(folder), place
    (folder / "SHA256SUMS").unlink()
    assert damage(folder) == [f"{folder / 'SHA256SUMS'} is missing"]


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "./a", "a//b", "a\0", ""])
def test_names_that_lead_elsewhere_are_refused(name, folder):
    (folder / "SHA256SUMS").write_text(f"{'0' * 64}  {name}\n")
    if name == "a\0":
        assert damage(folder)
        return
    with pytest.raises(UnreadableFileError, match="SHA256SUMS, line 1: expected a SHA-256 and a"):
        read_checksums(folder)
