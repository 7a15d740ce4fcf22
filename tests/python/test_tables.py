"""Rows as CSV, as lines and as Markdown."""

from __future__ import annotations

import csv
import io

import pytest

from aero import tables

HOSTILE = ["a|b", "two\nlines", "a\\|b", "", "ends in \\", "\r\n"]


def test_markdown_cells_stay_one_cell_on_one_line() -> None:
    lines = tables.markdown_table(["|", "\n"], [[text, text] for text in HOSTILE]).splitlines()
    assert len(lines) == 2 + len(HOSTILE)
    for line in lines:
        unescaped = line.replace("\\\\", "").replace("\\|", "")
        assert unescaped.count("|") == 3, line
    assert lines[2] == "| a\\|b | a\\|b |"
    assert lines[3] == "| two lines | two lines |"


def test_markdown_rows_must_have_a_cell_per_column() -> None:
    with pytest.raises(ValueError, match=r"must have 2 cells, got \['a'\]"):
        tables.markdown_table(["x", "y"], [["a"]])


def test_csv_and_lines_have_every_column_of_any_row() -> None:
    rows = [{"a": "1"}, {"b": "x,y", "a": "22"}]
    assert list(csv.DictReader(io.StringIO(tables.table_csv(rows)))) == [
        {"a": "1", "b": ""}, {"a": "22", "b": "x,y"}
    ]  # fmt: skip
    assert tables.table_lines(rows) == ["a     b", "1", "22  x,y"]
