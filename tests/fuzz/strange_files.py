"""Files that strangers send or that disks damage, read by the commands that read such files.

Every case puts one hostile file (tests/python/hostile_files.py) in the place of a good one. The
command must end in one line, or do what it does with good files; it may not hang, show a traceback,
execute anything or write outside its folder. A run that resumes from damaged checkpoints must end
with the weights of the run that nothing disturbed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path

import yaml
from commands import LABEL, SCRATCH, WATCH, end_of, prepare, run, train_command, training
from drawing import Draw

sys.path.append(str(Path(__file__).resolve().parents[1] / "python"))

import hostile_files

train_runs = training.train_runs
prepare()
no_training = training.train_runs

RUN = SCRATCH / "runs" / "ereg-sm-t-scfuffn-seed0"
PACKAGE = Path(training.__file__).parents[1]
NETWORK = ("model.safetensors", "config.json")
LAST = RUN / "checkpoints" / "step-12"


def _more_files() -> None:
    """A recipe, a GPT-2, a report, a comparison: what other commands read."""
    from transformers import GPT2Config, GPT2LMHeadModel

    tiny = GPT2Config(vocab_size=320, n_positions=32, n_embd=32, n_layer=2, n_head=2)
    GPT2LMHeadModel(tiny).save_pretrained(SCRATCH / "gpt2")
    shutil.copy(RUN / "model" / "tokenizer.json", SCRATCH / "gpt2")
    run(["report", str(RUN), "--output", str(SCRATCH / "report")])
    recipe = yaml.safe_load((RUN / "config.yaml").read_text())
    del recipe["label"], recipe["seed"]
    (SCRATCH / "recipe.yaml").write_text(yaml.safe_dump(recipe))


_more_files()

REPORT = (("report", "case", "--output", "out"),)  # draws figures, which takes a second
READ_RUN = (("evaluate", "case"), ("analyze", "case"), ("export", "case", "--output", "out"),
            ("cost", "sweep", "--run", "case", "--stack", "spu-2024"))  # fmt: skip
READ_NETWORK = (("evaluate", "case"), ("export", "case/model", "--output", "out"),
                ("convert", "case/model", "--label", "EReg(SM(t)+ScFuFFN_i1)", "--output", "out"),
                (*train_command(LABEL, Path("out")), "--from", "case", "--dry-run"),
                ("private", "publish", "case", "--output", "out"))  # fmt: skip
READ_GPT2 = (("convert", "case", "--label", "SM+ScFuFFN", "--output", "out"),
             ("export", "case", "--output", "out"))  # fmt: skip
READ_EXPORT = (("private", "publish", "case", "--output", "out"),
               ("private", "run", "case", "--prompt-tokens", "1,2"))  # fmt: skip
READ_RECIPE = (("train", "--label", "SM+R", "--config", "case.yaml",
                "--cache-dir", str(SCRATCH / "cache"), "--dry-run"),)  # fmt: skip
SHOW = (("cost", "show", "SM+LN+G", "--model", "tiny", "--stack", "case.yaml"),)
READ_CORPUS = ((*train_command(LABEL, Path("out"), cache=Path("case")), "--dry-run"),)
VERIFY = (("verify", "case"),)
RECORDS = ("run.json", "config.yaml", "metrics.jsonl", "evaluation.json", "manifest.json",
           "analysis.json", "analysis.npz", "sample.json")  # fmt: skip
SAVED = (*NETWORK, "tokenizer.json", "tokenizer_config.json", "generation_config.json")


def files_of(folder: Path) -> tuple[str, ...]:
    """All files below that somebody writes and reads again."""
    names = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    left_out = {".lock", "tensorboard"}
    return tuple(sorted(str(n) for n in names if left_out.isdisjoint(n.parts)))


# Where good files lie, what commands read such a folder, which of its files, and how often.
TARGETS: list[tuple[Path, tuple[tuple[str, ...], ...], tuple[str, ...], float]] = [
    (SCRATCH / "recipe.yaml", READ_RECIPE, ("",), 3),
    (PACKAGE / "data" / "stacks" / "sigma.yaml", SHOW, ("",), 2),
    (PACKAGE / "data" / "stacks" / "blb.yaml", SHOW, ("",), 2),
    (RUN, READ_RUN, RECORDS, 6),
    (RUN, REPORT, RECORDS, 0.5),
    (RUN, READ_NETWORK, tuple(f"model/{name}" for name in SAVED), 6),
    (SCRATCH / "gpt2", READ_GPT2, (*NETWORK, "tokenizer.json"), 2),
    (SCRATCH / "export", READ_EXPORT, ("network.json", "weights.safetensors"), 2),
    (SCRATCH / "report" / "report.json",
     (("report", str(RUN), "--output", "out", "--seed-spread", "case.json"),), ("",), 0.5),
    (SCRATCH / "cache", READ_CORPUS, files_of(SCRATCH / "cache"), 1),
    (RUN, VERIFY, files_of(RUN), 1),
]  # fmt: skip
WEIGHTS = [target[3] for target in TARGETS]


def content(draw: Draw, good: bytes, name: str) -> tuple[str, bytes]:
    """One hostile file in the place of a good one."""
    kind = Path(name).suffix[1:]
    choices: list[dict[str, bytes]] = [hostile_files.BYTES]
    if kind in ("json", "yaml", "jsonl"):
        choices += [
            hostile_files.TOPS,
            hostile_files.YAML if kind == "yaml" else hostile_files.JSON,
        ]
    if draw.chance(0.15):
        return draw.choice(sorted(draw.choice(choices).items()))
    if kind in ("json", "yaml") and draw.chance(0.6):
        value = json.loads(good) if kind == "json" else yaml.safe_load(good)
        ((what, changed),) = hostile_files.reshaped(value, draw, 1)
        return what, json.dumps(changed).encode()
    if kind == "safetensors" and draw.chance(0.6):
        return header_of(draw, good)
    number = draw.randrange(6)
    *_, (what, damage) = hostile_files.damaged(good, draw, number + 1)
    return what, damage


def header_of(draw: Draw, good: bytes) -> tuple[str, bytes]:
    """Weights whose header was rewritten: other shapes, places, dtypes, lengths."""
    size = int.from_bytes(good[:8], "little")
    header = json.loads(good[8 : 8 + size])
    ((what, changed),) = hostile_files.reshaped(header, draw, 1)
    text = json.dumps(changed).encode()
    length = draw.choice((len(text), len(text), len(text), 0, 2**63, 2**40, len(text) + 1))
    return f"header {what}, length {length}", length.to_bytes(8, "little") + text + good[8 + size :]


def attack(seed: int) -> int:
    draw = Draw(seed)
    folder = SCRATCH / "case"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    if draw.chance(0.01):  # a hundred times as slow as the others
        return _resume(draw, folder)
    source, commands, names, _ = draw.choices(TARGETS, WEIGHTS)[0]
    name, place = draw.choice(names), folder / f"case{source.suffix}"
    unread = ("tensorboard",) if commands is VERIFY else ("tensorboard", "checkpoints")
    if source.is_dir():
        shutil.copytree(source, place, ignore=shutil.ignore_patterns(*unread))
    target = place / name if name else place
    good = target.read_bytes() if name else source.read_bytes()
    what, changed = content(draw, good, name or source.name)
    target.write_bytes(changed)
    command = list(draw.choice(commands))
    try:
        status, _ = end_of(command, folder)
        if commands is VERIFY and target.name != "SHA256SUMS":
            assert (changed == good) == (status == 0), f"verify ends with {status}"
    except Exception as error:
        raise AssertionError(
            f"aero {' '.join(command)}: {name or source.name}: {what}: {error}"
        ) from error
    return 1


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _resume(draw: Draw, folder: Path) -> int:
    """Trains on from checkpoints of which one or two are damaged."""
    place = folder / "runs" / RUN.name
    shutil.copytree(RUN, place)
    for name in ("model", "evaluation.json", "checkpoints/step-12"):
        path = place / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    info = json.loads((place / "run.json").read_text())
    (place / "run.json").write_text(json.dumps({**info, "status": "running"}))
    files = sorted((place / "checkpoints" / "step-9").iterdir())
    told: list[str] = []
    for path in draw.sample(files, draw.choice((1, 1, 2))):
        what, changed = content(draw, path.read_bytes(), path.name)
        told.append(f"{path.name}: {what}")
        if draw.chance(0.1):
            path.unlink()
        else:
            path.write_bytes(changed)
    command = train_command(LABEL, folder / "runs")
    training.train_runs, WATCH.allows_work = train_runs, True
    try:
        status, _ = end_of(command, folder)
        same = status or digest(place / "model" / NETWORK[0]) == digest(RUN / "model" / NETWORK[0])
        assert same, "resumed to other weights"
    except Exception as error:
        raise AssertionError(f"resume: {'; '.join(told)}: {error}") from error
    finally:
        training.train_runs, WATCH.allows_work = no_training, False
    return 1
