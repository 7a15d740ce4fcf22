"""`aero train` and what follows it: what people type, what they read, and the exit code."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aero import cli

from .full_disk import run_with_limit
from .test_cli_errors import assert_one_line

WORDS = ["def", "return", "self", "value", "index", "for", "in", "if", "else", "not", "None"]
SETTINGS = [
    "--set=data.vocabulary=320",
    "--set=data.validation_fraction=0.2",
    "--set=model.preset=tiny",
    "--set=model.context_length=32",
    "--set=training.tokens_per_step=256",
    "--set=training.tokens=2560",
    "--set=training.checkpoint_every_steps=5",
    "--set=evaluation.final_tokens=1024",
    "--set=logging.entropy_every_steps=5",
]


@pytest.fixture(scope="session")
def source(tmp_path_factory) -> Path:
    folder, generator = tmp_path_factory.mktemp("cli"), random.Random(3)
    for number in range(10):
        lines = (" ".join(generator.choices(WORDS, k=6)) for _ in range(120))
        (folder / f"{number}.py").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cli-cache")


@pytest.fixture
def train_arguments(source, cache, tmp_path) -> list[str]:
    return [
        *("train", "--data", str(source), "--output", str(tmp_path / "runs")),
        *("--cache-dir", str(cache), *SETTINGS),
    ]


def invoke(*arguments: str):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


# Command lines, as JSON, on a disk where no file may grow beyond a few bytes.
ON_A_FULL_DISK = """
    import json, sys
    from typer.testing import CliRunner
    import aero.conversion, aero.export, aero.report
    from aero import cli
    from aero.saved import loading
    from aero.train.runs import run_results
    leave_no_room(64)
    for arguments in json.loads(sys.argv[1]):
        result = CliRunner().invoke(cli.app, arguments)
        print(json.dumps([result.exit_code, result.stderr]))
"""


def test_a_network_goes_from_text_to_report(train_arguments, tmp_path):
    labels = ["--label", "SM+LN+G", "--label", "EReg(SM(t)+ScFuFFN)"]
    result = invoke(*train_arguments, *labels, "--seed", "0", "--seed", "1")
    assert result.exit_code == 0, result.output
    runs = tmp_path / "runs"
    assert result.stdout == ""
    loss = json.loads((runs / "sm-ln-g-seed0" / "evaluation.json").read_text())
    assert f"SM+LN+G seed 0: perplexity {loss['perplexity']:.2f} after " in result.stderr
    assert result.stderr.count(f" s, in {runs}/") == 4
    assert sorted(path.name for path in runs.iterdir()) == [
        "ereg-sm-t-scfuffn-seed0",
        "ereg-sm-t-scfuffn-seed1",
        "sm-ln-g-seed0",
        "sm-ln-g-seed1",
    ]
    again = invoke(*train_arguments, *labels, "--seed", "1")
    assert again.exit_code == 0 and again.stderr.count("reusing the finished run") == 2

    for damage in ("truncated", "gone"):
        damaged = tmp_path / damage
        shutil.copytree(runs / "sm-ln-g-seed0", damaged)
        if damage == "gone":
            (damaged / "model" / "config.json").unlink()
        else:
            os.truncate(damaged / "model" / "model.safetensors", 1000)
        for command, *options in (
            ("evaluate",),
            ("analyze",),
            ("convert", "--label", "SM+R", "--output", tmp_path / "never"),
            ("export", "--output", tmp_path / "never"),
        ):
            assert_one_line(invoke(command, damaged, *options), str(damaged))
    assert not (tmp_path / "never").exists()
    commands = [
        [command, str(runs / "sm-ln-g-seed0"), *options]
        for command, *options in (
            ("evaluate",),
            ("analyze",),
            ("report", "--output", f"{tmp_path}/full"),
            ("convert", "--label", "SM+R", "--output", f"{tmp_path}/full"),
            ("export", "--output", f"{tmp_path}/full"),
        )
    ]
    limited = run_with_limit(ON_A_FULL_DISK, json.dumps(commands))
    for (command, *_), said in zip(commands, limited.stdout.splitlines(), strict=True):
        exit_code, errors = json.loads(said)
        assert exit_code == 2, errors
        line = errors.strip().splitlines()[-1]
        assert line.startswith(f"aero: {command}: no space left in {tmp_path}/")
        assert command != "evaluate" or " while writing perplexity " in line

    ended = invoke(*train_arguments, *labels, "--seed", "1", "--json")
    assert [run["status"] for run in json.loads(ended.stdout)] == ["finished", "finished"]
    kept = json.loads((runs / "sm-ln-g-seed1" / "evaluation.json").read_text())
    assert json.loads(ended.stdout)[0]["evaluation"] == kept

    evaluated = invoke("evaluate", runs)
    assert evaluated.exit_code == 0, evaluated.output
    assert evaluated.stdout.count("bits per byte") == 4
    (found,) = json.loads(invoke("evaluate", runs / "sm-ln-g-seed1", "--json").stdout)
    assert found["run"].endswith("sm-ln-g-seed1") and kept["windows"] == "disjoint"
    assert found["perplexity"] == pytest.approx(kept["perplexity"])
    assert found["perplexity_interval"] == pytest.approx(kept["perplexity_interval"])
    run = runs / "ereg-sm-t-scfuffn-seed0"
    compared = invoke(
        "evaluate", run, "--fixed-point", "spu-2024", "--set", "exp_squarings=5", "--max-tokens", 64
    )
    assert compared.exit_code == 0, compared.output
    assert "under spu-2024" in compared.stdout and "largest logit difference" in compared.stdout
    measured = json.loads((run / "fixed_point.json").read_text())
    assert measured["approximations"]["exp_squarings"] == 5
    assert measured["perplexity"] == pytest.approx(measured["exact_perplexity"], rel=0.05)
    assert 0 < measured["mean_logit_difference"] < measured["largest_logit_difference"]
    for options, words in (
        (["--fixed-point", "spu-2025"], 'fixed point: stack must be "spu-2024"'),
        (["--fixed-point", "spu-2024", "--set", "exp_squarings"], "must be FIELD=VALUE"),
        (["--fixed-point", "spu-2024", "--set", "exp_squarings=[5]"], "exp_squarings must be"),
        (["--set", "exp_squarings=5"], "the stack that --fixed-point names"),
    ):
        assert_one_line(invoke("evaluate", run, *options), words)
    analyzed = invoke("analyze", runs / "sm-ln-g-seed0", "--windows", "2")
    assert analyzed.exit_code == 0, analyzed.output
    assert "heads per quarter" in analyzed.stdout
    (two,) = json.loads(
        invoke("analyze", runs / "sm-ln-g-seed0", "--windows", "2", "--json").stdout
    )
    for layer, row in enumerate(two["head_entropy"]):
        heads = " ".join(f"{value:.2f}" for value in row)
        line = f"layer {layer}: mean {sum(row) / len(row):.2f}, heads {heads}\n"
        assert line in analyzed.stdout
    (found,) = json.loads(invoke("analyze", runs / "sm-ln-g-seed0", "--json").stdout)
    assert sum(found["quarters"]["observed_max"]) == pytest.approx(1)
    own = runs / "sm-ln-g-seed0" / "evaluation.json"
    evaluation = json.loads(own.read_text())
    assert found["context"] == two["context"] == evaluation["context"]
    assert found["context"]["by_position"][0]["first"] == 1
    new = found["context"]["new"]["loss"]
    assert "loss by tokens of context: 1 " in analyzed.stdout
    assert f"on new tokens {new:.2f}" in analyzed.stdout
    aside = own.rename(tmp_path / "evaluation.json")
    bare = ["analyze", own.parent, "--windows", "2"]
    assert f"no loss by position: `aero evaluate {own.parent}`" in invoke(*bare).stdout
    assert json.loads(invoke(*bare, "--json").stdout)[0]["context"] is None
    aside.rename(own)
    reported = invoke("report", runs, "--results", tmp_path / "spread")
    assert reported.exit_code == 0, reported.output
    assert "SM+LN+G" in reported.stdout and str(runs / "report.html") in reported.stdout
    assert f"next: aero show {runs / 'sm-ln-g-seed0'} {runs}" in reported.stdout
    assert (runs / "report.html").is_file() and (runs / "report.json").is_file()
    assert (tmp_path / "spread.json").is_file() and (tmp_path / "spread.md").is_file()
    as_json = invoke("report", runs, "--json")
    assert json.loads(as_json.stdout) == json.loads((runs / "report.json").read_text())


def test_a_dry_run_says_what_would_happen_and_writes_nothing(train_arguments, tmp_path, cache):
    before = sorted(cache.iterdir())
    result = invoke(*train_arguments, "--label", "sm+r", "--label", "SM+G", "--dry-run")
    assert result.exit_code == 0, result.output
    for part in ("label: SM+R", "tokens: 2560", "steps       10 of 10", "parameters ", "time  "):
        assert part in result.stdout
    assert result.stdout.count("(estimated without validation)") == 2  # no teacher to be timed
    assert "all together" in result.stdout
    assert not (tmp_path / "runs").exists() and sorted(cache.iterdir()) == before


# The tokenizer of the network that a run starts from.
SAME = ["--set=data.tokenizer={tmp}/half", "--set=data.vocabulary=400"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "/no/such/folder"], "'stdlib', a folder or a file, got /no/such/folder"),
        (["--data", "{tmp}/short"], "{tmp}/short/text.txt must hold at least two different doc"),
        (["--data", "{tmp}/closed"], "cannot read {tmp}/closed/text.txt: Permission denied"),
        (["--data", "no-such/hub-dataset"], "'no-such/hub-dataset' is neither 'stdlib' nor a"),
        (["--set", "data.tokenizer={tmp}/none"], "{tmp}/none' is neither a folder with a tok"),
        (["--set", "data.tokenizer={tmp}/words"], "must be byte-level, got the token"),
        (["--set", "data.tokenizer={tmp}/large"], "has 400 tokens, more than data.vocabulary"),
        (["--set", "model.num_layers=4096", "--set", "model.width=65536"], "GB with gradients"),
        (
            [
                "--set",
                "regularization.temperature_init=1e-30",
                "--set",
                "model.initializer_range=100",
            ],
            "0 begins with a loss of nan; look",
        ),
        (["--from", "{tmp}/half", *SAME], "{tmp}/half/model.safetensors does not match its SHA"),
        (["--distill-from", "{tmp}/half", *SAME], "/half/model.safetensors does not match its SHA"),
    ],
)
def test_a_dry_run_finds_what_a_run_would_find_and_leaves_nothing(
    arguments, message, train_arguments, strange_files
):
    output, cache = strange_files / "runs", strange_files / "cache"
    arguments = [argument.format(tmp=strange_files) for argument in arguments]
    if arguments[-2:] == [one.format(tmp=strange_files) for one in SAME]:
        train_arguments.remove("--set=data.vocabulary=320")
    places = ["--label", "SM(t)", "--cache-dir", str(cache), "--dry-run"]
    assert_one_line(
        invoke(*train_arguments, *places, *arguments), message.format(tmp=strange_files)
    )
    assert not output.exists() and not cache.exists()


@pytest.fixture
def strange_files(tmp_path, monkeypatch):
    """A corpus of 40 bytes, one that is closed, tokenizers that do not fit, half a network."""
    from tokenizers import Tokenizer, models

    from aero.internals.atomic_files import checksums_of, write_checksums
    from aero.models import AeroConfig, AeroForCausalLM
    from aero.saved.tokenizer import save_tokenizer, train_tokenizer

    for name, text in (("short", "x" * 40), ("closed", "y" * 4000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "text.txt").write_text(text)
    # Nothing is closed to root.
    opened = Path.open

    def open_(path, *arguments, **options):
        if path.parent.name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", open_)
    words = Tokenizer(models.WordLevel({"日本": 0, "<|endoftext|>": 1}))
    large = train_tokenizer((f"{n} or {n * n}" for n in range(400)), 400)
    for name, tokenizer in (("words", words), ("large", large)):
        save_tokenizer(tokenizer, tmp_path / name, context_length=32)
    network = AeroForCausalLM(AeroConfig.from_label("SM(t)", model="tiny", context_length=32))
    network.save_pretrained(tmp_path / "half")
    save_tokenizer(large, tmp_path / "half", context_length=32)
    write_checksums(tmp_path / "half", checksums_of(tmp_path / "half"))
    weights = tmp_path / "half" / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    return tmp_path


def test_data_means_the_same_from_another_folder(train_arguments, source, monkeypatch):
    monkeypatch.chdir(source.parent)
    arguments = [source.name if a == str(source) else a for a in train_arguments]
    result = invoke(*arguments, "--label", "SM", "--dry-run")
    assert f"source: {source}" in result.stdout


def test_another_configuration_in_the_same_folder_is_one_line(train_arguments, tmp_path):
    assert invoke(*train_arguments, "--label", "SM+R").exit_code == 0
    result = invoke(*train_arguments, "--label", "SM+R", "--set", "optimizer.beta1=0.8")
    assert_one_line(result, "optimizer.beta1 is 0.9 there and 0.8 here", "choose another --output")


def test_a_corrupt_token_file_is_one_line(train_arguments, tmp_path):
    cache = tmp_path / "cache"
    arguments = [*train_arguments, "--label", "SM+R", "--cache-dir", str(cache)]
    assert invoke(*arguments).exit_code == 0
    (tokens,) = cache.glob("*/train.bin")
    os.truncate(tokens, 100)
    assert_one_line(
        invoke(*arguments, "--seed", "1"),
        "truncated or damaged",
        f"delete the folder {tokens.parent}",
    )
    # evaluate reads the same files.
    assert_one_line(invoke("evaluate", tmp_path / "runs" / "sm-r-seed0"), "delete the folder")


def test_ctrl_c_saves_a_checkpoint_and_says_how_to_resume(train_arguments, tmp_path):
    command = [sys.executable, "-m", "aero.cli", *train_arguments, "--label", "SM+R"]
    long_run = [word.replace("training.tokens=2560", "training.tokens=2560000") for word in command]
    with subprocess.Popen(long_run, stderr=subprocess.PIPE, text=True) as process:
        metrics = tmp_path / "runs" / "sm-r-seed0" / "metrics.jsonl"
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not (metrics.exists() and metrics.stat().st_size):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert errors.strip().splitlines()[-1].endswith("run the same command again to resume")
    assert "Traceback" not in errors
    info = json.loads((metrics.parent / "run.json").read_text())
    assert info["status"] == "interrupted" and info["steps_done"] > 0
    assert (metrics.parent / "checkpoints" / f"step-{info['steps_done']}").is_dir()
