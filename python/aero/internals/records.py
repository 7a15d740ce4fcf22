"""Files as typed records: each is declared once, and written and read through its declaration.

`aero.reading` reads a stranger's file with bounds; here its entries are compared with the record.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeVar

from aero.internals.errors import extra
from aero.reading import UnreadableFileError, one_line, read_json

with extra("train"):
    import msgspec
    from msgspec import Meta as Meta
    from msgspec import Struct as Struct

Record = TypeVar("Record")
_Struct = TypeVar("_Struct", bound=Struct)
_PLACE = re.compile(r"(.*?)(?: - at `\$(.*)`)?", re.DOTALL)


def as_record(value: object, kind: type[Record], name: str) -> Record:
    """Returns parsed JSON as a record.

    Args:
        value: as `aero.reading` returns it.
        kind: of the record.
        name: of the file, for errors.

    Raises:
        UnreadableFileError: an entry is missing or of another type; the text names it.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        said, place = _PLACE.fullmatch(str(error)).groups()  # type: ignore[union-attr]
        told = re.sub(
            r"^Object missing required field (`.*`)", r"expected an entry \1, got none", said
        )
        told = re.sub(r"^Invalid value (.*)", r"expected a word that it can have, got \1", told)
        where = f"{name}: {place.removeprefix('.')}" if place else name
        raise UnreadableFileError(
            one_line(f"{where}: {told[0].lower()}{told[1:]}".replace("`", ""))
        ) from error


def read_record(path: str | Path, kind: type[Record]) -> Record:
    """Reads a JSON file as a record.

    Raises:
        UnreadableFileError: as for `aero.reading.read_json` and `as_record`.
    """
    return as_record(read_json(path), kind, str(path))


def changed(record: _Struct, **changes: Any) -> _Struct:
    """Returns a record with other values of some entries."""
    return msgspec.structs.replace(record, **changes)


def as_dict(record: msgspec.Struct) -> dict[str, Any]:
    """Returns a record as its file has it, as plain values."""
    values: dict[str, Any] = msgspec.to_builtins(record)
    return values


def record_bytes(record: object, *, indent: int = 2) -> bytes:
    """Returns a record, or plain values, as JSON; an indent of 0 makes a line of it."""
    content = msgspec.json.encode(record, enc_hook=_plain)
    return (msgspec.json.format(content, indent=indent) if indent else content) + b"\n"


def _plain(value: object) -> str | float:
    """Texts and numbers of classes of their own, such as torch's version and NumPy's float64."""
    for kind in (str, float):
        if isinstance(value, kind):
            return kind(value)
    raise NotImplementedError
