"""Commands on files from strangers: results or one printable line, never a traceback or a hang."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from .hostile_commands import COMMANDS, Reads, run_with, write_good_files
from .hostile_files import BYTES, hostile
from .report.conftest import write_run


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    write_good_files(folder, write_run)
    return folder


@pytest.mark.parametrize("reads", COMMANDS, ids=lambda reads: reads.name)
def test_hostile_files_end_in_one_line(reads: Reads, good: Path) -> None:
    assert run_with(reads, good)[0] == reads.status
    # All commands together meet every kind of file; `make fuzz` has time for each at each.
    generator = random.Random(reads.name)
    contents = list(hostile(reads.kind, (good / reads.file).read_bytes(), generator, 6))
    for name, content in generator.sample(contents, 1 if "report" in reads.command else 4):
        try:
            run_with(reads, good, content)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
    assert run_with(reads, good, BYTES["random"])[0] != 0
