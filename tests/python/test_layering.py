"""The arrows between the rooms (CONTRIBUTING.md), checked over includes and imports."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from . import house
from .house import (
    MOST_FILE_LINES,
    MOST_FILES_TO_THE_FIRST_STEP,
    MOST_PUBLIC_NAMES,
    import_circles,
    imports_of,
    long_functions,
    public_names,
    room_circles,
    until_the_first_step,
)

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "python" / "aero"
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)

# C++ room -> first words of the include paths it may name. Standard headers have no slash and no
# suffix; an import that is not listed here is forbidden.
MAY_INCLUDE = {
    "kernels": ("kernels/",),
    "csrc/spec": ("csrc/spec/",),
    "csrc/network": ("csrc/network/", "csrc/spec/"),
    "csrc/mpc": ("csrc/mpc/", "csrc/network/", "csrc/spec/"),
    "csrc/fixed_point": ("csrc/fixed_point/",),
    "csrc/bindings": (
        "csrc/bindings/", "csrc/spec/", "csrc/network/", "csrc/mpc/", "csrc/fixed_point/",
        "pybind11/",
    ),
    "csrc/torch_ops": ("csrc/torch_ops/", "kernels/", "torch/"),
}  # fmt: skip
SYSTEM_HEADERS = {
    "immintrin.h", "cpuid.h", "dlfcn.h", "sys/syscall.h", "unistd.h", "arm_neon.h", "sys/auxv.h",
    "sys/sysctl.h",
    "cuda_bf16.h", "cuda_fp16.h", "cuda_runtime.h", "cuda_runtime_api.h",
}  # fmt: skip

# Python room -> rooms of the package it may import.
MAY_IMPORT = {
    "_library": {"_core"},
    "reading": set(),
    "tables": set(),
    "architecture": {"_core"},
    "families": set(),
    "mpc": {"_core", "architecture", "families"},
    "internals": set(),
    "paper": {"mpc"},
    "fixed_point": {"_core", "mpc"},
    "analysis": set(),
    "ops": {"_core", "_library"},
    "flash_attn": {"ops"},
    "nn": {"ops", "architecture"},
    "network": {"fixed_point"},
    "models": {"_core", "ops", "nn", "architecture", "fixed_point", "network", "analysis",
               "families"},
    "conversion": {"models", "nn", "mpc", "architecture"},
    "export": {"models", "nn", "ops", "architecture", "network"},
    "saved": {"models"},
    "private": {"network", "mpc", "architecture"},
    "report": {
        "architecture", "mpc", "paper", "analysis",
    },
    "train": {
        "models", "nn", "conversion", "analysis", "architecture", "fixed_point", "saved",
    },
    "cli": {
        "_core", "_library", "architecture", "mpc", "analysis", "ops", "nn", "models", "conversion",
        "families", "report", "train", "fixed_point", "export", "network", "private", "saved",
    },
}  # fmt: skip
# The rooms inside a room, and those of them that each may import; any may its single files.
MAY_IMPORT_INSIDE: dict[str, dict[str, set[str]]] = {
    "private": {
        "links": set(),
        "compute": set(),
        "parties": {"links", "compute"},
        "measuring": {"parties", "compute"},
    },
    "train": {"recipes": set(), "data": {"recipes"}, "runs": {"data", "recipes"}},
}
# Modules that any room may import besides.
EVERYWHERE = {"__version__", "internals", "reading", "tables"}
# Third-party packages that analysis may use.
ANALYSIS_PACKAGES = {"numpy", "matplotlib", "mpl_toolkits", "scipy"}


def cpp_files(room: str) -> list[Path]:
    return sorted(p for p in (ROOT / room).rglob("*") if p.suffix in {".h", ".cpp", ".cu", ".cuh"})


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("room", MAY_INCLUDE)
def test_cpp_rooms_include_only_what_they_may(room: str) -> None:
    files = cpp_files(room)
    assert files, f"{room} holds no C++ file"
    for path in files:
        for bracket, name in INCLUDE.findall(path.read_text(encoding="utf-8")):
            standard = bracket == "<" and "/" not in name and not name.endswith(".h")
            allowed = standard or name in SYSTEM_HEADERS or name.startswith(MAY_INCLUDE[room])
            assert allowed, f"{path.relative_to(ROOT)} may not include {name}"
            if bracket == '"':
                assert (ROOT / name).is_file(), f"{path.relative_to(ROOT)}: no file {name}"


def test_cpu_and_cuda_kernels_do_not_include_each_other() -> None:
    for own, other in (("cpu", "cuda"), ("cuda", "cpu")):
        for path in cpp_files(f"kernels/{own}"):
            assert f"kernels/{other}/" not in path.read_text(encoding="utf-8"), path


def test_operators_reach_memory_through_the_gate_alone() -> None:
    """Only checks of a tensor may read its address; only the matrix product has its handle."""
    holders = {
        "data_ptr": {"tensor_checks.h", "tensor_checks.cpp"},
        "TensorHandle": {"matrix_product.cpp"},
    }
    for word, allowed in holders.items():
        found = {p.name for p in cpp_files("csrc/torch_ops") if word in p.read_text("utf-8")}
        assert found == allowed, word


def test_python_rooms_import_only_what_they_may() -> None:
    rooms = {room_of(p) for p in PACKAGE.rglob("*.py")} - {"__init__"}
    assert rooms <= MAY_IMPORT.keys() | {"__main__"}, f"unknown rooms: {rooms - MAY_IMPORT.keys()}"
    for path in sorted(PACKAGE.rglob("*.py")):
        room = room_of(path)
        if room in {"__init__", "__main__"}:
            continue
        for name, _ in imports_of(path):
            parts = name.split(".")
            if parts[0] == "aero" and len(parts) > 1 and parts[1] not in {room, *EVERYWHERE}:
                where = path.relative_to(ROOT)
                assert parts[1] in MAY_IMPORT[room], f"{where} may not import aero.{parts[1]}"


def test_the_package_imports_neither_benchmarks_nor_tests() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        named = {name.split(".")[0] for name, _ in imports_of(path)}
        assert not named & {"benchmarks", "tests"}, path.relative_to(ROOT)


@pytest.mark.parametrize("house", MAY_IMPORT_INSIDE)
def test_rooms_inside_a_room_import_only_what_they_may(house: str) -> None:
    folder = PACKAGE / house
    rooms = {path.name for path in folder.iterdir() if (path / "__init__.py").exists()}
    assert rooms == MAY_IMPORT_INSIDE[house].keys()
    for path in (p for p in folder.rglob("*.py") if p.parent.name in rooms):
        allowed = {path.parent.name, *MAY_IMPORT_INSIDE[house][path.parent.name]}
        found = {name.removeprefix(f"aero.{house}.").split(".")[0] for name, _ in imports_of(path)}
        assert not found & rooms - allowed, f"{path.relative_to(ROOT)} imports {found & rooms}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert import_circles(PACKAGE) == []


def test_no_rooms_import_each_other_back_and_forth() -> None:
    # Of the package, and within each room.
    assert room_circles(PACKAGE) == []


def test_rooms_that_import_each_other_are_found_where_no_modules_do(tmp_path: Path) -> None:
    for name, text in {
        "house/one/__init__.py": "",
        "house/two/__init__.py": "",
        "house/one/a.py": "from aero.house.two import b\n",
        "house/one/c.py": "",
        "house/two/b.py": "",
        "house/two/d.py": "from aero.house.one import c\n",
        "other.py": "import aero.house.two.b\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert import_circles(tmp_path) == []
    assert room_circles(tmp_path) == [["aero.house.one", "aero.house.two"]]
    (tmp_path / "house/two/d.py").write_text("")
    assert room_circles(tmp_path) == []


def test_a_circle_is_found_though_types_alone_close_it(tmp_path: Path) -> None:
    room = tmp_path / "room"
    room.mkdir()
    (room / "__init__.py").write_text("from aero.room.f import f\n")
    (room / "f.py").write_text("from aero import e\n")
    (tmp_path / "a.py").write_text("from aero import b\n")
    (tmp_path / "b.py").write_text("def f():\n    from aero.c import x\n")
    (tmp_path / "c.py").write_text("if TYPE_CHECKING:\n    from aero.a import y\n")
    (tmp_path / "d.py").write_text("import aero.a\n")
    (tmp_path / "e.py").write_text("from aero.room import f\n")
    assert import_circles(tmp_path) == [["aero.a", "aero.b", "aero.c"], ["aero.e", "aero.room.f"]]
    (tmp_path / "e.py").write_text("from aero.room import something\n")
    assert import_circles(tmp_path)[1:] == [["aero.e", "aero.room", "aero.room.f"]]


def test_a_module_that_is_imported_by_its_name_as_text_counts(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f():\n    importlib.import_module('aero.b')\n")
    (tmp_path / "b.py").write_text("from aero import c\n")
    (tmp_path / "c.py").write_text("import_module('aero.a')\nimport_module(a)\n")
    assert import_circles(tmp_path) == [["aero.a", "aero.b", "aero.c"]]


@pytest.mark.parametrize(
    "room",
    ["architecture", "families", "mpc", "fixed_point", "paper", "analysis", "report", "private"],
)
def test_torch_free_rooms_never_name_torch(room: str) -> None:
    paths = [p for p in PACKAGE.rglob("*.py") if room_of(p) == room]
    assert paths
    for path in paths:
        for name, _ in imports_of(path):
            assert name.split(".")[0] not in {"torch", "transformers"}, f"{path} imports {name}"


def test_only_the_private_environment_imports_jax_and_spu() -> None:
    def named(path: Path) -> set[str]:
        return {name for name, _ in imports_of(path)}

    folder = PACKAGE / "private"
    own = {
        ".".join(path.relative_to(folder).with_suffix("").parts): path
        for path in folder.rglob("*.py")
    }
    # Modules of the command line run beside torch; strings name programs for elsewhere.
    seen: set[str] = set()
    found = {name for p in PACKAGE.rglob("*.py") if room_of(p) != "private" for name in named(p)}
    while found:
        assert not {name.split(".")[0] for name in found} & {"jax", "jaxlib", "spu"}, found
        # A name that is imported from a module stands behind the module's.
        inner = {n.removeprefix("aero.private.") for n in found if n.startswith("aero.private.")}
        new = (inner | {name.rpartition(".")[0] for name in inner}) & own.keys() - seen
        seen |= new
        found = {name for stem in new for name in named(own[stem])}
    assert {"parties.job", "settings", "links.channel"} <= seen
    assert "jax" in named(own["compute.forward"])


# Pipes between processes that this package started itself; everything else goes through the reader.
OWN_PIPES = {"delay_line.py", "diagnosis.py", "orders.py", "shaped_link.py"}
PARSERS = {
    "json": {"load", "loads", "JSONDecoder"},
    "yaml": {"load", "load_all", "safe_load", "safe_load_all", "full_load", "unsafe_load"},
    "pickle": {"load", "loads", "Unpickler"},
    "torch": {"load"},
}  # fmt: skip


def test_strangers_files_go_through_the_one_reader() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        if room_of(path) == "reading" or path.name in OWN_PIPES:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = set()
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                named = {node.attr} & PARSERS.get(node.value.id, set())
            elif isinstance(node, ast.ImportFrom):
                named = {alias.name for alias in node.names} & PARSERS.get(node.module or "", set())
            assert not named, f"{path.relative_to(ROOT)} may not use {named}; aero.reading reads"


def test_only_the_boundary_of_the_command_line_prints() -> None:
    # It shows control characters as escapes.
    for path in (p for p in PACKAGE.rglob("*.py") if p.name not in {"errors.py", *OWN_PIPES}):
        if room_of(path) == "cli":
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"typer\.(echo|secho)|\bprint\(", text), path.relative_to(ROOT)


def test_the_library_prints_nothing_and_takes_no_print_as_default() -> None:
    # Own processes talk to their parents through standard output.
    own_processes = {"delay_line.py", "one_party_worker.py"}
    for path in sorted(p for p in PACKAGE.rglob("*.py") if p.name not in own_processes):
        if room_of(path) == "cli":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = isinstance(node, ast.Name) and node.id == "print"
            assert not named, f"{path.relative_to(ROOT)} line {node.lineno} prints"


def test_analysis_needs_only_numpy_and_matplotlib() -> None:
    for path in (p for p in PACKAGE.rglob("*.py") if room_of(p) == "analysis"):
        for name, _ in imports_of(path):
            top = name.split(".")[0]
            known = top in sys.stdlib_module_names or top in ANALYSIS_PACKAGES | {"aero"}
            assert known, f"{path.relative_to(ROOT)} imports {name}"


def test_package_and_torch_free_rooms_import_without_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None\n"
        "import aero, aero.architecture, aero.mpc, aero.fixed_point, aero.analysis\n"
        "import aero.report, aero.paper, aero.cli\n"
        "print(aero.mpc.simulate('SM', model='tiny', context_length=8).comm_bytes > 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "True", done.stderr


def test_a_training_loads_no_prices_no_conversions_and_no_other_networks() -> None:
    program = (
        "import sys, aero.train.training\n"
        "print({name.split('.')[1] for name in sys.modules if name.startswith('aero.')})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    loaded = ast.literal_eval(done.stdout or "set()")
    assert "train" in loaded, done.stderr
    assert not loaded & {"mpc", "families", "fixed_point", "network", "conversion", "report"}


def test_the_path_to_the_first_step_of_a_training_is_at_most_45_files() -> None:
    entered, _ = until_the_first_step()
    assert entered <= MOST_FILES_TO_THE_FIRST_STEP  # `python -m tests.python.first_step` names them


def test_no_module_bears_the_name_of_something_that_its_package_exports() -> None:
    # Else `from aero.mpc import sweep` depends on earlier imports. An operator's one word
    # is that of its file as well; aero.ops binds the functions last.
    for file in sorted(PACKAGE.glob("*/__init__.py")):
        package = file.parent.name
        if package != "ops":
            exported = getattr(importlib.import_module(f"aero.{package}"), "__all__", ())
            clashes = {path.stem for path in file.parent.glob("*.py")} & {*exported}
            assert not clashes, f"{package}: {sorted(clashes)}"


def test_no_file_has_more_than_350_lines_and_no_function_more_than_80() -> None:
    lines = {path: len(path.read_bytes().splitlines()) for path in PACKAGE.rglob("*.py")}
    assert [path.name for path, count in lines.items() if count > MOST_FILE_LINES] == []
    assert long_functions() == []


def test_at_most_100_names_are_public() -> None:
    names = public_names()
    assert {"simulate", "AeroForCausalLM", "train", "entropies", "with_entropy_penalty"} <= names
    assert len(names) <= MOST_PUBLIC_NAMES, sorted(names)


def test_the_counts_of_the_house_stand_beside_their_aims(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(house, "until_the_first_step", lambda: (44, 155))
    house.main()
    lines = capsys.readouterr().out.splitlines()
    found = dict(
        re.findall(r"^(.*?) +[\d,]+ \(at most ([\d,]+)\)$", "\n".join(lines), re.MULTILINE)
    )
    assert found == {
        "Python files in aero": "170",
        "Python lines in aero": "29,000",
        "Python lines in tests": "33,000",
        "lines of the longest file": "350",
        "lines of the longest function": "80",
        "files to a first training step": "45",
        "public names": "100",
        "import circles": "0",
        "room circles": "0",
    }
    assert len(lines) == len(found) + 2  # and what has no aim
