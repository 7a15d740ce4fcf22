"""Every command that reads a file, with good files to damage one at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from aero import cli

_LABEL = "EReg(SM(t)+LN+G)"
_WORDS = ["def", "return", "self", "value", "index", "for", "in", "if", "else", "not", "None"]
_STACK = """{format: 1, name: mine, base: spu-2024, fields: {exp_squarings: 6}, source: my paper,
prices: {gelu: {bytes_per_output: 100, rounds: 3}}}"""
_CONFIG = "training: {tokens: 2e4}\noptimizer:\n  learning_rate: 1e-3\nmodel: {preset: tiny}"


@dataclass(frozen=True)
class Reads:
    """A command, the file among those that it reads which is damaged, and the file's kind."""

    command: tuple[str, ...]
    file: str
    kind: str
    status: int = 0  # with the good files; commands that need SPU's environment end without it

    @property
    def name(self) -> str:
        return f"{' '.join(self.command[:2])} {self.file}".replace(" run", "")


def _reads(command: str, *files: str, status: int = 0) -> list[Reads]:
    kinds = {".json": "json", ".yaml": "yaml"}
    words = tuple(command.split())
    return [Reads(words, file, kinds.get(Path(file).suffix, ""), status) for file in files]


_NETWORK = ("config.json", "model.safetensors", "generation_config.json")
_SETTINGS = [
    "training.tokens=640",
    "training.tokens_per_step=64",
    "model.preset=tiny",
    "model.context_length=16",
    "data.vocabulary=300",
    "data.source=corpus",
]
_TRAIN = f"train --label {_LABEL} --cache-dir cache --output out --dry-run --set " + " --set ".join(
    _SETTINGS
)
COMMANDS = [
    *_reads(f"{_TRAIN} --config my.yaml", "my.yaml"),
    *_reads(f"{_TRAIN} --from run", "run/run.json"),
    *_reads(f"{_TRAIN} --from run/model", "run/model/config.json"),
    *_reads("cost show SM+LN+G --stack stack.yaml", "stack.yaml"),
    *_reads("cost show SM+LN+G --stack stack.json", "stack.json"),
    *_reads("cost sweep --run run", "run/run.json", "run/evaluation.json"),
    *_reads(
        "report run --output out --seed-spread spread/report.json",
        "run/run.json",
        "run/metrics.jsonl",
        "run/evaluation.json",
        "run/analysis.json",
        "run/analysis.npz",
        "run/sample.json",
        "spread/report.json",
    ),
    *_reads(
        "evaluate run --max-tokens 64",
        "run/run.json",
        *(f"run/model/{name}" for name in _NETWORK),
        "data/manifest.json",
        "data/validation.bin",
        "data/tokenizer/tokenizer.json",
        "data/tokenizer/tokenizer_config.json",
    ),
    *_reads("export run --output out", *(f"run/model/{name}" for name in _NETWORK)),
    *_reads(
        "convert run --label EReg(SM(t)+ScFuFFN) --output out",
        "run/model/config.json",
        "run/model/tokenizer.json",
    ),
    *_reads(
        "private publish exported --output out", "exported/network.json", "exported/tokenizer.json"
    ),
    *_reads(
        "private ask exported --connect 127.0.0.1:1 --prompt def --wait 0.1",
        "exported/network.json",
        "exported/tokenizer.json",
        status=2,
    ),
    *_reads("private run exported --prompt def", "exported/weights.safetensors", status=2),
    *_reads(
        "private chat exported --connect 127.0.0.1:1 --prompt def --wait 0.1 --yes",
        "exported/network.json",
        "exported/tokenizer.json",
        status=2,
    ),
]


def write_good_files(folder: Path, write_run: Any) -> None:
    """Fills a folder with a corpus, a finished run, an export and the rest that `COMMANDS` name.

    Args:
        folder: empty.
        write_run: of the report's tests, which writes a run folder with made-up numbers.
    """
    import torch

    from aero.export import export_weights
    from aero.models import AeroConfig, AeroForCausalLM
    from aero.report import write_report
    from aero.train.data.prepared_data import prepare_data
    from aero.train.recipes.recipe_files import load_recipe, recipe_to_dict
    from aero.train.runs.run_folder import RunFolder

    generator = random.Random(5)
    corpus = folder / "corpus"
    corpus.mkdir()
    for number in range(8):
        text = "\n".join(" ".join(generator.choices(_WORDS, k=6)) for _ in range(60))
        (corpus / f"{number}.py").write_text(text)
    recipe = load_recipe("demo", settings=_SETTINGS)
    section = dataclasses.replace(recipe.data, source=str(corpus))
    prepared = prepare_data(section, cache_dir=folder / "cache", context_length=16)
    shutil.copytree(prepared.folder, folder / "data")
    config = AeroConfig.from_label(_LABEL, model="tiny", vocab_size=300, context_length=16)
    names = ("num_layers", "width", "num_heads", "head_dim", "hidden_width", "context_length")
    sizes = {name: getattr(config.spec, name) for name in (*names, "vocab_size")}
    runs = [write_run(folder / "made", _LABEL, seed=seed, **sizes) for seed in (1, 2)]
    write_report(runs, folder / "spread")
    runs[0].rename(folder / "run")
    info = json.loads((folder / "run/run.json").read_text())
    with torch.random.fork_rng(devices=[]):
        network = AeroForCausalLM(config)
    info["corpus"] |= {"folder": str(folder / "data"), "sha256": prepared.manifest.sha256}
    (folder / "run/run.json").write_text(json.dumps(info))
    network.save_pretrained(folder / "run/model")
    prepared.tokenizer.save_pretrained(folder / "run/model")
    export_weights(network, folder / "exported")
    shutil.copy(folder / "data/tokenizer/tokenizer.json", folder / "exported")
    RunFolder(folder / "run").write_config(recipe_to_dict(recipe))
    (folder / "my.yaml").write_text(_CONFIG)
    (folder / "stack.yaml").write_text(_STACK)
    (folder / "stack.json").write_text(
        json.dumps(
            {"format": 1, "name": "mine", "base": "spu-2024", "fields": {"exp_squarings": 6}}
        )
    )


def run_with(reads: Reads, folder: Path, content: bytes | None = None) -> tuple[int, str]:
    """Runs a command in a folder of good files, one of which holds something else.

    Returns:
        Exit status and standard error; the good file is back in its place.

    Raises:
        AssertionError: the command ended in anything but results or one printable line.
    """
    file = folder / reads.file
    good = file.read_bytes()
    try:
        if content is not None:
            file.write_bytes(content)
        with contextlib.chdir(folder) if hasattr(contextlib, "chdir") else _chdir(folder):
            # No party computes, whether or not SPU is there.
            none = {"AERO_PRIVATE_PYTHON": str(folder / "none")}
            done = CliRunner().invoke(cli.app, list(reads.command), env=none)
    finally:
        file.write_bytes(good)
        shutil.rmtree(folder / "out", ignore_errors=True)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise AssertionError(f"{reads.name}: traceback") from done.exception
    assert done.exit_code in (0, 1, 2), (reads.name, done.exit_code)
    for text in (done.stdout, done.stderr):
        assert text.replace("\n", "").isprintable(), (reads.name, text)
    if done.exit_code:
        told = [line for line in done.stderr.splitlines() if line.startswith("aero: ")]
        assert len(told) == 1 and done.stderr.splitlines()[-1] == told[0], (reads.name, done.stderr)
        assert len(told[0]) < 1300, reads.name
    return done.exit_code, done.stderr


@contextlib.contextmanager
def _chdir(folder: Path) -> Iterator[None]:  # contextlib.chdir is of Python 3.11
    import os

    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
