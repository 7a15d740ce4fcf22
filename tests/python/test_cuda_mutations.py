"""Deliberate errors in the CUDA passes: the emulated GPU must tell each of them from the truth."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EMULATION = ROOT / "tests" / "cpp" / "kernels" / "cuda"
DRIVER = ROOT / "tests" / "object_code" / "cuda_passes.cpp"
# Unoptimised: compiling takes longer than running.
COMPILE = ["g++", "-std=c++20", "-O0"]

# What is broken, where, what stands there, what is put in its place.
MUTATIONS = [
    ("swizzle left out", "shared_rows.h", "column ^ (row & 7)", "column"),
    ("swizzle beyond the row", "shared_rows.h", "column ^ (row & 7)", "column ^ (row & 15)"),
    ("diagonal one key late", "attention_geometry.h", "block * 8 + n >= seen",
     "block * 8 + n > seen"),
    ("mask ignored", "attention_geometry.h", "!mask[n * visible.query_stride]", "false"),
    ("left fragments exchanged", "products.h", "row + in_warp % 16, 2 * step + in_warp / 16",
     "row + in_warp / 16 * 8 + in_warp % 8, 2 * step + in_warp / 8 % 2"),
    ("weights as operand exchanged", "products.h",
     "a[1] = Lane::pack(Element{}, sums[0][2], sums[0][3])",
     "a[1] = Lane::pack(Element{}, sums[1][0], sums[1][1])"),
    ("entropy not rescaled", "../online_softmax.h", "factor * (score_sum + delta * sum)",
     "factor * score_sum"),
    ("copy not waited for", "attention_geometry.h", "lane.template wait_copies<0>()",
     "lane.template wait_copies<1>()"),
    ("barrier left out", "attention_geometry.h", "lane.barrier();  // this tile", "// this tile"),
    ("half of a row summed", "lane.h", "return value + lane.exchange(value, 2)", "return value"),
]  # fmt: skip


@pytest.fixture(scope="module")
def emulation(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Objects of the emulated GPU, which no mutation touches."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++ to compile deliberate errors with")
    folder = tmp_path_factory.mktemp("emulation")
    objects = []
    for name in ("emulated_block", "emulated_lane", "shared_memory", "stack_switch"):
        objects.append(folder / f"{name}.o")
        command = ["g++", "-std=c++20", "-O2", f"-I{ROOT}", "-c", str(EMULATION / f"{name}.cpp")]
        subprocess.run([*command, "-o", str(objects[-1])], check=True)
    return objects


def run_driver(
    kernels: Path, objects: list[Path], folder: Path
) -> subprocess.CompletedProcess[str]:
    """Compiles the driver with the kernels that lie beside `kernels`, and runs it."""
    program = folder / "cuda_passes"
    command = [*COMPILE, f"-I{kernels.parent}", f"-I{ROOT}", str(DRIVER), *map(str, objects)]
    subprocess.run([*command, "-o", str(program)], check=True)
    return subprocess.run([program], capture_output=True, text=True, timeout=300)


def test_the_passes_as_they_are_are_right(emulation: list[Path], tmp_path: Path) -> None:
    done = run_driver(ROOT / "kernels", emulation, tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("what", "file", "old", "new"), MUTATIONS, ids=[m[0] for m in MUTATIONS])
def test_a_deliberate_error_is_seen(
    what: str, file: str, old: str, new: str, emulation: list[Path], tmp_path: Path
) -> None:
    kernels = tmp_path / "kernels"
    shutil.copytree(ROOT / "kernels", kernels)
    broken = kernels / "cuda" / file
    text = broken.read_text()
    assert old in text, f"nothing to break: {what}"
    broken.write_text(text.replace(old, new))
    assert run_driver(kernels, emulation, tmp_path).returncode == 1
