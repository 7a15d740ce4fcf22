"""Texts that a Debian machine can get, for `crossover`: Python packages, C, and prose.

    python -m benchmarks.paper.experiments.texts runs/texts

writes three corpora, each as folders of text files that `data.split_by=folder` holds out whole:

- `packages`: the Python files of the packages installed beside this interpreter, tests and copies
  of other packages left out.
- `linux`: the C files of Debian's `linux-source`, a folder for each of its parts such as `fs-ext4`.
- `prose`: the documentation of that source by its parts, and the manual pages and Perl manuals of
  the Debian packages below, without their mark-up.

No folder gives more than half a megabyte of a corpus in code and a megabyte in prose, so that no
package leads; which of its files is decided by a digest of their names. Two of the three need
`apt-get download`, and `--only` makes one. The versions are the machine's; a run keeps the SHA-256
of what it read.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import re
import subprocess
import sysconfig
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

MOST_BYTES = {"packages": 500_000, "linux": 250_000, "prose": 1_000_000}
SOURCE = "linux-source-6.1"
#: With the largest manual pages of Debian's base and development packages.
MANUALS = (
    "manpages", "manpages-dev", "perl-doc", "git-man", "systemd", "cmake-data", "openssl",
    "iproute2", "binutils-common", "linux-perf", "dpkg-dev", "util-linux", "llvm-14", "bash",
    "ncurses-bin", "coreutils", "libpng-dev", "libpam-modules", "apt", "procps", "openssh-client",
    "openssh-server", "nftables", "iptables", "rsync", "gnupg", "curl", "ffmpeg", "lvm2", "mdadm",
    "xfsprogs", "e2fsprogs", "btrfs-progs", "postfix", "bind9-doc", "strace", "zsh-common", "vim",
)  # fmt: skip
_LEFT_OUT = {"tests", "test", "testing", "_vendor", "vendored", "__pycache__"}
_FONT_LINES = {"SH", "SS", "B", "I", "SM", "SB", "BR", "RB", "IR", "RI", "BI", "IB"}

#: A part of a corpus, the name of its file there, and the text.
Document = tuple[str, str, str]


def packages(root: Path) -> Iterator[Document]:
    """The Python files of installed packages."""
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if name not in _LEFT_OUT)
        for name in sorted(files):
            path = Path(folder, name)
            part, slash, inside = path.relative_to(root).as_posix().partition("/")
            if slash and name.endswith(".py") and not part.endswith(("-info", ".data")):
                yield part, inside, path.read_text("utf-8", "replace")


def of_linux(archive: IO[bytes], *, prose: bool) -> Iterator[Document]:
    """The C files, or the documentation, of the source's archive."""
    with tarfile.open(fileobj=archive, mode="r|xz") as source:
        for member in source:
            parts = member.name.split("/")[1:]
            documented = len(parts) > 2 and parts[0] == "Documentation"
            wanted = documented and not parts[1].startswith(("translations", "devicetree"))
            endings = (".rst", ".txt") if prose else (".c",)
            if member.isfile() and wanted is prose and parts and parts[-1].endswith(endings):
                content = source.extractfile(member)
                if content is not None:
                    text = content.read().decode("utf-8", "replace")
                    yield "-".join(parts[: min(2, len(parts) - 1)]) or "top", "/".join(parts), text


def manuals(package: str, archive: IO[bytes]) -> Iterator[Document]:
    """The manual pages in English, and the Perl manuals, of a package's files."""
    with tarfile.open(fileobj=archive, mode="r|*") as files:
        for member in files:
            name = member.name.removeprefix("./")
            content = files.extractfile(member) if member.isfile() else None
            if content is not None and re.fullmatch(r"usr/share/man/man\d/.*\.gz", name):
                text = gzip.decompress(content.read()).decode("utf-8", "replace")
                yield package, Path(name).stem, plain(text)
            elif content is not None and name.endswith(".pod"):
                yield package, Path(name).name, content.read().decode("utf-8", "replace")


def plain(page: str) -> str:
    """A manual page without the mark-up of roff."""
    lines = []
    for line in page.splitlines():
        if line.startswith((".", "'")):
            request, _, rest = line[1:].strip().partition(" ")
            if request not in _FONT_LINES:
                continue
            words = re.findall(r'"([^"]*)"|(\S+)', rest)
            # Two fonts in turn are one word.
            line = ("" if len(request) == 2 and request[0] in "BIR" else " ").join(
                quoted or word for quoted, word in words
            )
        lines.append(line)
    text = re.sub(r"\\f(?:\[\w*\]|\(..|.)|\\s[-+]?\d|\\[&|/,:]|\\\*?\[\w*\]", "", "\n".join(lines))
    text = re.sub(r"\\\((aq|cq|oq|dq|lq|rq|em|en|bu|..)", _sign, text)
    return re.sub(r"\\(.)", lambda found: {"e": "\\", "~": " "}.get(found[1], found[1]), text)


def _sign(found: re.Match[str]) -> str:
    signs = {"aq": "'", "cq": "'", "oq": "'", "dq": '"', "lq": '"', "rq": '"', "em": "-", "en": "-"}
    return signs.get(found[1], "")


def write(documents: Iterable[Document], folder: Path, most_bytes: int) -> int:
    """Writes the documents of every part up to so many bytes of it; returns the bytes written."""
    parts: dict[str, list[tuple[bytes, str, bytes]]] = defaultdict(list)
    for part, name, text in documents:
        digest = hashlib.sha256(f"{part}/{name}".encode()).digest()
        parts[part].append((digest, name, text.encode()))
    written = 0
    for part, found in parts.items():
        left = most_bytes
        for _, name, content in sorted(found):
            if 0 < len(content) <= left:
                path = folder / part / f"{name.replace('/', '-')}.txt"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                left -= len(content)
        written += most_bytes - left
    return written


def _package(name: str, folder: str) -> Iterator[IO[bytes]]:
    """The files of a Debian package, as an archive."""
    subprocess.run(["apt-get", "download", "-q", name], cwd=folder, check=True)
    (file,) = Path(folder).glob(f"{name}_*.deb")
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", file], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process.stdout
    file.unlink()


def _linux(*, prose: bool) -> Iterator[Document]:
    with tempfile.TemporaryDirectory() as folder:
        for files in _package(SOURCE, folder):
            with tarfile.open(fileobj=files, mode="r|") as archive:
                for member in archive:
                    inner = archive.extractfile(member) if member.name.endswith(".xz") else None
                    if inner is not None:
                        yield from of_linux(inner, prose=prose)


def _prose() -> Iterator[Document]:
    yield from _linux(prose=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in MANUALS:
            for files in _package(name, folder):
                yield from manuals(name, files)


def main() -> None:
    """Writes the corpora that are not there yet."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=MOST_BYTES, help="one of the three")
    given = parser.parse_args()
    for name in [given.only] if given.only else MOST_BYTES:
        documents = {
            "packages": lambda: packages(Path(sysconfig.get_paths()["purelib"])),
            "linux": lambda: _linux(prose=False),
            "prose": _prose,
        }[name]()
        if (given.folder / name).exists():
            raise SystemExit(f"texts: {given.folder / name} is there already")
        whole = given.folder / f".{name}"
        size = write(documents, whole, MOST_BYTES[name])
        whole.rename(given.folder / name)
        print(f"{given.folder / name}: {size:,} bytes")


if __name__ == "__main__":
    main()
