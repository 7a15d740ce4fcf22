"""Files from strangers: whatever they hold, a plain value or one printable line."""

from __future__ import annotations

import json
import os
import random
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aero import reading
from aero.reading import UnreadableFileError

from .hostile_files import BYTES, ESCAPES, JSON, TOPS, YAML, damaged, reshaped

PACKAGE = Path(__file__).parents[2] / "python" / "aero"


def refusal(read: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    with pytest.raises(UnreadableFileError) as caught:
        read(*arguments, **options)
    text = str(caught.value)
    assert text.isprintable() and len(text) < 600, text
    return text


@pytest.mark.parametrize("name", [*YAML, *BYTES])
def test_hostile_yaml_is_one_line(name: str) -> None:
    text = refusal(reading.parse_yaml, {**YAML, **BYTES}[name], "my.yaml")
    assert text.startswith("my.yaml: expected ")


@pytest.mark.parametrize("name", [*JSON, *BYTES, *TOPS])
def test_hostile_json_is_one_line(name: str) -> None:
    text = refusal(reading.parse_json, {**JSON, **BYTES, **TOPS}[name], "my.json")
    assert text.startswith("my.json: expected ")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (
            "my.yaml",
            YAML["aliases in aliases"],
            "at most 10,000 values, with what aliases stand for",
        ),
        ("my.yaml", YAML["nested lists"], "line 1, column 51: expected at most 48 levels"),
        ("my.yaml", YAML["400 digits"], "expected numbers of at most 32 digits, got 400"),
        ("my.yaml", b"a: -" + b"1" * 33, "expected numbers of at most 32 digits, got 34"),
        ("my.yaml", YAML["infinity"], "line 1, column 4: expected finite numbers, got .inf"),
        ("my.yaml", YAML["a whole number as key"], "texts as keys, got 1; write it in quotes"),
        ("my.yaml", YAML["an entry twice"], "line 2, column 1: expected every entry once, got 'a'"),
        ("my.yaml", b"[]", "expected a mapping, got a list"),
        ("my.yaml", b"", "expected a mapping, got null"),
        ("my.yaml", b"a: \xff", "expected UTF-8, got the byte 0xff at 3"),
        ("my.json", JSON["nested lists"], "my.json: expected at most 48 levels, got more"),
        ("my.json", JSON["60 nested mappings"], "my.json: expected at most 48 levels, got more"),
        ("my.json", JSON["400 digits"], "at most 32 digits, got 400: 99999999999999999999..."),
        ("my.json", JSON["overflow"], "expected finite numbers, got 1e999"),
        ("my.json", b'{"a": NaN}', "expected finite numbers, got NaN"),
        ("my.json", b'{"a": -Infinity}', "expected finite numbers, got -Infinity"),
        ("my.json", JSON["an entry twice"], "expected every entry once, got 'a' twice"),
        ("my.json", b'{\n"a" 1}', "valid JSON, got an error in line 2, column 5: Expecting ':'"),
        ("my.json", JSON["half a surrogate pair"], "expected UTF-8, got '\\ud800'"),
        ("my.json", b'{"a": "\0"}', "expected text, got a NUL at 7"),
    ],
)
def test_errors_say_what_was_expected_and_where(name: str, content: bytes, says: str) -> None:
    parse = reading.parse_yaml if name.endswith("yaml") else reading.parse_json
    assert says in refusal(parse, content, name)


def test_what_good_files_hold_is_read_as_ever() -> None:
    values = {
        "numbers": [0, -1, 10**31, 0.1, -1e-300, 1e300],
        "texts": ["", "\U0001f600", "\x1b", "a\nb", "x" * 100_000],
        "words": [True, False, None, {}, []],
        "deep": [[[[{"a": [[]]}]]]],
    }
    for text in (json.dumps(values), json.dumps(values, ensure_ascii=False)):
        assert reading.parse_json(text, "my.json") == values
        assert reading.parse_json(b"\xef\xbb\xbf" + text.encode(), "my.json") == values
    assert reading.parse_json('{"a": [NaN, 1]}', "my.json", finite=False)["a"][1] == 1
    yaml = "a: &a {k: 0x10, l: 1_000}\nb: {<<: *a, l: 2.5e+1}\nc: 2001-01-01\nd: [yes, ~, 'no']"
    assert reading.parse_yaml(yaml, "my.yaml") == {
        "a": {"k": 16, "l": 1000},
        "b": {"k": 16, "l": 25.0},
        "c": "2001-01-01",
        "d": [True, None, "no"],
    }
    # One alias may be used many times while it stands for little.
    many = f"a: &a [1, 2]\nb: [{', '.join(['*a'] * 1000)}]"
    assert len(reading.parse_yaml(many, "my.yaml")["b"]) == 1000


def test_depths_and_sizes_on_the_bound_are_read_and_one_more_is_not(tmp_path: Path) -> None:
    for parse in (reading.parse_json, reading.parse_yaml):
        assert parse("[" * 48 + "]" * 48, "mine", list)
        refusal(parse, "[" * 49 + "]" * 49, "mine", list)
        assert parse("[" + "9" * 32 + "]", "mine", list) == [10**32 - 1]
        refusal(parse, "[" + "9" * 33 + "]" * 49, "mine", list)
    path = tmp_path / "a.yaml"
    path.write_bytes(b"a: 1".ljust(1 << 18))
    assert reading.read_yaml(path) == {"a": 1}
    path.write_bytes(b"a: 1".ljust((1 << 18) + 1))
    assert "expected at most 262,144 bytes, got 262,145" in refusal(reading.read_yaml, path)


def test_more_values_than_memory_should_hold_are_refused_before_they_are_made() -> None:
    text = "[" + "[]," * 3_000_000 + "[]]"
    tracemalloc.start()
    assert "at most 4,000,000 values" in refusal(reading.parse_json, text, "mine", list)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert "got 1,099,511,627,776" in refusal(reading.read_json, path)
    assert "expected at most 262,144 bytes, got more" in refusal(reading.read_yaml, "/dev/zero")


def test_folders_missing_files_and_pipes_without_a_writer_end_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, says in (
        ("pipe", "line 1, column 1"),
        ("missing", "No such file"),
        (".", "Is a directory"),
        ("a\0b", "embedded null"),  # byte, or character from Python 3.13 on
        ("a\x1b[2J\nb", "a\\x1b[2J\\nb: cannot be read: No such file"),
    ):
        assert says in refusal(reading.read_json, tmp_path / name)


def test_a_pipe_with_a_writer_is_read_to_its_end() -> None:
    reader, writer = os.pipe()
    content = json.dumps({"a": "x" * 500_000}).encode()

    def write() -> None:
        with os.fdopen(writer, "wb") as file:
            file.write(content)

    thread = threading.Thread(target=write)
    thread.start()
    assert len(reading.read_json(f"/dev/fd/{reader}")["a"]) == 500_000
    thread.join()
    os.close(reader)


def test_lines_are_read_and_only_the_last_may_be_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n\n{"step": 2}\n')
    assert reading.read_json_lines(path, {"step": int}) == ([{"step": 1}, {"step": 2}], False)
    path.write_text('{"step": 1}\n{"st')
    assert reading.read_json_lines(path) == ([{"step": 1}], True)
    path.write_text('{"st\n{"step": 2}')
    assert "metrics.jsonl, line 1: expected valid JSON" in refusal(reading.read_json_lines, path)
    path.write_text('{"step": 1}\n{"step": "2"}\n')
    assert "line 2: step: expected a whole number, got '2'" in refusal(
        reading.read_json_lines, path, {"step": int}
    )


@pytest.mark.parametrize(
    ("value", "shape", "says"),
    [
        ([], dict, "expected a mapping, got a list"),
        ({}, {"a": int}, "expected an entry 'a', got none"),
        ({"a": True}, {"a": int}, "a: expected a whole number, got True"),
        ({"a": 1 << 63}, {"a": int}, "a: expected a whole number, got 9223372036854775808"),
        ({"a": True}, {"a": float}, "a: expected a number, got True"),
        ({"a": [1, {"b": "x"}]}, {"a": [(int, {"b": int})]}, "a[1].b: expected a whole number"),
        ({"a": "x"}, {"a": int | None}, "a: expected a whole number or null, got 'x'"),
        (
            {"a": {}},
            {"a": ({"weight": float}, {"scale": float}, {"weight": int})},
            "a: expected an entry 'weight' or an entry 'scale', got none",
        ),
        ({"a": 1}, {"a": ({"weight": float}, {"scale": float})}, "a: expected a mapping, got 1"),
        ({"a": {"b": 1}}, {"a": ({"b": str}, None)}, "a.b: expected a text, got 1"),
        ({"a": None}, {"a?": str}, "a: expected a text, got null"),
        ({"a": ESCAPES}, {"a": int}, r"a: expected a whole number, got '\x1b[2J"),
    ],
)
def test_shapes_name_the_entry_that_does_not_fit(value: Any, shape: Any, says: str) -> None:
    assert refusal(reading.checked, value, shape, "mine").startswith(f"mine: {says}")


def test_shapes_let_pass_what_fits() -> None:
    shape = {"a": [{"b": float | None}], "c?": ({"d": str}, None), "e": list, "f": bool}
    for value in (
        {"a": [{"b": 1}, {"b": 1.5}, {"b": None, "more": 1}], "e": [1], "f": False},
        {"a": [], "c": None, "e": [], "f": True},
        {"a": [], "c": {"d": ""}, "e": [], "f": True},
    ):
        assert reading.checked(value, shape, "mine") is value


def test_nothing_that_a_terminal_acts_on_is_printed() -> None:
    planes = (0, 0x3000), (0xD700, 0xE010), (0xFD00, 0x10010), (0xE0000, 0xE0200)
    every = "".join(chr(code) for plane in planes for code in range(*plane))
    assert reading.printable(every).isprintable()
    assert reading.printable("Ångström ∂L/∂t 漢字 'quoted' \\") == "Ångström ∂L/∂t 漢字 'quoted' \\"
    assert reading.printable(ESCAPES) == r"\x1b[2J\x1b]0;owned\x07\r\n\u202egnp.\u200b"
    huge = {"a" * 10**6: [["x" * 10**6] * 1000] * 1000}
    assert len(reading.shown(huge)) < 200 and reading.shown([ESCAPES]).isprintable()
    assert reading.one_line("a\n\t b" + ESCAPES * 10**5).startswith(r"a b\x1b[2J")
    assert len(reading.one_line("x" * 10**6)) < 500


def test_what_libraries_say_is_one_line_and_interrupts_pass() -> None:
    class PanicException(BaseException):  # as of libraries in Rust
        pass

    for error in (ValueError(ESCAPES), RecursionError("x\ny"), PanicException("range")):

        def fail(raised: BaseException = error) -> None:
            with reading.library_errors("a\x1b.bin", "a file"):
                raise raised

        text = refusal(fail)
        assert text.startswith(f"a\\x1b.bin: expected a file, got {type(error).__name__}: ")
    with pytest.raises(KeyboardInterrupt), reading.library_errors("a", "a file"):
        raise KeyboardInterrupt


def test_random_damage_never_ends_in_anything_but_the_value_or_one_line(tmp_path: Path) -> None:
    generator = random.Random(15)
    shape = {"label": str, "seed": int, "spec": dict, "losses": [float | None]}
    good = {"label": "SM", "seed": 1, "spec": {"width": 64}, "losses": [1.5, None, 2]}
    for parse, text in (
        (reading.parse_json, json.dumps(good)),
        (reading.parse_yaml, "label: SM\nseed: 1\nspec: {width: &w 64}\nlosses: [1.5, ~, *w]"),
    ):
        refused = 0
        for name, content in damaged(text.encode(), generator, 300):
            try:
                value = parse(content, "mine", shape)
                assert {type(value["label"]), type(value["seed"])} == {str, int}, name
            except UnreadableFileError as error:
                assert str(error).isprintable(), name
                refused += 1
        assert refused > 150
    for name, value in reshaped(good, generator, 300):
        try:
            found = reading.parse_json(json.dumps(value), "mine", shape)
            assert {type(found["label"]), type(found["seed"])} == {str, int}, name
        except UnreadableFileError as error:
            assert str(error).isprintable(), name
