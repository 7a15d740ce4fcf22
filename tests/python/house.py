"""How large the house is, and whether its modules import each other in a circle: `make house`.

    python -m tests.python.house

A public name is one that `aero` or a public package of it exports: the `__all__` of their
`__init__`, which is the `__init__.pyi` where names load on first use. A name that `aero` hands on
counts once. The packages themselves count.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "python" / "aero"
MOST_PUBLIC_NAMES = 120


def public_names() -> set[str]:
    """Every public name, without the package that exports it."""
    import aero

    packages = [aero, *filter(inspect.ismodule, (getattr(aero, name) for name in aero.__all__))]
    return {name for package in packages for name in package.__all__}


def imports_of(path: Path, folder: Path = PACKAGE) -> Iterator[tuple[str, bool]]:
    """Yield every absolute module name a file imports and whether at import time of the file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = ".".join(("aero", *path.relative_to(folder).parts[:-1]))
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
            if base == "aero":
                yield from ((f"aero.{alias.name}", top) for alias in node.names)


def import_circles(folder: Path) -> list[list[str]]:
    """Modules that import each other in a loop; lazily, or for types alone, counts too."""
    files = {
        ".".join(("aero", *path.relative_to(folder).with_suffix("").parts)).removesuffix(
            ".__init__"
        ): path
        for path in folder.rglob("*.py")
    }
    # What `aero` itself hands on is every room.
    files = {module: path for module, path in files.items() if module != "aero"}
    arrows = {module: imported(path, folder, files) - {module} for module, path in files.items()}

    def reached(start: str) -> set[str]:
        found, left = set(), [start]
        while left:
            new = arrows[left.pop()] - found
            found |= new
            left += new
        return found

    reach = {module: reached(module) for module in files}
    return sorted(
        sorted(circle)
        for circle in {
            frozenset(m for m in reach[module] if module in reach[m])
            for module in files
            if module in reach[module]
        }
    )


def imported(path: Path, folder: Path, files: dict[str, Path]) -> set[str]:
    """The modules of `files` that a file imports; a package counts where its own name is taken."""
    stub = path.with_suffix(".pyi")  # what a package loads on first use
    path = stub if stub.is_file() else path
    found = {name for name, _ in imports_of(path, folder)}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module in files and not node.level:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            if names <= files.keys():
                found.discard(node.module)
            found |= names
    return found & files.keys()


def main() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    counts = {
        "Python files in aero": len(files),
        "Python lines in aero": sum(len(path.read_bytes().splitlines()) for path in files),
        "public names": len(public_names()),
        "README lines": len((ROOT / "README.md").read_bytes().splitlines()),
        "import circles": len(import_circles(PACKAGE)),
    }
    for name, count in counts.items():
        print(f"{name:<22}{count:>7,}")


if __name__ == "__main__":
    main()
