"""`make wheels`: code linked for an older Linux runs, and forbidden files are named."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "packaging"))

import arm_wheel  # noqa: E402
import build_wheels  # noqa: E402
import fitting_wheel  # noqa: E402
import older_linux  # noqa: E402
import try_wheels  # noqa: E402

# Everything that our libraries take from newer releases of the C, mathematical and C++ libraries.
LIBRARY = """
#include <charconv>
#include <cmath>
#include <memory>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>
extern "C" int length(double value) {
  static std::once_flag once;
  std::call_once(once, [] {});
  auto shared = std::make_shared<std::vector<double>>(4, std::log(value));
  std::vector<std::shared_ptr<std::vector<double>>> copies(3, shared);
  char digits[64];
  const auto end = std::to_chars(digits, digits + 64, copies.back()->back()).ptr;
  std::ostringstream text;
  text << std::string(digits, end) << new double[static_cast<size_t>(value)];
  return static_cast<int>(text.str().size() > 0 ? end - digits : 0);
}
extern "C" void refuse(const char* why) {
  std::stringstream text;
  text << "refused: " << why;
  throw std::invalid_argument(text.str());
}
"""
CALLER = """
#include <dlfcn.h>
#include <exception>
#include <iostream>
int main(int, char** arguments) {
  void* library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) { std::cout << dlerror(); return 1; }
  auto refuse = reinterpret_cast<void (*)(const char*)>(dlsym(library, "refuse"));
  try {
    refuse("a caller of another library");
  } catch (const std::exception& error) {
    std::cout << error.what() << ' ' << std::uncaught_exceptions();
  }
}
"""

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not shutil.which("g++"), reason="wheels of Linux are made by g++"
)


def linked(folder: Path, name: str, *flags: str, compiler: str = "g++") -> Path:
    source, library = folder / "library.cpp", folder / name
    source.write_text(LIBRARY)
    command = [compiler, "-std=c++20", "-O2", "-shared", "-fPIC", source, *flags, "-o", library]
    subprocess.run([*map(str, command)], check=True)
    return library


@pytest.fixture(scope="module", name="older")
def _older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("older")
    flags = older_linux.linker_flags(folder / "stand_ins").split()
    return linked(folder, "older.so", *flags, "-Wl,--no-undefined")


def test_a_library_linked_for_an_older_linux_needs_nothing_newer(
    older: Path, tmp_path: Path
) -> None:
    here = older_linux.newest_versions(linked(tmp_path, "here.so"))
    assert any(here[family] > newest for family, newest in older_linux.NEWEST.items())
    found = older_linux.newest_versions(older)
    assert found.keys() >= {"GLIBC", "GLIBCXX"}
    for family, newest in older_linux.NEWEST.items():
        assert found.get(family, ()) <= newest


@pytest.mark.skipif(not shutil.which(arm_wheel.COMPILER), reason="`make arm-wheel` installs it")
def test_a_library_for_arm_needs_nothing_newer_either(tmp_path: Path) -> None:
    flags = older_linux.linker_flags(tmp_path / "stand_ins", arm_wheel.COMPILER).split()
    made = linked(tmp_path, "arm.so", *flags, "-Wl,--no-undefined", compiler=arm_wheel.COMPILER)
    assert b"AArch64" in subprocess.run(["readelf", "-h", made], capture_output=True).stdout
    found = older_linux.newest_versions(made)
    assert found.keys() >= {"GLIBC", "GLIBCXX"}
    for family, newest in older_linux.NEWEST.items():
        assert found.get(family, ()) <= newest


def test_it_computes_and_takes_the_cpp_library_of_the_process(older: Path) -> None:
    assert ctypes.CDLL(str(older)).length(ctypes.c_double(10.0)) == len("2.302585092994046")
    needed = subprocess.run(["readelf", "-d", older], capture_output=True, text=True).stdout
    assert "[libstdc++.so.6]" in needed
    exported = subprocess.run(["nm", "-D", "--defined-only", older], capture_output=True, text=True)
    assert "length" in exported.stdout
    assert "basic_stringbufIcSt11char_traitsIcESaIcEE3str" not in exported.stdout


def test_its_exceptions_are_caught_by_other_libraries(older: Path, tmp_path: Path) -> None:
    source, program = tmp_path / "caller.cpp", tmp_path / "caller"
    source.write_text(CALLER)
    subprocess.run(["g++", "-std=c++20", source, "-o", program], check=True)
    done = subprocess.run([program, older], capture_output=True, text=True)
    assert done.stdout == "refused: a caller of another library 0"


def wheel_of(folder: Path, **libraries: Path) -> Path:
    wheel = folder / "aero_torch-0.1.0.whl"
    with zipfile.ZipFile(wheel, "w") as opened:
        for name, path in libraries.items():
            opened.write(path, f"aero/{name}.so")
    return wheel


def test_a_wheel_that_may_not_be_shipped_is_named_with_every_reason(
    older: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_wheels, "WORK", tmp_path / "work")
    stripped = tmp_path / "stripped.so"
    subprocess.run(["strip", older, "-o", stripped], check=True)
    good = wheel_of(tmp_path, **{"libaero_ops": stripped, "_core.x86_64-linux": stripped})
    said = "; ".join(build_wheels.obstacles(good))
    # A module may ask Python alone for symbols that no library of its own has.
    own = r"(_core\.x86_64-linux\.so needs \w+, which no library of its own has(; )?)*"
    assert re.fullmatch(own, said)
    other = "; ".join(build_wheels.obstacles(good, "aarch64"))
    assert "_core.x86_64-linux.so is not named for aarch64" in other
    newer = linked(tmp_path, "newer.so", "-g")
    bad = "; ".join(build_wheels.obstacles(wheel_of(tmp_path, libaero_ops=newer)))
    assert "must hold the libraries _core and libaero_ops, got ['libaero_ops']" in bad
    assert re.search(r"libaero_ops\.so needs GLIBCXX [\d.]+, newer than manylinux_2_28", bad)
    assert "libaero_ops.so is not stripped" in bad
    monkeypatch.setattr(build_wheels, "MOST_BYTES", 1000)
    assert "more than 1000" in build_wheels.obstacles(good)[0]


def test_an_environment_without_torch_gets_what_costs_need_and_nothing_that_brings_torch(
    tmp_path: Path,
) -> None:
    metadata = (
        "Requires-Dist: transformers<6,>=5.17\nRequires-Dist: numpy<3,>=1.26\n"
        "Requires-Dist: torch<3,>=2.11\nRequires-Dist: typer<1,>=0.15\n"
        'Requires-Dist: datasets<6,>=4; extra == "hub"\n'
        'Requires-Dist: plotly<8,>=6; extra == "report"\n'
    )
    wheel = tmp_path / "some.whl"
    with zipfile.ZipFile(wheel, "w") as opened:
        opened.writestr("some-1.dist-info/METADATA", metadata)
    tools = try_wheels.TOOLS
    assert try_wheels.requirements(wheel, None) == [
        *tools, "numpy<3,>=1.26", "typer<1,>=0.15", "plotly<8,>=6"
    ]  # fmt: skip
    assert try_wheels.requirements(wheel, "2.13.0") == ["torch==2.13.0", *tools, "plotly<8,>=6"]


def test_a_torch_that_has_no_wheel_for_a_python_is_told_from_an_index_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(*_: object) -> None:
        raise SystemExit(said)

    monkeypatch.setattr(try_wheels, "run", failing)
    none = "ERROR: No matching distribution found for torch==2.11.0"
    said = f"ERROR: Could not find torch==2.11.0 (from versions: 2.15.0)\n{none}\nfailed: pip"
    with pytest.raises(try_wheels.NoTorchError):
        try_wheels.install_torch(("pip",), "2.11.0")
    said = f"ERROR: Could not find torch==2.11.0 (from versions: none)\n{none}\nfailed: pip"
    with pytest.raises(SystemExit, match="from versions: none"):
        try_wheels.install_torch(("pip",), "2.11.0")


def test_a_result_takes_the_place_of_the_earlier_one_of_its_kind_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(try_wheels, "RESULTS", tmp_path / "platforms.json")
    monkeypatch.setattr(try_wheels, "run", lambda *command: "abc1234\n")
    first = {"platform": "Linux x86_64", "python": "3.11", "torch": None, "passed": 1}
    for row in (first, first | {"torch": "2.13.0"}, first | {"python": "3.9"}, first):
        try_wheels.record({**row, "passed": row["passed"] + 1})
    kept = json.loads(try_wheels.RESULTS.read_text())
    assert [row["commit"] for row in kept] == ["abc1234"] * 3
    assert sorted((row["python"], str(row["torch"])) for row in kept) == [
        ("3.11", "2.13.0"), ("3.11", "None"), ("3.9", "None"),
    ]  # fmt: skip


def test_a_wheel_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_wheels, "DIST", tmp_path / "dist")
    with pytest.raises(SystemExit, match=r"dist must hold one wheel for \(3, 11\), has 0"):
        try_wheels.wheel_for((3, 11))


@pytest.fixture(name="sources")
def _sources(tmp_path: Path) -> Path:
    root = tmp_path / "sources"
    for name in ("CMakeLists.txt", "pyproject.toml", "kernels/cpu/one.cpp", "csrc/two.h"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


def wheel_from(sources: Path, tag: str) -> Path:
    wheel = sources.parent / f"aero_torch-0.1.0-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as opened:
        opened.writestr("aero_torch-0.1.0.dist-info/METADATA", "")
        opened.writestr("aero/_core.so", "machine code")
    fitting_wheel.sign(wheel, sources)
    return wheel


HERE = str(next(fitting_wheel.sys_tags()))


@pytest.mark.parametrize(
    "changed", ["kernels/cpu/one.cpp", "csrc/two.h", "csrc/new.cpp", "CMakeLists.txt"]
)
def test_a_wheel_fits_until_a_native_source_changes(
    sources: Path, changed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = wheel_from(sources, HERE)
    assert fitting_wheel.fitting_wheel(sources.parent, sources) == wheel
    (sources / "csrc" / "notes.md").write_text("no source")
    assert fitting_wheel.fitting_wheel(sources.parent, sources) == wheel
    assert not capsys.readouterr().err
    (sources / changed).write_text("int changed;")
    assert fitting_wheel.fitting_wheel(sources.parent, sources) is None
    assert f"{wheel.name} was built from other sources" in capsys.readouterr().err


def test_wheels_for_others_and_wheels_that_name_no_sources_do_not_fit(sources: Path) -> None:
    wheel_from(sources, "cp39-cp39-win_amd64")
    assert fitting_wheel.fitting_wheel(sources.parent, sources) is None
    unsigned = sources.parent / f"aero_torch-0.1.0-{HERE}.whl"
    with zipfile.ZipFile(unsigned, "w") as opened:
        opened.writestr("aero_torch-0.1.0.dist-info/METADATA", "")
    assert fitting_wheel.fitting_wheel(sources.parent, sources) is None


def test_the_libraries_of_a_wheel_are_installed_and_nothing_is_compiled(
    sources: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = sources.parent
    monkeypatch.setattr(fitting_wheel, "fitting_wheel", lambda _: wheel_from(sources, HERE))
    monkeypatch.setattr(sys, "argv", ["", str(folder), str(folder / "libraries")])
    fitting_wheel.main()
    assert capsys.readouterr().out == f"aero_torch-0.1.0-{HERE}.whl\n"
    build = ["cmake", "-S", ROOT, "-B", folder / "build", f"-DAERO_PREBUILT={folder}/libraries"]
    done = subprocess.run([*map(str, build)], capture_output=True, text=True)
    assert done.returncode == 0 and "compiler" not in done.stdout, done.stderr
    install = ["cmake", "--install", folder / "build", "--prefix", folder / "installed"]
    subprocess.run([*map(str, install)], check=True, capture_output=True)
    assert (folder / "installed" / "aero" / "_core.so").read_text() == "machine code"


def test_macos_is_told_of_every_symbol_that_its_torch_may_lack():
    # Linux leaves a weak symbol empty that no library has; macOS refuses to link without its name.
    folder = ROOT / "csrc" / "torch_ops"
    # cuda_queue.cpp has one more, which only a build with CUDA compiles.
    sources = [path.read_text() for path in folder.glob("*.cpp") if path.stem != "cuda_queue"]
    declared = r"__attribute__\(\(weak\)\)[^;(]*?(\w+)\([^;]*?\)\s*(AERO_LINKED_NAME)?[^;]*;"
    weak = {found for text in sources for found in re.findall(declared, text)}
    options = re.findall(r"LINKER:-U,_(\w+)", (ROOT / "CMakeLists.txt").read_text())
    assert options == [name for name, renamed in weak if not renamed] and len(weak) == 3
    # There a name has an underscore more, which the macro adds.
    assert not [text for text in sources if re.search(r'asm\("_Z', text)]


def test_a_build_for_another_system_is_told_of_it(tmp_path, monkeypatch):
    names = ("CMAKE_TOOLCHAIN_FILE", "SETUPTOOLS_EXT_SUFFIX", "_PYTHON_HOST_PLATFORM")
    for name in names:
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(build_wheels, "WORK", build_wheels.WORK)
    monkeypatch.setattr(build_wheels, "DEFINES", {**build_wheels.DEFINES})
    monkeypatch.setattr(build_wheels, "build_environment", lambda *asked: asked)
    torch = tmp_path / "packages" / "torch"
    torch.mkdir(parents=True)
    folder = tmp_path / "build"
    python, seen = build_wheels.build_for("linux-x", Path("tools.cmake"), ".x.so", folder, torch)
    assert [os.environ[name] for name in names] == ["tools.cmake", ".x.so", "linux-x"]
    assert (build_wheels.WORK, python) == (folder, sys.executable)
    assert build_wheels.DEFINES["PYTHON_MODULE_EXTENSION"] == ".x.so"
    assert [path.resolve() for path in seen.iterdir()] == [torch.resolve()]


def test_wheels_with_the_cuda_kernels_say_so_and_lie_apart(tmp_path, monkeypatch):
    for name in ("DIST", "WORK"):
        monkeypatch.setattr(build_wheels, name, getattr(build_wheels, name))
    monkeypatch.setattr(build_wheels, "DEFINES", {**build_wheels.DEFINES})
    usual = {build_wheels.DIST, build_wheels.WORK}
    build_wheels.build_with_cuda()
    assert build_wheels.DIST == ROOT / "dist" / "cuda"
    assert build_wheels.WORK not in usual
    assert build_wheels.DEFINES["AERO_CUDA"] == "ON"
    with pytest.raises(SystemExit, match=r"dist/cuda must hold one wheel for \(2, 7\)"):
        try_wheels.wheel_for((2, 7))
    nvcc = tmp_path / "nvcc"
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    metadata = tmp_path / "pyproject.toml"
    shutil.copy(ROOT / "pyproject.toml", metadata)
    lines = metadata.read_text().splitlines()
    for said in ("no release", "Cuda compilation tools, release 13.0, V13.0.88"):
        nvcc.write_text(f"#!/bin/sh\necho {said}\n")
        nvcc.chmod(0o755)
        if "13" not in said:
            with pytest.raises(SystemExit, match=r"nvcc --version names no release"):
                build_wheels.choose_toolkit(tmp_path)
    for _ in range(2):
        build_wheels.choose_toolkit(tmp_path)
        changed = dict(zip(lines, metadata.read_text().splitlines(), strict=True))
        assert [(a, b) for a, b in changed.items() if a != b] == [
            ('version = "0.1.0"', 'version = "0.1.0+cuda13"')
        ]
    # CMake would look for one elsewhere too.
    assert build_wheels.DEFINES["AERO_NVCC"] == str(nvcc)
