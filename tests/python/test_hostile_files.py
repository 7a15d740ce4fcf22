"""Commands on files from strangers: results or one printable line, never a traceback or a hang."""

from __future__ import annotations

import os
import pickle
import random
import shutil
from pathlib import Path

import pytest
import typer
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from aero import cli
from aero.cli.errors import one_line_errors, say
from aero.reading import UnreadableFileError

from .hostile_commands import COMMANDS, Reads, run_with, write_good_files
from .hostile_files import BYTES, ESCAPES, hostile
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


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def exported(folder: Path, output: Path) -> str:
    done = CliRunner().invoke(cli.app, ["export", str(folder), "--output", str(output)])
    assert done.exit_code == 2
    return done.stderr


def test_pickled_weights_are_refused_and_never_run(good: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(good / "run/model", tmp_path / "model")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Evil(tmp_path / "owned")))
    told = exported(folder, tmp_path / "out")
    assert "expected weights as safetensors, got a pickle" in told and "save_pretrained" in told
    assert not (tmp_path / "owned").exists()


def test_a_network_that_lacks_weights_is_no_network(good: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(good / "run/model", tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    name = max(weights, key=lambda name: weights[name].ndim)
    weights[f"{name}x"] = weights.pop(name)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    told = exported(folder, tmp_path / "out")
    assert f"expected all weights of the network, got none for 1 of them, such as '{name}'" in told


def test_sizes_that_no_weights_have_are_refused_before_there_is_room_made(
    good: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(good / "run/model", tmp_path / "model")
    text = (folder / "config.json").read_text()
    assert '"num_layers": 2' in text
    (folder / "config.json").write_text(text.replace('"num_layers": 2', '"num_layers": 1000000000'))
    assert "num_layers: expected at most" in exported(folder, tmp_path / "out")


def test_nothing_that_a_name_holds_acts_on_the_terminal(good: Path, tmp_path: Path, capsys) -> None:
    name = ESCAPES.replace("/", "")
    shutil.copytree(good / "run", tmp_path / name)
    done = CliRunner().invoke(cli.app, ["cost", "sweep", "--run", str(tmp_path / name)])
    assert done.exit_code == 0 and r"\x1b[2J" in done.stdout
    assert done.stdout.replace("\n", "").isprintable()
    say(ESCAPES)
    with pytest.raises(typer.Exit), one_line_errors():
        raise UnreadableFileError(ESCAPES)
    out, told = capsys.readouterr()
    assert r"\x1b[2J" in out and told == r"aero: \x1b[2J\x1b]0;owned\x07\r\n\u202egnp.\u200b" + "\n"
