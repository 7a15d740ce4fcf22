"""Promises of the build: clear failure without torch, the stable ABI, no symbols to trip over."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import aero
from aero import _core

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "python" / "aero"
LIBRARY = Path(_core.__file__).with_name("libaero_ops.so")


def tool_output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_isolated_build_without_torch_fails_with_one_line_naming_two_commands(
    tmp_path: Path,
) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    program = "import build_backend; build_backend.get_requires_for_build_wheel()"
    # As pip does: the build tools are visible through PYTHONPATH, the user's packages are not.
    paths = f"{ROOT / 'packaging'}:{sysconfig.get_paths()['purelib']}"
    done = subprocess.run(
        [tmp_path / "bare" / "bin" / "python", "-c", program],
        env={"PYTHONPATH": paths}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert "`pip install 'torch>=2.11' " in line
    assert "`pip install --no-build-isolation .`" in line


def test_isolated_build_takes_the_torch_of_the_environment(tmp_path: Path) -> None:
    packages = sysconfig.get_paths()["purelib"]
    # As pip does: PYTHONPATH leads to a file that takes the user's packages out of the search path.
    hiding = tmp_path / "overlay" / "sitecustomize.py"
    hiding.parent.mkdir()
    hiding.write_text(f"import sys\nsys.path[:] = [p for p in sys.path if p != {packages!r}]\n")
    (hiding.parent / "scikit_build_core").symlink_to(f"{packages}/scikit_build_core")
    (hiding.parent / "packaging").symlink_to(f"{packages}/packaging")
    environment = {**os.environ, "PYTHONPATH": f"{hiding.parent}:{ROOT / 'packaging'}"}
    program = (
        "import importlib.util, build_backend; assert not importlib.util.find_spec('torch'); "
        "build_backend.get_requires_for_build_wheel()"
    )
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    settings = {"AERO_PYTHON": "OFF", "AERO_CUDA": "OFF", "Python_EXECUTABLE": sys.executable}
    subprocess.run(
        ["cmake", "-S", ROOT, "-B", tmp_path / "built", "-G", "Ninja",
         f"-DCMAKE_MAKE_PROGRAM={Path(sys.executable).with_name('ninja')}",
         *(f"-D{name}={value}" for name, value in settings.items())],
        env=environment, check=True, capture_output=True,
    )  # fmt: skip
    assert f"{packages}/torch/lib/libtorch.so" in (tmp_path / "built" / "build.ninja").read_text()


def old_compiler(folder: Path) -> Path:
    """A g++ that says of itself that it is g++ 9.4."""
    path = folder / "g++-9"
    path.write_text(
        "#!/bin/sh\n"
        "case $* in *--version*) echo 'g++ (Debian 9.4.0-1) 9.4.0';; "
        '*) exec g++ -U__GNUC__ -D__GNUC__=9 "$@";; esac\n'
    )
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("build", ["build_wheel", "build_editable"])
@pytest.mark.parametrize("missing", [True, False])
def test_a_build_without_a_fit_compiler_fails_with_one_line_naming_one(
    build: str, missing: bool, tmp_path: Path
) -> None:
    compiler = tmp_path / "none" if missing else old_compiler(tmp_path)
    program = f"import build_backend; build_backend.{build}({str(tmp_path)!r})"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "CXX": f"{compiler} -O2", "PYTHONPATH": str(ROOT / "packaging")},
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("aero-torch needs g++ 12 or newer: install it, or name it with CXX=")
    assert line.endswith(f"there is no {compiler}" if missing else "is g++ (Debian 9.4.0-1) 9.4.0")


def test_cmake_refuses_an_old_compiler_and_names_the_one_it_needs(tmp_path: Path) -> None:
    compiler = old_compiler(tmp_path)
    command = ["cmake", "-S", ROOT, "-B", tmp_path / "build", f"-DCMAKE_CXX_COMPILER={compiler}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    said = " ".join(done.stderr.split())
    assert "aero-torch needs g++ 12 or newer: install it, or name it with CXX=g++-12;" in said
    assert f"{compiler} is g++ 9." in said


def test_operator_library_names_libtorch_so_that_one_build_serves_cpu_and_cuda() -> None:
    needed = re.findall(r"NEEDED.*\[(.+)\]", tool_output("readelf", "-d", str(LIBRARY)))
    assert "libtorch.so" in needed
    assert not [name for name in needed if "cuda" in name or "python" in name or "gomp" in name]


def test_operator_library_uses_only_the_stable_c_interface_of_torch() -> None:
    symbols = tool_output("nm", "-D", "--undefined-only", "--demangle", str(LIBRARY))
    assert "torch" in symbols
    unstable = re.findall(r"U ((?:c10|at|torch|caffe2)::.*)", symbols)
    assert not unstable


def test_core_module_needs_no_torch_library() -> None:
    needed = tool_output("readelf", "-d", _core.__file__)
    assert "torch" not in needed and "c10" not in needed


def test_version_is_the_same_everywhere() -> None:
    metadata = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{aero.__version__}"' in metadata
    assert _core.build_info()["version"] == aero.__version__


@pytest.mark.parametrize("stub", sorted(PACKAGE.rglob("__init__.pyi")), ids=lambda p: p.parent.name)
def test_names_that_load_on_first_use_are_those_of_the_stub(stub: Path) -> None:
    package = importlib.import_module(".".join(("aero", *stub.relative_to(PACKAGE).parts[:-1])))
    named = set(re.findall(r" as (\w+)$", stub.read_text(encoding="utf-8"), re.MULTILINE))
    assert named == {*package.__all__} - {"__version__"}
    assert {*package.__all__} <= {*dir(package)}
    for name in named:
        assert getattr(package, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'attention'"):
        aero.attention  # noqa: B018


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("cuda: Optional[str] = None", "aero: no CUDA kernels, the installed PyTorch has no CUDA"),
        ("cuda = None", "aero: no CUDA kernels, the installed PyTorch has no CUDA"),
        ("cuda: str | None = '13.0'", "aero: CUDA kernels for 80;90a"),
        ("hip = '6.4'", "AERO_CUDA=AUTO cannot tell whether"),
    ],
)
def test_cuda_kernels_are_compiled_by_themselves_only_where_torch_could_run_them(
    line: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "version.py").write_text(f"__version__ = '2.13.0'\n{line}\n")
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\nprintf 'sm_80\\nsm_90\\n'\n")
    nvcc.chmod(0o755)
    given = {
        "AERO_CUDA": "AUTO", "AERO_CUDA_ARCHITECTURES": "80;90a", "AERO_NVCC": nvcc,
        "AERO_CUDART": nvcc, "TORCH_DIRECTORY": tmp_path,
    }  # fmt: skip
    done = subprocess.run(
        ["cmake", *(f"-D{name}={value}" for name, value in given.items()),
         "-P", ROOT / "kernels" / "cuda" / "cuda.cmake"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert said in " ".join((done.stdout + done.stderr).split())
