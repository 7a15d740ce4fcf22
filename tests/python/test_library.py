"""The operator library: its needs, and the error where one is missing."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from aero import _library


@pytest.mark.parametrize("version", ["2.10.0", "2.9.1+cpu", "1.13.1"])
def test_an_older_torch_is_refused_with_both_versions_and_the_rebuild_command(version: str) -> None:
    message = (
        f"aero's operator library is built for torch 2.11 or newer, but torch {version} is "
        "installed: upgrade torch, then rebuild with "
        "`pip install --no-build-isolation --force-reinstall --no-deps .`"
    )
    with pytest.raises(ImportError, match=f"^{re.escape(message)}$"):
        _library.require_torch(version)


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cpu", "3.0.0a0+git1234", "2.20.1"])
def test_newer_torch_is_accepted(version: str) -> None:
    _library.require_torch(version)


def test_a_missing_library_is_an_error_with_the_rebuild_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unbuilt = SimpleNamespace(origin=str(tmp_path / "_core.so"))
    for spec in (None, unbuilt):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, spec=spec: spec)
        with pytest.raises(
            ImportError, match=r"libaero_ops\.so is missing: rebuild with `pip install"
        ):
            _library.library_path()


def test_the_target_version_is_the_one_the_library_was_compiled_for() -> None:
    cmake = Path(__file__).parents[2] / "CMakeLists.txt"
    match = re.search(r"TORCH_TARGET_VERSION=0x(..)(..)", cmake.read_text())
    assert match is not None
    assert tuple(int(part, 16) for part in match.groups()) == _library.TORCH_TARGET_VERSION


def test_the_library_asks_the_loader_for_libtorch_itself() -> None:
    """Without that entry CUDA builds of torch would hide their stream functions from it."""
    readelf = shutil.which("readelf")
    assert readelf is not None, "binutils is part of the compiler this project is built with"
    entries = subprocess.run(
        [readelf, "-d", _library.library_path()], capture_output=True, text=True, check=True
    ).stdout
    needed = set(re.findall(r"NEEDED.*\[(.*?)\]", entries))
    assert {"libtorch.so", "libtorch_cpu.so"} <= needed
    assert not any("python" in name or "gomp" in name or "c10" in name for name in needed)
