"""Makes the linker believe that this system is an older Linux, so that its wheels run there.

The linker binds a symbol to its newest version, such as `log` to that of glibc 2.29, and the
library then asks for that glibc, whether it needs the difference or not. Here it is given stand-ins
of the C, mathematical and C++ libraries that offer nothing newer than manylinux_2_28. Of the C++
library it takes newer functions from the static archive, as Red Hat's own newer compilers do. The
compiler stays the same, and so does the code that it makes.

    g++ -shared ... $(python packaging/older_linux.py FOLDER)
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

__all__ = ["linker_flags", "newest_versions", "offered"]

#: The newest versions of manylinux_2_28: glibc 2.28, and libstdc++ of gcc 8.
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 25), "CXXABI": (1, 3, 11)}
#: What starts programs, and has symbols of glibc that libraries ask for.
LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
_SYMBOL = re.compile(
    r"^ *\d+: \w+ +(?P<size>\w+) (?P<type>FUNC|IFUNC|OBJECT|NOTYPE) +(?:GLOBAL|WEAK|UNIQUE) +"
    r"DEFAULT +(?!UND)\S+ (?P<name>[^@\s]+)@@?(?P<family>[A-Z]+)_(?P<version>[\d.]+)$",
    re.MULTILINE,
)
# What headers take from glibc 2.32 to skip atomics in a process with one thread; 0 never skips.
_SINGLE_THREADED = """\
.data
.globl __libc_single_threaded
__libc_single_threaded: .byte 0
.section .note.GNU-stack,"",@progbits
"""


def _output(*command: str | Path) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"older_linux: {' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def newest_versions(library: Path) -> dict[str, tuple[int, ...]]:
    """The newest version of each family that a library or module needs, such as GLIBC (2, 27)."""
    needed = re.findall(r"Name: ([A-Z]+)_([\d.]+)", _output("readelf", "-V", "-W", library))
    found: dict[str, tuple[int, ...]] = {}
    for family, text in needed:
        version = tuple(map(int, text.split(".")))
        found[family] = max(found.get(family, ()), version)
    return found


def offered(library: Path) -> dict[str, tuple[str, str, int]]:
    """What of a library is old enough: name -> version, type, bytes."""
    best: dict[str, tuple[tuple[int, ...], str, str, int]] = {}
    for found in _SYMBOL.finditer(_output("readelf", "--dyn-syms", "-W", library)):
        version = tuple(map(int, found["version"].split(".")))
        family, name = found["family"], found["name"]
        if family in NEWEST and version <= NEWEST[family] and version >= best.get(name, ((),))[0]:
            label = f"{family}_{found['version']}"
            best[name] = (version, label, found["type"], int(found["size"], 0))
    return {name: rest for name, (_, *rest) in best.items()}  # type: ignore[misc]


def _stand_in(compiler: str, library: Path, name: str, folder: Path) -> Path:
    """A library with the same older symbols, and no code."""
    symbols = offered(library)
    if not symbols:
        raise SystemExit(f"older_linux: {library} offers no versioned symbol")
    source, versions, made = (folder / f"{name}{suffix}" for suffix in (".s", ".versions", ""))
    lines = [".data"]
    by_version: dict[str, list[str]] = {}
    for symbol, (version, kind, size) in symbols.items():
        word = "object" if kind == "OBJECT" else "function"
        lines += [f".globl {symbol}", f".type {symbol}, @{word}", f".size {symbol}, {size}"]
        lines += [f"{symbol}:"]
        by_version.setdefault(version, []).append(symbol)
    lines += [".skip 8", '.section .note.GNU-stack,"",@progbits']
    source.write_text("\n".join(lines) + "\n")
    versions.write_text(
        "".join(f"{v} {{ global: {'; '.join(names)}; }};\n" for v, names in by_version.items())
    )
    _output(
        compiler, "-shared", "-nostdlib", f"-Wl,-soname,{name}",
        f"-Wl,--version-script={versions}", source, "-o", made,
    )  # fmt: skip
    return made


def linker_flags(folder: Path, compiler: str = "g++") -> str:
    """Writes the stand-ins into a folder; returns the flags that make the linker use them."""
    folder.mkdir(parents=True, exist_ok=True)
    loader = LOADERS[_output(compiler, "-dumpmachine").partition("-")[0].strip()]
    found = {
        name: Path(_output(compiler, f"-print-file-name={name}").strip()).resolve()
        for name in (
            "libc.so.6", "libm.so.6", "libstdc++.so.6", "libstdc++.a", "libc_nonshared.a", loader,
        )
    }  # fmt: skip
    for name, path in found.items():
        if not path.is_file():
            raise SystemExit(f"older_linux: {compiler} has no {name}")
    source, archive = folder / "single_threaded.s", folder / "libolder.a"
    source.write_text(_SINGLE_THREADED)
    _output(compiler, "-c", source, "-o", source.with_suffix(".o"))
    archive.unlink(missing_ok=True)
    archiver = _output(compiler, "-print-prog-name=ar").strip()
    _output(archiver, "rc", archive, source.with_suffix(".o"))
    made = {
        n: _stand_in(compiler, path, n, folder) for n, path in found.items() if n.endswith(".so.6")
    }
    scripts = {
        "libc.so": f"{made['libc.so.6']} {found['libc_nonshared.a']} {archive} "
        f"AS_NEEDED ( {found[loader]} )",
        "libm.so": f"{made['libm.so.6']}",
        "libstdc++.so": f"{made['libstdc++.so.6']} {found['libstdc++.a']}",
    }
    for name, text in scripts.items():
        (folder / name).write_text(f"GROUP ( {text} )\n")
    return f"-L{folder} -Wl,--exclude-libs,libstdc++.a:libolder.a"


if __name__ == "__main__":
    print(linker_flags(Path(sys.argv[1]).resolve()))
