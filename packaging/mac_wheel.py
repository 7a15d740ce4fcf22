"""Compiles the wheel for macOS on 64-bit ARM and links it with its torch: `make mac-wheel`.

    python packaging/mac_wheel.py --torch 2.13.0

zig's C++ compiler brings macOS' headers and the list of its libraries; torch for macOS comes from
the package index. Nothing runs, as Linux runs no programs of macOS, and the wheel stays in
build/mac-wheel: the release workflow builds the one to ship, with Apple's tools. Python's headers
are those of this Python; `SIZES` holds them to macOS.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import zipfile
from pathlib import Path

import build_wheels
import try_wheels
from build_wheels import ROOT, release, run

FOLDER = ROOT / "build" / "mac-wheel"
PACKAGES = FOLDER / "packages"
#: The oldest macOS that torch has wheels for.
MACOS = "14.0"
ZIG = ("ziglang==0.17.1",)
#: What Python's own headers ask of pyconfig.h, which this Python's `configure` wrote for Linux.
SIZES = {
    "INT": "int", "LONG": "long", "LONG_LONG": "long long", "PID_T": "pid_t",
    "PTHREAD_T": "pthread_t", "SIZE_T": "size_t", "TIME_T": "time_t", "UINTPTR_T": "uintptr_t",
    "VOID_P": "void*", "WCHAR_T": "wchar_t", "_BOOL": "bool",
}  # fmt: skip
COMPILER = """#!/bin/bash
# zig has a name of its own for a processor with products of bfloat16, and no bundles. It cannot
# name the one symbol that may be missing: it allows all, and `obstacles` looks which are.
words=()
for word in "$@"; do
  case "$word" in
    -march=armv8.2-a+bf16) words+=(-mcpu=apple_m2) ;;
    -U) words+=(-undefined) ;;
    -bundle) words+=(-dynamiclib) ;;
    _aoti_torch_cpu__linear_pointwise) words+=(dynamic_lookup) ;;
    *) words+=("$word") ;;
  esac
done
PYTHONPATH={zig} exec {python} -m ziglang c++ -target aarch64-macos.{macos} "${{words[@]}}"
"""
TOOLCHAIN = """set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(CMAKE_CXX_COMPILER {folder}/c++)
set(CMAKE_AR {folder}/ar)
set(CMAKE_RANLIB {folder}/ranlib)
# Nothing is moved after it was linked, and symbols are stripped by the linker.
set(CMAKE_INSTALL_NAME_TOOL true)
set(CMAKE_STRIP true)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
"""


def install(torch: str) -> None:
    """Unpacks torch for macOS, of which nothing runs, and installs zig beside it."""
    done = PACKAGES / f"torch-{torch}.installed"
    if done.exists():
        return
    run(
        sys.executable, "-m", "pip", "install", "--target", PACKAGES, "--only-binary=:all:",
        "--no-deps", "--implementation=cp",
        "--python-version={}.{}".format(*release(sys.executable)),
        f"--platform=macosx_{MACOS.replace('.', '_')}_arm64", f"torch=={torch}",
    )  # fmt: skip
    run(sys.executable, "-m", "pip", "install", "--target", FOLDER / "zig", *ZIG)
    done.touch()


def toolchain() -> Path:
    """The tools of zig under the names that CMake knows, and the file that names them."""
    folder = FOLDER / "bin"
    folder.mkdir(exist_ok=True)
    started = f"#!/bin/sh\nexport PYTHONPATH={FOLDER / 'zig'}\nexec {sys.executable} -m ziglang "
    for name in ("ar", "ranlib"):
        (folder / name).write_text(f'{started}{name} "$@"\n')
    (folder / "c++").write_text(
        COMPILER.format(zig=FOLDER / "zig", python=sys.executable, macos=MACOS)
    )
    for program in folder.iterdir():
        program.chmod(0o755)
    file = FOLDER / "arm64_macos.cmake"
    file.write_text(TOOLCHAIN.format(folder=folder))
    return file


def check_headers(include: str) -> None:
    """Fails where this Python's headers say of a size what is not so on macOS."""
    used = set()
    for header in Path(include).rglob("*.h"):
        if not header.name.startswith("pyconfig"):
            used |= set(re.findall(r"SIZEOF_(\w+)", header.read_text("utf-8")))
    # Python's own, which follow from the others.
    if unknown := used - {*SIZES, "PYTIME_T", "PY_HASH_T", "PY_UHASH_T"}:
        raise SystemExit(f"mac_wheel: Python's headers ask for other sizes too: {sorted(unknown)}")
    source = FOLDER / "sizes.cpp"
    asserted = (f"static_assert(SIZEOF_{name} == sizeof({c}));" for name, c in SIZES.items())
    source.write_text("\n".join(["#include <Python.h>", "#include <cstdint>", *asserted]))
    run(FOLDER / "bin" / "c++", "-std=c++20", f"-I{include}", "-c", source, "-o", f"{source}.o")


def obstacles(wheel: Path) -> list[str]:
    """What is wrong with a wheel that nothing here can load, in words."""
    import lief

    found = []
    if (size := wheel.stat().st_size) > build_wheels.MOST_BYTES:
        found.append(f"has {size} bytes, more than {build_wheels.MOST_BYTES}")
    if not re.search(rf"-macosx_{MACOS.replace('.', '_')}_arm64\.whl$", wheel.name):
        found.append("is not named for macOS")
    with zipfile.ZipFile(wheel) as opened:
        libraries = {name: opened.read(name) for name in opened.namelist() if name.endswith(".so")}
    suffix = build_wheels.DEFINES["PYTHON_MODULE_EXTENSION"]
    if {Path(name).name for name in libraries} != {f"_core{suffix}", "libaero_ops.so"}:
        found.append(f"must hold _core{suffix} and libaero_ops.so, got {sorted(libraries)}")
    for name, content in libraries.items():
        library = lief.MachO.parse(list(content))
        if library is None or library.at(0).header.cpu_type.name != "ARM64":
            found.append(f"{name} is no library of macOS on 64-bit ARM")
            continue
        # What zig found in no library; the process that loads this one must have it.
        loose = {s.name for s in library.at(0).imported_symbols if s.library_ordinal == 0}
        known = r"_{1,2}Py\w+" if "_core" in name else "_aoti_torch_cpu__linear_pointwise"
        if missing := {symbol for symbol in loose if not re.fullmatch(known, symbol)}:
            found.append(f"{name} needs {sorted(missing)}, which no library has")
    return found


def built() -> Path:
    """The wheel for macOS."""
    suffix = ".cpython-{}{}-darwin.so".format(*release(sys.executable))
    system = f"macosx-{MACOS}-arm64"
    python = build_wheels.build_for(system, toolchain(), suffix, FOLDER, PACKAGES / "torch")
    include = run(python, "-c", "import sysconfig; print(sysconfig.get_path('include'))").strip()
    check_headers(include)
    wheel = build_wheels.compiled_wheel(python, build_wheels.source_archive(python), "")
    if wrong := obstacles(wheel):
        raise SystemExit(f"mac_wheel: {wheel.name} {'; '.join(wrong)}")
    return wheel


def main() -> None:
    """Builds and records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", required=True, help="version, such as 2.13.0")
    version = parser.parse_args().torch
    for folder in (FOLDER, build_wheels.DIST):
        folder.mkdir(parents=True, exist_ok=True)
    install(version)
    wheel = built()
    result = {
        **try_wheels.row_of(wheel, "Darwin arm64", version, release(sys.executable)),
        "passed": 0,
        "failed": 0,
        "how": "built, not run",
    }
    try_wheels.record(result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
