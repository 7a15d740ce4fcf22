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

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "python" / "aero"
MOST_PUBLIC_NAMES = 100
MOST_FILES_TO_THE_FIRST_STEP = 45


def public_names() -> set[str]:
    """Every public name, without the package that exports it."""
    import aero

    packages = [aero, *filter(inspect.ismodule, (getattr(aero, name) for name in aero.__all__))]
    return {name for package in packages for name in package.__all__}


def imports_of(
    path: Path, folder: Path = PACKAGE, root: str = "aero"
) -> Iterator[tuple[str, bool]]:
    """Yield every absolute module name a file imports and whether at import time of the file."""
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


def long_functions(most: int = 80) -> list[str]:
    """The functions of the package with more lines of code: signature and docstring aside."""

    def code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
        body = node.body[1:] if ast.get_docstring(node, clean=False) else node.body
        return (node.end_lineno or 0) - body[0].lineno + 1 if body else 0

    return [
        f"{path.relative_to(PACKAGE)}:{node.name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and code_lines(node) > most
    ]


def until_the_first_step() -> tuple[int, int]:
    """Files of the package that `aero train` enters until its first step, and that it loads."""
    program = [sys.executable, "-m", "tests.python.first_step"]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=True)
    counts = next(line for line in done.stdout.splitlines() if re.fullmatch(r"\d+ \d+", line))
    entered, loaded = map(int, counts.split())
    return entered, loaded


def main() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    entered, loaded = until_the_first_step()
    lines = {path: len(path.read_bytes().splitlines()) for path in files}
    counts = {
        "Python files in aero": len(files),
        "Python lines in aero": sum(lines.values()),
        "files above 350 lines": sum(count > 350 for count in lines.values()),
        "functions above 80 lines": len(long_functions()),
        "files to a first training step": entered,
        "and loaded until then": loaded,
        "public names": len(public_names()),
        "README lines": len((ROOT / "README.md").read_bytes().splitlines()),
        "import circles": len(import_circles(PACKAGE)),
        "room circles": len(room_circles(PACKAGE)),
    }
    for name, count in counts.items():
        print(f"{name:<32}{count:>7,}")


if __name__ == "__main__":
    main()
