"""Programs on the emulated GPU of the C++ tests, compiled by the tests that change its kernels."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EMULATION = ROOT / "tests" / "cpp" / "kernels" / "cuda"
DRIVERS = ROOT / "tests" / "object_code"
COMPILE = ["g++", "-std=c++20"]
_FOLDER = tempfile.TemporaryDirectory()  # until this process ends


def require_compiler() -> None:
    """Skips the test where there is none."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++ to compile the emulated GPU with")


@functools.cache
def _objects() -> list[str]:
    """The emulated GPU itself, which no kernel changes."""
    require_compiler()
    made = []
    for name in ("emulated_block", "emulated_lane", "shared_memory", "stack_switch"):
        made.append(f"{_FOLDER.name}/{name}.o")
        source = str(EMULATION / f"{name}.cpp")
        subprocess.run([*COMPILE, "-O2", f"-I{ROOT}", "-c", source, "-o", made[-1]], check=True)
    return made


def built(driver: str, folder: Path, kernels: Path = ROOT / "kernels", *flags: str) -> Path:
    """A driver of tests/object_code as a program in `folder`, with the kernels of another."""
    program = folder / "driver"
    command = [*COMPILE, *flags, f"-I{kernels.parent}", f"-I{ROOT}", str(DRIVERS / driver)]
    subprocess.run([*command, *_objects(), "-o", str(program)], check=True)
    return program


def with_changed_kernels(folder: Path, *changes: tuple[str, str, str]) -> Path:
    """A copy of the kernels where each file of kernels/cuda has a new text in place of an old."""
    kernels = folder / "kernels"
    shutil.copytree(ROOT / "kernels", kernels)
    for file, old, new in changes:
        path = kernels / "cuda" / file
        text = path.read_text()
        assert old in text, f"{file} has no {old!r} to change"
        path.write_text(text.replace(old, new))
    return kernels
