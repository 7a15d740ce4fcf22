"""Files that are there whole or not at all.

A reader never sees half a file, and a full disk or an interrupt leaves the previous version in
place: the content goes to a temporary name in the same folder, is flushed to the device, and takes
the final name in one rename.
"""

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

__all__ = ["atomic_binary_file", "json_bytes", "write_bytes_atomically", "write_json_atomically"]


@contextmanager
def atomic_binary_file(path: str | Path) -> Iterator[IO[bytes]]:
    """Opens a temporary file for writing that becomes `path` when the block ends without an error.

    Args:
        path: the final name; its folder must exist. A device or a pipe is written to as it is, a
            symbolic link stays one.

    Yields:
        A file object open for binary writing.

    Raises:
        OSError: the folder is missing or the disk is full; `path` is then unchanged.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from aero.atomic_files import atomic_binary_file
        >>> folder = tempfile.TemporaryDirectory()
        >>> with atomic_binary_file(Path(folder.name, "a")) as file:
        ...     _ = file.write(b"whole")
        >>> Path(folder.name, "a").read_bytes()
        b'whole'
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

    Args:
        path: the final name; its folder must exist.
        content: of the file.

    Raises:
        OSError: as for `atomic_binary_file`.

    Example:
        >>> from pathlib import Path
        >>> from aero.atomic_files import write_bytes_atomically
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> write_bytes_atomically(Path(folder.name, "a"), b"whole")
        >>> Path(folder.name, "a").read_bytes()
        b'whole'
    """
    with atomic_binary_file(path) as file:
        file.write(content)


def write_json_atomically(path: str | Path, value: object) -> None:
    r"""Writes `value` as indented, strict JSON to `path`, whole or not at all.

    Args:
        path: the final name; its folder must exist.
        value: anything `json` can write; NaN and infinity are refused, strict JSON has no word
            for them.

    Raises:
        ValueError: `value` holds NaN or infinity; nothing is written.
        OSError: as for `atomic_binary_file`.

    Example:
        >>> from pathlib import Path
        >>> from aero.atomic_files import write_json_atomically
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> write_json_atomically(Path(folder.name, "a.json"), {"step": 3})
        >>> Path(folder.name, "a.json").read_text()
        '{\n  "step": 3\n}\n'
    """
    write_bytes_atomically(path, json_bytes(value))


def json_bytes(value: object) -> bytes:
    """Returns the text that `write_json_atomically` writes."""
    text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)
    return f"{text}\n".encode()
