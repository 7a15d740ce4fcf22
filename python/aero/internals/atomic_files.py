"""Files that are there whole or not at all.

A reader never sees half a file, and a full disk or an interrupt leaves the previous version in
place: the content goes to a temporary name in the same folder, is flushed to the device, and takes
the final name in one rename. `SHA256SUMS` has the SHA-256 of a folder's files;
`sha256sum --check` reads it too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from aero.reading import UnreadableFileError, one_line, read_bytes, shown


@contextmanager
def atomic_binary_file(path: str | Path) -> Iterator[IO[bytes]]:
    """Opens a temporary file for writing that becomes `path` when the block ends without an error.

    Args:
        path: the final name; its folder must exist. A device or a pipe is written to as it is, a
            symbolic link stays one.

    Raises:
        OSError: the folder is missing or the disk is full; `path` is then unchanged.
    """
    path = Path(path).resolve()
    if path.exists() and not path.is_file():
        # A file in the place of /dev/stdout or /dev/null would be everybody's loss.
        with path.open("wb") as file:
            yield file
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        # On a read-only disk there is none, and to be told that of this one would help nobody.
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_bytes_atomically(path: str | Path, content: bytes) -> None:
    """Writes `content` to `path`, whole or not at all.

    Raises:
        OSError: as for `atomic_binary_file`.
    """
    with atomic_binary_file(path) as file:
        file.write(content)


def write_json_atomically(path: str | Path, value: object) -> None:
    r"""Writes `value` as indented, strict JSON to `path`, whole or not at all.

    Raises:
        ValueError: `value` holds NaN or infinity; nothing is written.
        OSError: as for `atomic_binary_file`.
    """
    write_bytes_atomically(path, json_bytes(value))


def json_bytes(value: object) -> bytes:
    """Returns the text that `write_json_atomically` writes."""
    text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)
    return f"{text}\n".encode()


CHECKSUM_FILE = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_MOST_BYTES = 1 << 24  # 100,000 files
_BLOCK_BYTES = 1 << 20


def checksums_of(folder: str | Path, names: Iterable[str] | None = None) -> dict[str, str]:
    """Returns the SHA-256 of files by name, in hexadecimal.

    Args:
        folder: where they are.
        names: relative to it; None takes all files below it but hidden ones and `SHA256SUMS`.

    Raises:
        OSError: a file cannot be read.
    """
    folder = Path(folder)
    return {
        name: sha256_of(folder / name)
        for name in (_names(folder) if names is None else sorted(names))
    }


def write_checksums(folder: str | Path, checksums: dict[str, str]) -> None:
    """Writes `SHA256SUMS`, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    lines = "".join(f"{digest}  {name}\n" for name, digest in checksums.items())
    write_bytes_atomically(Path(folder) / CHECKSUM_FILE, lines.encode())


def read_checksums(folder: str | Path) -> dict[str, str]:
    """Returns the SHA-256 of files by name as `SHA256SUMS` has them; nothing where there is none.

    Raises:
        UnreadableFileError: it is damaged, or has lost all of its lines.
    """
    path = Path(folder) / CHECKSUM_FILE
    if not path.is_file():
        return {}
    found = {}
    lines = read_bytes(path, _MOST_BYTES).decode(errors="replace").split("\n")
    for number, line in enumerate(lines, start=1):
        match = _LINE.fullmatch(line)
        # Names lead nowhere out of the folder.
        if match and not {"", "..", "."} & set(match[2].split("/")):
            found[match[2]] = match[1]
        elif line or number < len(lines):
            raise UnreadableFileError(
                f"{path}, line {number}: expected a SHA-256 and a name, got {shown(line)}"
            )
    if not found:
        raise UnreadableFileError(f"{path}: expected lines of a SHA-256 and a name, got none")
    return found


def damage(folder: str | Path, names: Iterable[str] | None = None) -> list[str]:
    """Returns the defects of the files of a folder, a line each; none if all are whole.

    Args:
        folder: with `SHA256SUMS`.
        names: files to look at; None takes all that are there or listed, so that none can be there
            without a checksum.
    """
    folder = Path(folder)
    if not (folder / CHECKSUM_FILE).is_file():
        return [f"{folder / CHECKSUM_FILE} is missing"]
    try:
        listed = read_checksums(folder)
    except UnreadableFileError as error:
        return [str(error)]
    wanted = {*listed, *_names(folder)} if names is None else set(names)
    found = []
    for name in sorted(wanted):
        file = folder / name
        if not file.is_file():
            found.append(f"{one_line(file)} is missing")
        elif name not in listed:
            found.append(f"{one_line(file)} has no SHA-256 in {CHECKSUM_FILE}")
        else:
            try:
                if sha256_of(file) != listed[name]:
                    found.append(f"{one_line(file)} does not match its SHA-256")
            except OSError as error:
                found.append(f"{one_line(file)} cannot be read: {error.strerror}")
    return found


def require_no_run(folder: str | Path, command: str) -> None:
    """Refuses to write into a run, or into or below a network or a checkpoint with checksums.

    Raises:
        ValueError: the files there are those of a training.
    """
    here = Path(folder).resolve()
    found = [
        path
        for path in (here, *here.parents)
        if (path / CHECKSUM_FILE).is_file() and (path / "config.json").is_file()
    ]
    if found or (here / "run.json").exists():
        raise ValueError(
            f"{command}: the output must be a folder of its own, got {one_line(folder)}, where the "
            "files of a training are; name another"
        )


def _names(folder: Path) -> list[str]:
    names = (file.relative_to(folder) for file in folder.rglob("*") if file.is_file())
    return sorted(
        name.as_posix()
        for name in names
        if name.as_posix() != CHECKSUM_FILE and not any(p.startswith(".") for p in name.parts)
    )


def sha256_of(*files: Path, seen: Callable[[int], object] = lambda size: None) -> str:
    """Returns the SHA-256 over the bytes of files in turn; `seen` gets the size of each block."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
                seen(len(block))
    return digest.hexdigest()


# The files that a checksum vouches for: from the start, of a run that ended, of one that finished.
_BEGUN = ("config.yaml", "manifest.json")
_ENDED = ("run.json", "metrics.jsonl")
_FINISHED = ("evaluation.json",)
# Those of a run that was analysed, and others that not every run has.
_OPTIONAL = ("analysis.json", "analysis.npz", "sample.json", "fixed_point.json")


def run_damage(folder: Path, status: str | None) -> list[str]:
    """Returns the defects of a run's own files, a line each; none if all are whole.

    They are compared with `SHA256SUMS`, which must name every file that a run of this status has:
    one that has lost a line vouches for nothing. Those that change during training are in it only
    after its end. The folders of the network and of the checkpoints have sums of their own.
    """
    names = [*_BEGUN]
    names += _ENDED if status not in (None, "running") else ()
    names += _FINISHED if status == "finished" else ()
    listed: dict[str, str] = {}
    with suppress(UnreadableFileError):  # `damage` says it below
        listed = read_checksums(folder) if status == "finished" else {}
    names += [name for name in _OPTIONAL if (folder / name).exists() or name in listed]
    return damage(folder, names)
