"""analysis.json and analysis.npz: whole or not at all, and read back as written."""

import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from aero.analysis import summarize_entropies
from aero.analysis.files import read_analysis, write_analysis
from aero.internals.atomic_files import (
    atomic_binary_file,
    write_bytes_atomically,
    write_json_atomically,
)
from aero.internals.records import record_bytes


def test_a_written_analysis_reads_back(tmp_path):
    rows = np.random.default_rng(0).random((2, 3, 4, 5))
    summary = summarize_entropies(rows, temperatures=[np.ones((4, 5))] * 2)
    write_analysis(tmp_path, summary)
    stored = read_analysis(tmp_path)
    assert json.loads(record_bytes(stored.values)) == summary.to_dict()
    np.testing.assert_array_equal(
        stored.arrays["entropy_by_position"], summary.entropy_by_position.astype(np.float32)
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["analysis.json", "analysis.npz"]


def test_a_run_without_analysis_gives_none(tmp_path):
    assert read_analysis(tmp_path) is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("analysis.json", b'{"head_entropy": [['),
        ("analysis.json", b"{}"),
        ("analysis.npz", b"PK\x03\x04 cut off"),
        ("analysis.npz", b""),
    ],
)
def test_a_damaged_analysis_names_the_file_and_the_command(tmp_path, name, content):
    write_analysis(tmp_path, summarize_entropies(np.ones((1, 1, 1, 2))))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name}: expected .*aero analyze"):
        read_analysis(tmp_path)


def test_a_full_disk_keeps_the_earlier_file(tmp_path):
    path = tmp_path / "a.json"
    write_json_atomically(path, {"step": 1})
    with pytest.raises(OSError, match="No space left"), atomic_binary_file(path) as file:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert path.read_text() == '{\n  "step": 1\n}\n'
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupt_leaves_no_temporary_file(tmp_path):
    with pytest.raises(KeyboardInterrupt), atomic_binary_file(tmp_path / "a") as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor() as pool:
        read = pool.submit((tmp_path / "pipe").read_bytes)
        write_bytes_atomically(tmp_path / "pipe", b"whole")
        assert read.result(timeout=60) == b"whole"
    assert (tmp_path / "pipe").is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_link_stays_one(tmp_path):
    (tmp_path / "link").symlink_to("file")
    for content in (b"new", b"newer"):
        write_bytes_atomically(tmp_path / "link", content)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "file").read_bytes() == content


def test_json_refuses_nan_before_touching_the_file(tmp_path):
    write_bytes_atomically(tmp_path / "a.json", b"{}")
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json_atomically(tmp_path / "a.json", {"loss": float("nan")})
    assert (tmp_path / "a.json").read_bytes() == b"{}"
