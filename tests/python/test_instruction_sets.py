"""The table of instruction sets (kernels/cpu/dispatch.cpp), and all that must follow it."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path

import pytest

from aero import _library

from ..mutants.edits import OTHER_SETS

ROOT = Path(__file__).parents[2]
MACHINES = ("__x86_64__", "__aarch64__")


def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def table() -> dict[str, list[str]]:
    """Names for each machine, and under "" those of every machine."""
    found = re.search(
        r"kInstructionSets\[\] = \{(.*?)\n\};", text("kernels/cpu/dispatch.cpp"), re.S
    )
    assert found
    names: dict[str, list[str]] = {"": []}
    machine = ""
    for line in found[1].splitlines():
        if guard := re.match(r"#(?:el)?if defined\((\w+)\)", line):
            machine = guard[1]
            names[machine] = []
        elif row := re.match(r'\s+\{"(\w+)"', line):
            names[machine].append(row[1])
    return names


NAMES = [name for names in table().values() for name in names]


def test_every_machine_has_its_sets_beside_the_plain_one() -> None:
    assert table()[""] == ["scalar"]
    assert list(table()) == ["", *MACHINES] and all(table()[machine] for machine in MACHINES)
    assert len(NAMES) == len(set(NAMES))


def test_every_set_is_one_file_of_kernels_and_the_reverse() -> None:
    declared = {
        path.stem
        for path in (ROOT / "kernels/cpu").glob("*.cpp")
        if re.search(r"^const Kernels k\w+ = ", path.read_text("utf-8"), re.M)
    }
    assert declared == set(NAMES)


def test_the_processor_has_one_of_them() -> None:
    assert _library.cpu_isa() in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_what_depends_on_the_sets_names_every_one(name: str) -> None:
    assert f"`{name}`" in text("docs/reference/environment.md")
    assert f"`{name}.cpp`" in text("kernels/README.md").replace("`cpu/", "`")
    assert f'"{name}"' in text("kernels/cpu/dispatch.h")
    checked = re.search(r'INCLUDE REGEX "(.*)"\)', text("kernels/cpu/check_linkage.cmake"))
    assert checked and re.search(checked[1].replace("\\\\", "\\"), f"/build/{name}.cpp.o")
    if name != "scalar":
        assert OTHER_SETS.fullmatch(f"kernels/cpu/{name}.cpp")
        patterns = re.findall(r'source MATCHES "(.*)"\)', text("CMakeLists.txt"))
        assert any(re.search(p.replace("\\\\", "\\"), f"kernels/cpu/{name}.cpp") for p in patterns)


# Which peak a share is of depends on the processor, so each way to measure it compiles everywhere.
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the peaks are measured on x86")
@pytest.mark.parametrize(
    ("processor", "instruction"),
    [("haswell", None), ("cooperlake", "vdpbf16ps"), ("sapphirerapids", "tdpbf16ps")],
)
def test_the_peak_of_bfloat16_is_that_of_the_fastest_products(
    processor: str, instruction: str | None, tmp_path: Path
) -> None:
    code = tmp_path / "peaks.s"
    compiler = [os.environ.get("CXX", "c++"), "-O1", f"-march={processor}", "-std=c++20", "-w"]
    source = str(ROOT / "benchmarks/peaks.cpp")
    subprocess.run([*compiler, f"-I{ROOT}", "-S", source, "-o", str(code)], check=True)
    subprocess.run([*compiler, "-c", str(code), "-o", os.devnull], check=True)
    found = set(re.findall(r"\b\w+bf16ps\b", code.read_text("utf-8")))
    assert found == ({instruction} if instruction else set())
