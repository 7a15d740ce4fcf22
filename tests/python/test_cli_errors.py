"""A mistake on any command line is one line that names the argument and what was expected."""

import pytest
from typer.testing import CliRunner

from aero import cli

LONG = "9" * 5000
TRAIN, SHOW = ["train", "--label", "SM"], ["cost", "show", "SM"]
RATES = ["--set", "schedule.warmup_fraction=0.1"]
OTHERS = ("someone/gpt2", "meta-llama/Llama-3-8B", "gpt2-huge")

# What one line has to name: the argument, and what is expected of it or what was given.
MISTAKES = [
    # Typer's own: options, commands and kinds of values.
    (["train"], ["'--label'", "`aero train --help`"]),
    (["train", "--labels", "SM"], ["--labels"]),
    (["analyze", "run", "--windows", "two"], ["'--windows'", "int"]),
    (["cost", "shwo", "SM"], ["'shwo'", "`aero cost --help`"]),
    (["--nothing"], ["--nothing"]),
    (["nothing"], ["'nothing'", "`aero --help`"]),
    ([*SHOW, "--context-length", f"{LONG}x"], ["'--context-length'", "int"]),
    # Numbers outside of their bounds.
    (["evaluate", ".", "--max-tokens", "-1"], ["--max-tokens"]),
    # Below 0.29 typer lets NaN pass any bound, and what is called refuses it.
    (["convert", ".", "--label", "SM", "--max-condition", "nan"], ["condition"]),
    (["cost", "advise", "SM", "--rtt-ms", "nan"], []),
    (["cost", "advise", "SM", "--memory", "nan"], ["memory"]),
    (["cost", "where", "SM", "--mbps", "nan"], ["mbps"]),
    ([*TRAIN, "--seed", "1", "--seed", "-1"], ["--seed"]),
    (["show", ".", "--text", "x", "--max-tokens", "0"], ["--max-tokens"]),
    ([*SHOW, "--context-length", "0"], ["--context-length"]),
    ([*SHOW, "--network", "lan-1gbps,uplink_mbps=0"], ["uplink_mbps", "a number from"]),
    ([*SHOW, "--set", "exp_squarings=99"], ["exp_squarings", "from 1"]),
    ([*TRAIN, "--set", "model.num_heads=0"], ["model.num_heads", ">= 1"]),
    # A word that is not among those that are known; the nearest one is named.
    (["train", "--label", "SM+ScFuFN"], ['"SM+ScFuFN"', "nearest", "SM+ScFFN"]),
    (["train", "--label", LONG], ["nearest valid label"]),
    ([*TRAIN, "--set", "model.presett=mini"], ["'model.preset'"]),
    ([*TRAIN, "--set", "model.preset=huge"], ["model", "huge"]),
    ([*TRAIN, "--recipe", "dmeo"], ["'demo'"]),
    (["cost", "show", "SM+ScFuFN"], ['"SM+ScFuFN"', "nearest", "SM+ScFFN"]),
    ([*SHOW, "--model", "gpt3"], ["gpt3"]),
    ([*SHOW, "--stack", "none"], ["none"]),
    ([*SHOW, "--network", "wan"], ["network", "wan"]),
    ([*SHOW, "--set", "mul_shar=true"], ["'mul_share'"]),
    (["cost", "schedule", "SM", "--what-if", "sofmax=2"], ["sofmax"]),
    *(
        (["cost", *command, name], [name, "config.json", "hf download"])
        for command in (["show"], ["generate", "--new-tokens", "2"], ["sweep", "--label"])
        for name in OTHERS
    ),
    # A setting of another form or kind, given twice, or without what it is for.
    ([*TRAIN, "--set", LONG], ["--set", "section.key=value"]),
    ([*TRAIN, "--set", f"data.vocabulary='{LONG}'"], ["data.vocabulary", "a whole number"]),
    ([*SHOW, "--set", LONG], ["--set", "FIELD=VALUE"]),
    ([*SHOW, "--set", "=3"], ["--set", "FIELD=VALUE", "'=3'"]),
    ([*SHOW, "--set", "context_length=long"], ["context_length", "an integer"]),
    ([*SHOW, "--set", "gelu=tanh", "--set", "gelu=tanh"], ["gelu", "once"]),
    ([*TRAIN, *(2 * ["--set", "training.tokens=1e6"])], ["training.tokens", "once", "twice"]),
    ([*TRAIN, "--data", ".", "--set", "data.source=stdlib"], ["data.source", "--data"]),
    # A setting without effect in any of the networks.
    *(
        (
            [*TRAIN, "--set", "model.preset=pythia-70m", "--set", setting],
            [setting.partition("=")[0], words, "got SM"],
        )
        for setting, words in (
            ("regularization.entropy_weight=1e-3", "EReg"),
            ("regularization.thresholds=shared", "EReg"),
            ("optimizer.threshold_rate=2", "EReg"),
            ("regularization.temperature_init=1", "SM(t)"),
            ("optimizer.temperature_rate=2", "SM(t)"),
            ("model.trainable_scales=none", "ScFFN"),
            ("model.position_start=embeddings", "GPT-2"),
            ("schedule.final_learning_rate=1e-4", "schedule.shape=cosine"),
        )
    ),
    (["train", "--label", "SM+ScFuFFN", "--set", "model.hidden_width=9"], ["model.hidden_width"]),
    (
        [*TRAIN, *RATES, "--set", "schedule.warmup_steps=3"],
        ["warmup_fraction", "warmup_steps=null"],
    ),
    (["convert", ".", "--label", "SM", "--dry-run", "--max-condition", "5"], ["--absorb-ffn"]),
    (["cost", "schedule", "SM", "--what-if", "softmax"], ["--what-if", "PART=TIMES", "'softmax'"]),
    (["cost", "schedule", "SM", "--what-if", "softmax=0"], ["times_faster"]),
    (["cost", "generate", "SM", "--set", "gelu=tanh,segment"], ["--set gelu", "one value", "2"]),
    (["cost", "optimizations", "SM", "--size", "x"], ["size", "T or T:V", "'x'"]),
    (["cost", "sweep"], ["labels or runs"]),
    (["cost", "sweep", "--label", "SM", "--set", "width"], ["--set", "FIELD=VALUE", "'width'"]),
    ([*SHOW, "--json", "--csv"], ["--json", "--csv"]),
    (["train", "--label", "SM", "--recipe", "languini"], ["--data"]),
    (["show", "a", "b", "c"], ["one network or two", "3"]),
    *(
        (["cost", *command, "--compute", "none"], ["--compute", "--network"])
        for command in (["show", "SM"], ["compare", "SM", "SM"], ["generate", "SM"])
    ),
    (["cost", "sweep", "--label", "SM", "--compute", "none"], ["--compute", "--network"]),
    # Files and folders that are missing, of another kind, or cannot be written.
    ([*TRAIN, "--config", "none.yaml"], ["none.yaml"]),
    ([*SHOW, "--stack", "none.yaml"], ["none.yaml: cannot be read"]),
    ([*TRAIN, "--data", "/no/such/folder"], ["/no/such/folder", "'stdlib'"]),
    ([*TRAIN, "--resume", "nowhere"], ["--resume", "nowhere"]),
    ([*TRAIN, "--from", LONG], ["File name too long"]),
    (["verify", LONG], ["File name too long"]),
    (["report", LONG], ["File name too long"]),
    (["verify", f"{LONG}/{'x ' * 5000}"], ["File name too long"]),
    *(([command, "{tmp}"], ["{tmp}", "run.json"]) for command in ("evaluate", "analyze", "report")),
    *(([command, "{tmp}/none"], ["{tmp}/none"]) for command in ("evaluate", "analyze", "report")),
    (["show", "{tmp}/..", "--text", "x", "--no-browse"], ["{tmp}/..", "a network's folder"]),
    (["show", "no-such/network"], ["no-such/network"]),
    (["export", "{tmp}", "--output", "{tmp}/out", "--remote-code"], ["GPT-2 or Pythia", "llama"]),
    (["cost", "schedule", "SM", "--trace", "/none/t.json"], ["--trace", "/none/t.json"]),
]


@pytest.mark.parametrize(
    ("arguments", "parts"), MISTAKES, ids=[" ".join(one)[:40] for one, _ in MISTAKES]
)
def test_a_mistake_is_one_line_that_names_it(arguments, parts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "config.json").write_text('{"model_type": "llama", "attention_bias": false}')
    (tmp_path / "tokenizer.json").write_text('{"added_tokens": [], "model": {"vocab": {}}}')
    typed = [word.replace("{tmp}", str(tmp_path)) for word in arguments]
    result = CliRunner().invoke(cli.app, typed, prog_name="aero")
    assert_one_line(result, *(part.replace("{tmp}", str(tmp_path)) for part in parts))
    assert len(result.stderr) < 1300
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "tokenizer.json"}


def assert_one_line(result, *parts: str) -> None:
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("aero: ")
    for part in parts:
        assert part in line
