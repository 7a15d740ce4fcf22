"""Takes the native libraries of a wheel that was built from the native sources of this folder.

    python packaging/fitting_wheel.py dist build/from_wheel

Writes them into the second folder and prints the wheel's name. Where no wheel of the first folder
is for this Python and platform, it prints nothing. One that was built from other sources is named
on the error stream, and not used.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import zipfile
from pathlib import Path, PurePosixPath

from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).resolve().parents[1]
#: In the wheel's .dist-info; build_wheels.py writes it.
RECORD = "native_sources.sha256"
_SUFFIXES = {".cpp", ".h", ".cu", ".cmake", ".txt", ".toml"}


def native_sources(root: Path) -> str:
    """SHA-256 over the names and contents of everything that the native libraries are made of."""
    files = [root / "CMakeLists.txt", root / "pyproject.toml"]
    files += [path for room in ("kernels", "csrc") for path in (root / room).rglob("*")]
    listed = [
        f"{path.relative_to(root).as_posix()} {hashlib.sha256(path.read_bytes()).hexdigest()}\n"
        for path in sorted(files)
        if path.is_file() and path.suffix in _SUFFIXES
    ]
    return hashlib.sha256("".join(listed).encode()).hexdigest()


def sign(wheel: Path, root: Path) -> None:
    """Writes into a wheel which native sources it was built from; auditwheel renews its RECORD."""
    with zipfile.ZipFile(wheel, "a") as opened:
        folder = next(n for n in opened.namelist() if n.endswith(".dist-info/METADATA"))
        opened.writestr(str(PurePosixPath(folder).with_name(RECORD)), native_sources(root))


def fitting_wheel(folder: Path, root: Path = ROOT) -> Path | None:
    """The wheel of a folder for this Python, platform and these native sources."""
    here, wanted = {*sys_tags()}, native_sources(root)
    for wheel in sorted(folder.glob("aero_torch-*.whl")):
        if here.isdisjoint(parse_wheel_filename(wheel.name)[3]):
            continue
        with zipfile.ZipFile(wheel) as opened:
            names = [n for n in opened.namelist() if n.endswith(f".dist-info/{RECORD}")]
            if [opened.read(name).decode() for name in names] == [wanted]:
                return wheel
        print(f"{wheel.name} was built from other sources, and is not used", file=sys.stderr)
    return None


def main() -> None:
    """Unpacks the libraries of the wheel that fits, if one does."""
    wheels, libraries = map(Path, sys.argv[1:])
    if (wheel := fitting_wheel(wheels)) is None:
        return
    shutil.rmtree(libraries, ignore_errors=True)
    libraries.mkdir(parents=True)
    with zipfile.ZipFile(wheel) as opened:
        for name in opened.namelist():
            if name.startswith("aero/") and name.endswith(".so"):
                (libraries / PurePosixPath(name).name).write_bytes(opened.read(name))
    print(wheel.name)


if __name__ == "__main__":
    main()
