"""`aero doctor`: every state that it names can be brought about."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aero import _core, _library, cli
from aero.cli import diagnosis as doctor


def diagnosis(code: int = 0) -> dict[str, dict[str, str]]:
    """The command's JSON, by part."""
    result = CliRunner().invoke(cli.app, ["doctor", "--json"])
    assert result.exit_code == code, result.output
    return {finding["name"]: finding for finding in json.loads(result.stdout)}


def pretend_torch(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Puts a torch of our own before the installed one, for processes that start from now on."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_a_working_installation_has_nothing_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AERO_CPU_ISA", raising=False)
    found = diagnosis()
    assert [*found] == [
        "python", "native code", "torch", "instruction set", "CUDA", "SPU", "compiler", "CMake",
        "nvcc",
    ]  # fmt: skip
    assert {finding["state"] for finding in found.values()} <= {"ok", "note"}
    assert doctor.REINSTALL == _library.REBUILD_COMMAND
    assert found["torch"]["found"].endswith("; the operators are built for 2.11 and newer")
    assert found["native code"]["found"].startswith(f"aero {_core.build_info()['version']}, ")
    for feature in _core.cpu_features():
        assert feature in found["instruction set"]["found"]


def test_text_has_a_line_for_each_part_and_one_for_each_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = [doctor.Finding("a", "ok", "here"), doctor.Finding("b", "note", "gone", "fetch it")]
    monkeypatch.setattr(doctor, "findings", lambda: iter(told))
    result = CliRunner().invoke(cli.app, ["doctor"])
    assert result.exit_code == 0
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["ok", "a", "here"], ["note", "b", "gone"], ["->", "fetch", "it"],
    ]  # fmt: skip


TORCHES = {
    "missing": (
        "raise ModuleNotFoundError(\"No module named 'torch'\")",
        "ModuleNotFoundError: No module named 'torch'",
        "install PyTorch 2.11 or newer: pip install torch; costs (`aero cost`) work without",
    ),
    "old": ("__version__ = '2.10.1'", "but torch 2.10.1 is installed", ""),
    "killed": (
        "import os; os.kill(os.getpid(), 4)", "the process ended by SIGILL",
        "rebuild for this machine: " + doctor.REINSTALL,
    ),
    "broken": ("import no_such_library", "No module named 'no_such_library'", doctor.REINSTALL),
}  # fmt: skip


@pytest.mark.parametrize("torch", TORCHES)
def test_a_torch_that_does_not_serve_is_wrong_and_the_rest_is_looked_at(
    torch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, said, todo = TORCHES[torch]
    pretend_torch(tmp_path, monkeypatch, program)
    found = diagnosis(code=1)
    assert found["operators"]["state"] == "wrong"
    assert said in found["operators"]["found"]
    assert found["operators"]["todo"].endswith(todo)
    assert "CMake" in found and "torch" not in found


def test_an_instruction_set_that_was_asked_for_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERO_CPU_ISA", "scalar")
    found = diagnosis()["instruction set"]
    assert found["state"] == "note" and found["found"].startswith("scalar; ")
    assert found["found"].endswith("AERO_CPU_ISA=scalar")


def test_operators_that_compute_something_else_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_OPERATORS", doctor._OPERATORS.replace("log(2)", "log(3)"))
    found = diagnosis(code=1)["instruction set"]
    assert found["state"] == "wrong" and "computes wrong entropies" in found["found"]


def test_missing_tools_and_a_wrong_private_python_are_notes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("AERO_PRIVATE_PYTHON", str(tmp_path / "python"))
    found = diagnosis()
    for name in ("SPU", "compiler", "CMake"):
        assert found[name]["state"] == "note" and found[name]["todo"]
    assert found["compiler"]["found"] == "no g++"
    assert found["SPU"]["found"].endswith(f"must be a Python, got {tmp_path}/python")


def test_a_compiler_that_is_too_old_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, version in (("old", "11.4.0"), ("new", "12.0.0")):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\necho {version}\n")
        program.chmod(0o755)
    for name, state in (("old", "note"), ("new", "ok")):
        monkeypatch.setenv("CXX", str(tmp_path / name))
        (compiler,) = (f for f in doctor._build_tools() if f.name == "compiler")
        assert compiler.state == state
    assert compiler.found == f"12.0.0 ({tmp_path}/new)"


GPU = doctor._Operators(
    torch="2.13.0", torch_cuda="13.0", gpu="H200", target="2.11", isa="avx2", features=[],
    obstacle="", right=True,
)  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "state", "said"),
    [
        ({}, "ok", "torch uses CUDA 13.0 on H200"),
        (
            {"obstacle": "built without CUDA kernels"},
            "wrong",
            "without CUDA kernels",
        ),
        ({"gpu": ""}, "", "torch uses CUDA 13.0 and finds no GPU"),
        ({"torch_cuda": "", "gpu": ""}, "", "torch has no CUDA"),
    ],
)
def test_a_gpu_that_aero_cannot_use_is_wrong(facts: dict[str, str], state: str, said: str) -> None:
    found = doctor._cuda(replace(GPU, **facts))
    assert said in found.found
    assert found.state == state if state else found.state in ("ok", "note")
    assert bool(found.todo) == (found.state == "wrong" or "NVIDIA driver, but" in found.found)


def test_without_torch_the_command_itself_starts() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from aero.cli.diagnosis import findings; print(next(findings()).name)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "python\n", done.stderr
