"""How large the house is, and whether its modules import each other in a circle: `make house`.

    python -m tests.python.house

A public name is one that `aero` or a public package of it exports: the `__all__` of their
`__init__`, which is the `__init__.pyi` where names load on first use. A name that `aero` hands on
counts once. The packages themselves count.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "python" / "aero"
# The aims that CONTRIBUTING.md names.
MOST_FILES, MOST_LINES, MOST_LINES_OF_TESTS = 170, 29_000, 33_000
MOST_FILE_LINES, MOST_FUNCTION_LINES = 350, 80
MOST_PUBLIC_NAMES, MOST_FILES_TO_THE_FIRST_STEP = 100, 45


def public_names() -> set[str]:
    """Every public name, without the package that exports it."""
    import aero

    packages = [aero, *filter(inspect.ismodule, (getattr(aero, name) for name in aero.__all__))]
    return {name for package in packages for name in package.__all__}


def imports_of(
    path: Path, folder: Path = PACKAGE, root: str = "aero"
) -> Iterator[tuple[str, bool]]:
    """Yield every absolute module name a file imports and whether at import time of the file.

    A constant name that `import_module` takes is one.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = ".".join((root, *path.relative_to(folder).parts[:-1]))
    outermost = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        top = id(node) in outermost
        if isinstance(node, ast.Import):
            yield from ((alias.name, top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parent, base] if base else parent)
            yield base, top
            if base == root:
                yield from ((f"{root}.{alias.name}", top) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from ((one.value, False) for one in node.args[:1] if _names_one_of(one, root))


def _names_one_of(node: ast.expr, root: str) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and str(node.value).startswith(f"{root}.")


def arrows_of(folder: Path, root: str = "aero") -> dict[str, set[str]]:
    """Each module of a package and those it imports; lazily, or for types alone, counts too."""
    files = {
        ".".join((root, *path.relative_to(folder).with_suffix("").parts)).removesuffix(
            ".__init__"
        ): path
        for path in folder.rglob("*.py")
    }
    # `aero` itself hands on every room.
    files = {module: path for module, path in files.items() if module != root}
    return {
        module: imported(path, folder, files, root) - {module} for module, path in files.items()
    }


def import_circles(folder: Path, root: str = "aero") -> list[list[str]]:
    """Modules that import each other in a loop."""
    return circles_of(arrows_of(folder, root))


def room_circles(folder: Path) -> list[list[str]]:
    """Rooms of one house, or of one room, that import each other in a loop.

    A room is a folder or a single file; imports of a folder's own `__init__` are left out.
    """
    between: dict[str, set[str]] = {}
    for module, imports in arrows_of(folder).items():
        for other in imports:
            one, two = module.split("."), other.split(".")
            pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, two))  # noqa: B905
            shared = len(list(pairs))
            if shared < min(len(one), len(two)):  # neither is the other's package
                rooms = [".".join(path[: shared + 1]) for path in (one, two)]
                between.setdefault(rooms[0], set()).add(rooms[1])
                between.setdefault(rooms[1], set())
    return circles_of(between)


def circles_of(arrows: dict[str, set[str]]) -> list[list[str]]:
    """The sets of nodes that arrows lead round in."""

    def reached(start: str) -> set[str]:
        found, left = set(), [start]
        while left:
            new = arrows[left.pop()] - found
            found |= new
            left += new
        return found

    reach = {module: reached(module) for module in arrows}
    return sorted(
        sorted(circle)
        for circle in {
            frozenset(m for m in reach[module] if module in reach[m])
            for module in arrows
            if module in reach[module]
        }
    )


def imported(path: Path, folder: Path, files: dict[str, Path], root: str = "aero") -> set[str]:
    """The modules of `files` that a file imports; a package counts where its own name is taken."""
    stub = path.with_suffix(".pyi")  # the names that a package loads on first use
    path = stub if stub.is_file() else path
    found = {name for name, _ in imports_of(path, folder, root)}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module in files and not node.level:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            if names <= files.keys():
                found.discard(node.module)
            found |= names
    return found & files.keys()


def function_lines() -> dict[str, int]:
    """How many lines of code each function of the package has: signature and docstring aside."""

    def code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
        body = node.body[1:] if ast.get_docstring(node, clean=False) else node.body
        return (node.end_lineno or 0) - body[0].lineno + 1 if body else 0

    return {
        f"{path.relative_to(PACKAGE)}:{node.lineno} {node.name}": code_lines(node)
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def long_functions() -> list[str]:
    """The functions with more lines than the aim."""
    return [name for name, count in function_lines().items() if count > MOST_FUNCTION_LINES]


def _lines(path: Path) -> int:
    return len(path.read_bytes().splitlines())


def until_the_first_step() -> tuple[int, int]:
    """Files of the package that `aero train` enters until its first step, and that it loads."""
    program = [sys.executable, "-m", "tests.python.first_step"]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=True)
    counts = next(line for line in done.stdout.splitlines() if re.fullmatch(r"\d+ \d+", line))
    entered, loaded = map(int, counts.split())
    return entered, loaded


def main() -> None:
    lines = [_lines(path) for path in PACKAGE.rglob("*.py")]
    entered, loaded = until_the_first_step()
    counts: dict[str, tuple[int, int | None]] = {
        "Python files in aero": (len(lines), MOST_FILES),
        "Python lines in aero": (sum(lines), MOST_LINES),
        "Python lines in tests": (
            sum(map(_lines, (ROOT / "tests").rglob("*.py"))),
            MOST_LINES_OF_TESTS,
        ),
        "lines of the longest file": (max(lines), MOST_FILE_LINES),
        "lines of the longest function": (max(function_lines().values()), MOST_FUNCTION_LINES),
        "files to a first training step": (entered, MOST_FILES_TO_THE_FIRST_STEP),
        "and loaded until then": (loaded, None),
        "public names": (len(public_names()), MOST_PUBLIC_NAMES),
        "README lines": (_lines(ROOT / "README.md"), None),
        "import circles": (len(import_circles(PACKAGE)), 0),
        "room circles": (len(room_circles(PACKAGE)), 0),
    }
    for name, (count, most) in counts.items():
        print(f"{name:<32}{count:>7,}" + ("" if most is None else f" (at most {most:,})"))


if __name__ == "__main__":
    main()
