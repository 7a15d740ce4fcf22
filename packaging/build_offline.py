"""Builds the package with the tools that are installed: no network, no pip, nothing outside build/.

    python3 packaging/build_offline.py            # then PYTHONPATH=build/offline/site

For a machine with a GPU, a CUDA PyTorch and the CUDA toolkit, but no package index. The kernels are
compiled for this machine's GPU alone, unless `--architectures` says otherwise. A second call
compiles what has changed. The libraries lie in build/offline/native. Where another machine has
built them for the same GPU, Python and processor from the same sources, that folder can be copied
here; it is then taken as it is, if it can be loaded.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OFFLINE = ROOT / "build" / "offline"
NATIVE = OFFLINE / "native"
SITE = OFFLINE / "site"
#: Endings of the files that the native libraries are made from.
SOURCES = (".cpp", ".h", ".cu", ".cmake", ".txt")
#: Compute capability -> what to compile for; another one runs PTX.
ARCHITECTURES = {
    (8, 0): "80", (8, 6): "86", (8, 7): "86", (8, 9): "86", (9, 0): "90a", (10, 0): "100",
}  # fmt: skip
#: Python packages that a build needs, and the oldest release of each that will do.
PACKAGES = {"torch": (2, 11), "pybind11": (3, 0), "numpy": (1, 26)}


def search_path() -> str:
    """PATH, with this Python's own programs and the usual place of the CUDA toolkit."""
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    folders = [sysconfig.get_path("scripts"), str(Path(sys.executable).parent)]
    folders += [os.environ.get("PATH", "")]
    folders += [f"{home}/bin" for home in [*homes, "/usr/local/cuda"] if home]
    return os.pathsep.join(folders)


def installed_release(package: str) -> tuple[int, ...]:
    """The first two numbers of a package's version, (0, 0) where it is not installed."""
    try:
        found = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return (0, 0)
    return tuple(int(number) for number in re.findall(r"\d+", found)[:2])


def missing_tools(path: str) -> list[str]:
    """What a build needs and this machine lacks, each in words."""
    programs = {
        "cmake": "CMake 3.25 or newer",
        "ninja": "ninja",
        "nvcc": "nvcc of the CUDA toolkit (in PATH, CUDA_HOME or /usr/local/cuda)",
    }
    missing = [text for name, text in programs.items() if not shutil.which(name, path=path)]
    if not any(shutil.which(name, path=path) for name in (os.environ.get("CXX", "c++"), "g++")):
        missing.append("a C++20 compiler (g++ 12 or newer)")
    missing += [
        f"the Python package {name} {'.'.join(map(str, oldest))} or newer, for {sys.executable}"
        for name, oldest in PACKAGES.items()
        if installed_release(name) < oldest
    ]
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        missing.append(
            f"Python.h in {sysconfig.get_path('include')} (the system package python3-dev)"
        )
    return missing


def architectures() -> str:
    """The GPUs of this machine as AERO_CUDA_ARCHITECTURES, or "" for its default."""
    script = (
        "import torch\n"
        "for n in range(torch.cuda.device_count()): print(*torch.cuda.get_device_capability(n))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"build_offline: torch cannot be asked for its GPUs:\n{done.stderr}")
    found = {tuple(map(int, line.split())) for line in done.stdout.splitlines()}
    known = {ARCHITECTURES[capability] for capability in found if capability in ARCHITECTURES}
    return ";".join(sorted(known)) if found and found <= ARCHITECTURES.keys() else ""


def version() -> str:
    """The version that pyproject.toml gives the package."""
    found = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def made_from(chosen: str) -> str:
    """All that decides about the native libraries but the compilers."""
    digest = hashlib.sha256()
    folders = [*ROOT.glob("csrc/**/*"), *ROOT.glob("kernels/**/*")]
    for source in sorted([ROOT / "CMakeLists.txt", *folders]):
        if source.suffix in SOURCES:
            content = source.read_bytes()
            digest.update(f"{source.relative_to(ROOT)} {len(content)}\n".encode() + content)
    python = sysconfig.get_config_var("EXT_SUFFIX")
    return f"{digest.hexdigest()} version {version()} GPUs {chosen} Python {python}\n"


def run(command: Sequence[str], path: str) -> None:
    """Runs a step; its whole output stands in build/offline/build.log."""
    environment = {**os.environ, "PATH": path}
    with (OFFLINE / "build.log").open("a") as log:
        done = subprocess.run(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    if done.returncode:
        tail = (OFFLINE / "build.log").read_text().splitlines()[-40:]
        raise SystemExit("\n".join([*tail, f"build_offline: failed: {' '.join(command)}"]))


def compile_native(chosen: str) -> None:
    """Compiles the libraries into NATIVE, beside a line on what they were made from."""
    path = search_path()
    if missing := missing_tools(path):
        lines = "".join(f"\n  - {what}" for what in missing)
        raise SystemExit(f"build_offline: this machine lacks{lines}")
    OFFLINE.mkdir(parents=True, exist_ok=True)
    (OFFLINE / "build.log").write_text("")
    tree = OFFLINE / "tree"
    options = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_INSTALL_PREFIX": str(NATIVE),
        "Python_EXECUTABLE": sys.executable,
        "SKBUILD_PROJECT_VERSION": version(),
        "AERO_CUDA": "ON",
    }
    if chosen:
        options["AERO_CUDA_ARCHITECTURES"] = chosen
    defined = [f"-D{name}={value}" for name, value in options.items()]
    run(["cmake", "-S", str(ROOT), "-B", str(tree), "-G", "Ninja", *defined], path)
    run(["cmake", "--build", str(tree)], path)
    shutil.rmtree(NATIVE, ignore_errors=True)
    run(["cmake", "--install", str(tree)], path)
    (NATIVE / "made_from").write_text(made_from(chosen))


def python_files() -> str:
    """A digest of the Python files of the package."""
    digest = hashlib.sha256()
    for file in sorted((ROOT / "python" / "aero").rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".so":
            digest.update(f"{file.relative_to(ROOT)} {file.stat().st_size}\n".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


def put_together() -> None:
    """Makes SITE of the libraries and the Python files."""
    shutil.rmtree(SITE, ignore_errors=True)
    shutil.copytree(NATIVE / "aero", SITE / "aero")
    shutil.copytree(
        ROOT / "python" / "aero",
        SITE / "aero",
        ignore=shutil.ignore_patterns("__pycache__", "*.so"),
        dirs_exist_ok=True,
    )


def can_be_loaded() -> bool:
    """True if this machine can run what another one has built."""
    script = "import sys, aero.ops, aero._core; sys.exit(not aero.__file__.startswith(sys.argv[1]))"
    folders = [str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    command = [sys.executable, "-c", script, str(SITE)]
    return subprocess.run(command, env=environment, capture_output=True).returncode == 0


def build(chosen: str) -> Path:
    """Builds into build/offline; returns the folder that PYTHONPATH has to name.

    Raises:
        SystemExit: something is missing or does not compile, in words.
    """
    made, checked = NATIVE / "made_from", SITE / "made_from"
    wanted = made_from(chosen)
    whole = f"{wanted}Python files {python_files()}\n"
    if made.exists() and made.read_text() == wanted:
        if checked.exists() and checked.read_text() == whole:
            return SITE  # as an earlier call left it
        put_together()
        if (OFFLINE / "tree").exists() or can_be_loaded():
            checked.write_text(whole)
            return SITE
    compile_native(chosen)
    put_together()
    checked.write_text(whole)
    return SITE


def main() -> None:
    """Builds and prints the folder for PYTHONPATH."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--architectures", help="as AERO_CUDA_ARCHITECTURES, such as 80;90a")
    chosen = parser.parse_args().architectures
    print(build(architectures() if chosen is None else chosen))


if __name__ == "__main__":
    main()
