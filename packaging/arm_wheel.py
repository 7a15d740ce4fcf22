"""Builds the wheel for 64-bit ARM on Linux and tries it there under QEMU: `make arm-wheel`.

    python packaging/arm_wheel.py --torch 2.13.0

Python for ARM comes from Debian, torch for ARM from the package index, which has it with CUDA
alone: 5 GB in build/arm-wheel. Nothing of them is installed on this machine. Speed there says
nothing, so Hypothesis may not complain of it: its profile is `ci`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import zipfile
from pathlib import Path

import build_wheels
import try_wheels
from build_wheels import ROOT, release, run
from older_linux import linker_flags

FOLDER = ROOT / "build" / "arm-wheel"
SYSTEM, PACKAGES = FOLDER / "system", FOLDER / "packages"
COMPILER = "aarch64-linux-gnu-g++"
#: Without those that compile in the emulated system, or ask what else it has.
UNDER_QEMU = [
    name
    for name in try_wheels.WITH_TORCH
    if name not in ("ops/test_transforms.py", "test_cli_doctor.py")
]
# Libraries ask the kernel for the processor, and the one of this machine is no ARM: torch ends with
# a segmentation fault where these are missing. A Neoverse N1.
PROCESSOR_FILES = {
    "proc/cpuinfo": "".join(
        f"processor\t: {n}\nFeatures\t: fp asimd aes crc32 atomics fphp asimdhp asimddp\n"
        "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\n"
        "CPU revision\t: 1\n\n"
        for n in range(2)
    ),
    **{
        f"sys/devices/system/cpu/cpu{n}/regs/identification/midr_el1": "0x00000000410fd0c1\n"
        for n in range(2)
    },
}


def system() -> Path:
    """Unpacks Debian's Python for ARM; returns the program that runs it under QEMU."""
    python = "python{}.{}".format(*release(sys.executable))
    started = FOLDER / "python"
    if started.exists():
        return started
    packages = FOLDER / "debian"
    for folder in (packages / "lists" / "partial", packages / "archives" / "partial"):
        folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "APT::Architecture": "arm64", "APT::Architectures": "arm64", "APT::Sandbox::User": "root",
        "Dir::State::status": "/dev/null", "Dir::State::lists": packages / "lists",
        "Dir::Cache::archives": packages / "archives",
        "Dir::Cache::pkgcache": "", "Dir::Cache::srcpkgcache": "",
    }  # fmt: skip
    apt = ["apt-get", "-q", *(word for k, v in settings.items() for word in ("-o", f"{k}={v}"))]
    run(*apt, "update")
    wanted = (python, f"{python}-venv", "libstdc++6", "libgomp1")
    run(*apt, "install", "--yes", "--download-only", "--no-install-recommends", *wanted)
    for package in sorted((packages / "archives").glob("*.deb")):
        run("dpkg-deb", "-x", package, SYSTEM)
    for name, text in PROCESSOR_FILES.items():
        (SYSTEM / name).parent.mkdir(parents=True, exist_ok=True)
        (SYSTEM / name).write_text(text)
    # Under its own name, so that a Python that starts another starts QEMU again.
    started.write_text(
        f"#!/bin/sh\nexec {shutil.which('qemu-aarch64-static')} -cpu max -L {SYSTEM} -0 {started} "
        f"-E LD_LIBRARY_PATH={SYSTEM}/usr/lib/aarch64-linux-gnu -E PYTHONHOME={SYSTEM}/usr "
        f'{SYSTEM}/usr/bin/{python} "$@"\n'
    )
    started.chmod(0o755)
    return started


def install(torch: str) -> None:
    """Installs torch for ARM, and what aero and its tests need, where nothing of it runs."""
    done = PACKAGES / f"torch-{torch}.installed"
    if done.exists():
        return
    metadata = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^dependencies = \[(.*?)^\]", metadata, re.MULTILINE | re.DOTALL)
    (of_reports,) = re.findall(r"^report = \[(.*)\]", metadata, re.MULTILINE)
    (kernels,) = re.findall(r'"(kernels[^"]+)"', metadata)  # for build_kernel.py
    platforms = [f"--platform=manylinux_2_{minor}_aarch64" for minor in range(17, 37)]
    run(
        sys.executable, "-m", "pip", "install", "--target", PACKAGES, "--only-binary=:all:",
        "--implementation=cp", "--python-version={}.{}".format(*release(sys.executable)),
        *platforms, "--platform=manylinux2014_aarch64", f"torch=={torch}",
        *re.findall(r'"([^"]+)"', listed + of_reports), *try_wheels.TOOLS, kernels,
    )  # fmt: skip
    done.touch()


def prepare(torch: str) -> Path:
    """Installs all that is needed; returns the Python that builds for ARM."""
    system()
    install(torch)
    suffix = ".cpython-{}{}-aarch64-linux-gnu.so".format(*release(sys.executable))
    toolchain = ROOT / "tests" / "cpp" / "aarch64_linux.cmake"
    return build_wheels.build_for("linux-aarch64", toolchain, suffix, FOLDER, PACKAGES / "torch")


def built(python: Path) -> Path:
    """The wheel for ARM in dist/."""
    flags = linker_flags(FOLDER / "older_linux", COMPILER)
    wheel = build_wheels.compiled_wheel(python, build_wheels.source_archive(python), flags)
    return build_wheels.shipped_wheel(wheel, "aarch64")


def main() -> None:
    """Builds, tries and records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", required=True, help="version, such as 2.13.0")
    version = parser.parse_args().torch
    build_wheels.DIST.mkdir(exist_ok=True)
    wheel = built(prepare(version))
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(FOLDER / "wheel")
    os.environ["PYTHONPATH"] = f"{FOLDER / 'wheel'}{os.pathsep}{PACKAGES}"
    result = {
        **try_wheels.row_of(wheel, "Linux aarch64", version, release(sys.executable)),
        **try_wheels.counted(system(), UNDER_QEMU, "--hypothesis-profile=ci"),
        "how": "emulated by QEMU",
    }
    try_wheels.record(result)
    print(json.dumps(result))
    if result["failed"] or not result["passed"]:
        raise SystemExit("arm_wheel: tests failed")


if __name__ == "__main__":
    main()
