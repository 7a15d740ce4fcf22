"""The package is built with what a machine has, or taken as it was built elsewhere."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _the_script_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "packaging")


def test_every_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import build_offline

    missing = build_offline.missing_tools(str(tmp_path))
    for name in ("CMake", "ninja", "nvcc", "C++20 compiler"):
        assert any(name in text for text in missing)
    assert not any("Python package" in text for text in missing)
    monkeypatch.setattr(build_offline, "PACKAGES", {"torch": (99, 0), "no_such_package": (1, 0)})
    missing = build_offline.missing_tools(str(tmp_path))
    for name in ("torch 99.0 or newer", "no_such_package 1.0 or newer"):
        assert any(f"the Python package {name}, for" in text for text in missing)
    monkeypatch.setattr(build_offline, "search_path", lambda: str(tmp_path))
    with pytest.raises(SystemExit, match=r"this machine lacks\s+- CMake 3.25"):
        build_offline.build("90a")


@pytest.fixture
def small_project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A package whose native library is a file that CMake writes."""
    import build_offline

    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\n"
        "project(small LANGUAGES NONE)\n"
        'file(WRITE ${CMAKE_BINARY_DIR}/libaero_ops.so "${AERO_CUDA} ${AERO_CUDA_ARCHITECTURES}")\n'
        "install(FILES ${CMAKE_BINARY_DIR}/libaero_ops.so DESTINATION aero)\n"
    )
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    package = tmp_path / "python" / "aero"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "ops.py").write_text("")
    monkeypatch.setattr(build_offline, "missing_tools", lambda _: [])
    for name, path in {
        "ROOT": "",
        "OFFLINE": "build/offline",
        "NATIVE": "build/offline/native",
        "SITE": "build/offline/site",
    }.items():
        monkeypatch.setattr(build_offline, name, tmp_path / path)
    return tmp_path


def test_what_is_built_lies_beside_the_python_files(small_project: Path) -> None:
    import build_offline

    for _ in range(2):  # the second time over the first
        site = build_offline.build("80;90a")
        assert sorted(path.name for path in (site / "aero").iterdir()) == [
            "__init__.py", "libaero_ops.so", "ops.py",
        ]  # fmt: skip
        assert (site / "aero" / "libaero_ops.so").read_text() == "ON 80;90a"
    (small_project / "CMakeLists.txt").write_text("message(FATAL_ERROR none)")
    with pytest.raises(SystemExit, match="build_offline: failed: cmake -S"):
        build_offline.build("")


def carried(project: Path) -> Path:
    """Leaves of a build what another machine gets of it, with a mark in the library."""
    import build_offline

    build_offline.build("90a")
    shutil.rmtree(project / "build" / "offline" / "tree")
    library = project / "build" / "offline" / "native" / "aero" / "libaero_ops.so"
    library.write_text("carried")
    # Where a module of the library's name need not be one of this Python.
    (library.parent / "_core.py").write_text("")
    return project / "build" / "offline" / "site" / "aero" / library.name


def test_a_library_that_was_built_elsewhere_from_these_sources_is_taken(
    small_project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import build_offline

    taken = carried(small_project)
    monkeypatch.setattr(sys, "executable", sys._base_executable)  # type: ignore[attr-defined]
    monkeypatch.setattr(build_offline, "missing_tools", lambda _: ["everything"])
    monkeypatch.setenv("PYTHONPATH", str(small_project / "elsewhere"))
    (small_project / "elsewhere").mkdir()
    (small_project / "elsewhere" / "packages_there.py").write_text("")
    (small_project / "python" / "aero" / "new.py").write_text("")
    (small_project / "python" / "aero" / "ops.py").write_text("import packages_there")
    build_offline.build("90a")
    assert taken.read_text() == "carried"
    assert taken.with_name("new.py").exists()


@pytest.mark.parametrize("change", ["a source", "the GPU", "the version", "it cannot be loaded"])
def test_a_library_that_does_not_fit_is_built_again(
    change: str, small_project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import build_offline

    taken = carried(small_project)
    monkeypatch.setattr(sys, "executable", sys._base_executable)  # type: ignore[attr-defined]
    if change == "a source":
        (small_project / "kernels").mkdir()
        (small_project / "kernels" / "new.cu").write_text("// new")
    elif change == "the version":
        (small_project / "pyproject.toml").write_text('[project]\nversion = "1.2.4"\n')
    elif change == "it cannot be loaded":
        (small_project / "python" / "aero" / "ops.py").write_text("raise OSError('no such symbol')")
    chosen = "80" if change == "the GPU" else "90a"
    build_offline.build(chosen)
    assert taken.read_text() == f"ON {chosen}"


def test_a_package_that_is_there_is_not_looked_at_again(
    small_project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run on a borrowed machine asks for it before every step."""
    import build_offline

    looked: list[int] = []
    built = build_offline.build("90a")
    shutil.rmtree(build_offline.OFFLINE / "tree")
    monkeypatch.setattr(build_offline, "can_be_loaded", lambda: bool(looked.append(1)) or True)
    monkeypatch.setattr(build_offline, "put_together", lambda: looked.append(2))
    assert build_offline.build("90a") == built and not looked
    changed = small_project / "python" / "aero" / "ops.py"
    changed.write_text("changed = True\n")
    assert build_offline.build("90a") == built and looked == [2, 1]


@pytest.mark.parametrize(
    ("said", "chosen"),
    [("9 0\n", "90a"), ("8 0\n8 6\n", "80;86"), ("8 9\n", "86"), ("12 0\n", ""), ("", "")],
)
def test_the_kernels_are_compiled_for_the_gpus_that_are_there(
    said: str, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import build_offline

    answer: Callable[..., Any] = lambda *_, **__: subprocess.CompletedProcess([], 0, said, "")  # noqa: E731
    monkeypatch.setattr(subprocess, "run", answer)
    assert build_offline.architectures() == chosen
