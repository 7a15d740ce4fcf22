"""Registers and spills of the CUDA kernels, as the assembler reported them when they were built.

Held against tests/object_code/cuda_budget.json for every architecture. Renew the budget after a
change that is meant, and say so in its commit:

    python tests/python/test_cuda_object_code.py
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUDGET = ROOT / "tests" / "object_code" / "cuda_budget.json"
KERNEL = re.compile(
    r"Compiling entry function '(?P<name>\S+)' for '(?P<architecture>\w+)'\n"
    r".*?(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads\n"
    r".*?Used (?P<registers>\d+) registers",
    re.DOTALL,
)
Usage = dict[str, dict[str, dict[str, int]]]


def reports() -> list[Path]:
    """What the assembler said in the newest build that compiled the kernels."""
    folders = [path for path in ROOT.glob("build/*/cuda") if list(path.glob("*.ptxas"))]
    if not folders:
        pytest.skip(
            "the installed library was built without CUDA kernels: no nvcc, or AERO_CUDA=OFF"
        )
    newest = max(folders, key=lambda folder: folder.stat().st_mtime)
    return sorted(newest.glob("*.ptxas"))


def compiler(reports: list[Path]) -> str:
    """The release of the nvcc that made them, such as 13.0."""
    cache = (reports[0].parents[1] / "CMakeCache.txt").read_text()
    nvcc = re.search(r"^AERO_NVCC:\w+=(.+)$", cache, re.MULTILINE)
    assert nvcc is not None
    said = subprocess.run([nvcc[1], "--version"], capture_output=True, text=True, check=True)
    release = re.search(r"release ([\d.]+)", said.stdout)
    assert release is not None
    return release[1]


def built_and_budget() -> tuple[Usage, Usage]:
    """What was built, and the budget for the compiler that built it."""
    files, kept = reports(), json.loads(BUDGET.read_text())
    if (here := compiler(files)) != kept["nvcc"]:
        pytest.skip(f"the budget is for nvcc {kept['nvcc']}, here is {here}")
    return usage(files), kept["kernels"]


def readable(names: list[str]) -> list[str]:
    """Kernel names such as `ForwardPass<ForwardShape<BFloat16, 64>>`."""
    plain = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True)
    found = []
    for line in plain.stdout.splitlines():
        name = re.sub(r"aero::kernels::cuda::|\(anonymous namespace\)::|\(.*", "", line)
        found.append(
            name.removeprefix("void run_pass<").removesuffix(">").replace(" >", ">").strip()
        )
    return found


def usage(files: list[Path]) -> Usage:
    """Registers and bytes spilled, by kernel and architecture."""
    found = [match for file in files for match in KERNEL.finditer(file.read_text())]
    table: Usage = {}
    for match, name in zip(found, readable([match["name"] for match in found]), strict=True):
        table.setdefault(name, {})[match["architecture"]] = {
            "registers": int(match["registers"]),
            "spilled": int(match["stores"]) + int(match["loads"]),
        }
    return table


def test_no_kernel_uses_more_registers_or_spills_more_than_its_budget() -> None:
    built, kept = built_and_budget()
    for kernel, by_architecture in built.items():
        for architecture, used in by_architecture.items():
            allowed = kept.get(kernel, {}).get(architecture)
            assert allowed is not None, f"{kernel} for {architecture} has no budget"
            for what, count in used.items():
                assert count <= allowed[what], f"{kernel} for {architecture}: {what}"


def test_every_kernel_of_the_budget_is_built() -> None:
    built, kept = built_and_budget()
    assert built.keys() == kept.keys()
    architectures = {name for by_architecture in kept.values() for name in by_architecture}
    assert architectures == {"sm_80", "sm_86", "sm_90a", "sm_100"}


if __name__ == "__main__":
    table, release = usage(reports()), compiler(reports())
    lines = ",\n".join(f"    {json.dumps(k)}: {json.dumps(table[k])}" for k in sorted(table))
    BUDGET.write_text(f'{{\n  "nvcc": "{release}",\n  "kernels": {{\n' + lines + "\n  }\n}\n")
