"""Files that strangers send: made here from nothing, or from a good file by damaging it.

Nothing of `aero` is imported. The tests read all of them; `make fuzz` draws more from the same
generators.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

ESCAPES = "\x1b[2J\x1b]0;owned\x07\r\n\u202egnp.\u200b"


def _bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines)


# No YAML document of a stranger may do more than end in an error.
YAML = {
    "aliases in aliases": _bomb(9).encode(),
    "aliases merged": b"a0: &a0 {k: 1}\n"
    + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 40)).encode(),
    "alias of itself": b"a: &a [*a]",
    "alias of its mapping": b"&a {a: *a}",
    "unknown alias": b"a: *b",
    "nested lists": b"a: " + b"[" * 100_000,
    "nested mappings": b"{a: " * 50_000,
    "nested blocks": b"- " * 100_000,
    "nested keys": b"? " * 100_000,
    "400 digits": b"a: " + b"9" * 400,
    "5000 digits": b"a: " + b"9" * 5000,
    "5000 binary digits": b"a: 0b" + b"1" * 5000,
    "300 sexagesimal digits": b"a: 1" + b":59" * 300,
    "infinity": b"a: .inf",
    "overflow": b"a: 1.0e+999",
    "not a number": b"a: .nan",
    "a whole number as key": b"1: 2",
    "a truth as key": b"yes: 2",
    "null as key": b"~: 2",
    "a list as key": b"[1]: 2",
    "a mapping as key": b"{a: 1}: 2",
    "an entry twice": b"a: 1\na: 2",
    "a tag that calls": b"a: !!python/object/apply:os.system [ls]",
    "a binary": b"a: !!binary aGVsbG8=",
    "a date by tag": b"a: !!timestamp 2001-99-99",
    "a set": b"a: !!set {a, b}",
    "not the truth": b"a: !!bool maybe",
    "not a whole number": b"a: !!int maybe",
    "not binary digits": b"a: !!int '0b'",
    "two documents": b"a: 1\n---\nb: 2",
    "a tab": b"a:\n\tb: 1",
    "an escape": b"a: \x1b[2J",
    "half a surrogate pair": b'a: "\\ud800"',
    "10,001 values": b"a: [" + b"1," * 10_001 + b"]",
    "half a megabyte": b"a: " + b"x" * (1 << 19),
}
# The same for JSON, whatever is expected of it.
JSON = {
    "nested lists": b"[" * 100_000,
    "900 nested lists": b"[" * 900 + b"]" * 900,
    "nested mappings": b'{"a":' * 100_000,
    "60 nested mappings": b'{"a":' * 60 + b"1" + b"}" * 60,
    "400 digits": b'{"a": ' + b"9" * 400 + b"}",
    "5000 digits": b'{"a": ' + b"9" * 5000 + b"}",
    "5000 digits of a fraction": b'{"a": 0.' + b"9" * 5000 + b"}",
    "overflow": b'{"a": 1e999}',
    "an entry twice": b'{"a": 1, "a": 2}',
    "half a surrogate pair": b'{"a": "\\ud800"}',
    "half a surrogate pair as key": b'{"\\udfff": 1}',
    "no end": b'{"a": ',
    "more after the end": b"{} {}",
    "an escape": b'{"a": "\x1b"}',
    "single quotes": b"{'a': 1}",
}
# No text at all.
BYTES = {
    "nothing": b"",
    "no UTF-8": b'{"a": "\xff\xfe"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "a NUL": b'{"a": "\0"}',
    "NULs": bytes(4096),
    "random": random.Random(0).randbytes(4096),
    "a pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94.",
    "a zip": b"PK\x03\x04" + bytes(64),
}
# JSON and YAML of another kind than any of ours.
TOPS = {"a list": b"[]", "null": b"null", "a text": b'"text"', "a number": b"1", "true": b"true"}

_OTHERS: tuple[Any, ...] = (
    None, [], {}, "", "text", ESCAPES, "../../etc/passwd", True, 0, -1, 7, 1 << 62, 10**30, -0.5,
    1e300, [[[]]], {"text": 1}, ["text"], [None], "x" * 10_000,
)  # fmt: skip


def damaged(good: bytes, generator: random.Random, count: int) -> Iterator[tuple[str, bytes]]:
    """Yields a file after accidents: cut off, bits flipped, bytes lost, repeated, replaced.

    Some are still good files.
    """
    for number in range(count):
        content, place = bytearray(good), generator.randrange(max(1, len(good)))
        kind = number % 6
        if kind == 0:
            yield f"cut off at {place}", good[:place]
        elif kind == 1:
            content[place : place + 1] = bytes([good[place] ^ 1 << generator.randrange(8)])
            yield f"a bit flipped at {place}", bytes(content)
        elif kind == 2:
            del content[place : place + generator.randrange(1, 20)]
            yield f"bytes lost at {place}", bytes(content)
        elif kind == 3:
            end = place + generator.randrange(1, 40)
            yield f"bytes repeated at {place}", good[:end] + good[place:]
        elif kind == 4:
            content[place : place + 16] = b"\xff" * len(content[place : place + 16])
            yield f"0xff at {place}", bytes(content)
        else:
            words = [
                b"null",
                b"[",
                b"{",
                b'"',
                b"1e999",
                b"-",
                b"NaN",
                b"&a ",
                b"*a ",
                b"\n",
                b": ",
            ]
            content[place:place] = generator.choice(words)
            yield f"a word put in at {place}", bytes(content)


def reshaped(good: Any, generator: random.Random, count: int) -> Iterator[tuple[str, Any]]:
    """Yields plain values in which one entry is missing or something else."""
    places = list(_places(good))
    for _ in range(count):
        place = generator.choice(places)
        value = copy.deepcopy(good)
        if not place:
            yield "all of it", generator.choice(_OTHERS)
            continue
        parent = value
        for step in place[:-1]:
            parent = parent[step]
        if generator.random() < 0.2:
            del parent[place[-1]]
            yield f"without {_shown(place)}", value
        else:
            other = parent[place[-1]] = copy.deepcopy(generator.choice(_OTHERS))
            yield f"{_shown(place)} = {ascii(other)[:60]}", value


def hostile(kind: str, good: bytes, generator: random.Random, count: int) -> Iterator:
    """Yields names and contents of hostile files instead of a good one.

    Args:
        kind: `json`, `yaml`, or anything else for bytes.
        good: a good file.
        generator: of the random ones.
        count: how many random ones of each sort there shall be.
    """
    yield from BYTES.items()
    yield from damaged(good, generator, count)
    if kind in ("json", "yaml"):
        yield from TOPS.items()
        yield from (JSON if kind == "json" else YAML).items()
    if kind == "json":
        for name, value in reshaped(json.loads(good), generator, count):
            yield name, json.dumps(value).encode()


def _places(value: Any, place: tuple = ()) -> Iterator[tuple]:
    yield place
    if isinstance(value, dict | list):
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _places(entry, (*place, key))


def _shown(place: tuple) -> str:
    return ".".join(map(str, place))
