"""The command line as a program: its help, its version, its pipes, and defects."""

import json
import os
import re
import subprocess
import sys
import textwrap

import pytest
from typer.testing import CliRunner

from aero import cli


def invoke(*arguments: str):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["train", "--help"],
        ["cost", "show", "SM+ScFuFFN"],
        ["train", "--label", "SM+ScFuFN"],
        ["train", "--label", "SM", "--set", "training.tokns=1"],
    ],
)
def test_help_costs_and_typing_mistakes_come_without_torch(arguments):
    script = f"""
        import sys
        from aero.cli import main
        sys.argv = ["aero", *{arguments!r}]
        try:
            main()
        except SystemExit:
            pass
        heavy = {{"torch", "transformers", "numpy", "matplotlib"}} & set(sys.modules)
        sys.exit(f"imported {{heavy}}" if heavy else 0)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr


def test_a_price_loads_few_modules_and_no_other_command():
    script = """
        import sys
        from aero.cli import main
        sys.argv = ["aero", "cost", "show", "SM+LN+G"]
        try:
            main()
        except SystemExit:
            print(*sys.modules, file=sys.stderr)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    ours = {name for name in result.stderr.split() if name.startswith("aero.")}
    commands = {name for name in ours if name.startswith("aero.cli.")}
    helpers = {"aero.cli.arguments", "aero.cli.errors"}
    assert commands == helpers | {"aero.cli.cost"}
    others = ("aero.private", "aero.train", "aero.families.configurations", "aero.mpc.advice")
    others += ("aero.mpc.network_sweep", "aero.mpc.generation", "aero.report.plan_texts")
    assert not [name for name in ours if name.startswith(others)]
    assert len(ours) <= 33  # with typer, which is most of the time, below 0.3 seconds


def test_output_that_nobody_reads_ends_in_silence():
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "aero.cli", "cost", "show", "SM+LN+G"]
    with os.fdopen(writing, "w") as output:
        result = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True)
    assert (result.returncode, result.stderr) == (1, "")


def test_help_lists_the_commands():
    result = invoke("--help")
    assert result.exit_code == 0
    for command in ("train", "evaluate", "analyze", "report", "info", "cost"):
        assert f"  {command} " in result.stdout


@pytest.mark.parametrize("group", [[], ["cost"], ["private"], ["prune"]])
def test_no_description_of_a_command_is_cut_off(group):
    listed = re.split(r"\n(?:Commands|Start):", invoke(*group, "--help").stdout)[1]
    assert listed and "..." not in listed


def test_the_version_is_that_of_the_package():
    from importlib.metadata import version

    assert invoke("--version").stdout == f"aero-torch {version('aero-torch')}\n"


def test_cost_shows_a_table_or_json():
    from aero import mpc

    table = invoke("cost", "show", "SM+ScFuFFN")
    assert table.exit_code == 0 and table.stdout
    result = invoke("cost", "show", "SM+ScFuFFN", "--context-length", "64", "--json")
    values = json.loads(result.stdout)
    assert values["comm_bytes"] == mpc.simulate("SM+ScFuFFN", context_length=64).comm_bytes


def test_info_prints_build_and_machine():
    import torch

    result = invoke("info")
    assert result.exit_code == 0
    for part in ("aero", "TORCH_TARGET_VERSION", "2.11", torch.__version__, " thread", "cuda"):
        assert part in result.stdout
    facts = json.loads(invoke("info", "--json").stdout)
    assert facts["torch"] == torch.__version__ and facts["cpu isa"]


def test_a_defect_shows_its_traceback(monkeypatch):
    from aero.train.recipes import recipe_files

    def broken(*arguments, **options):
        raise RuntimeError("a defect")

    monkeypatch.setattr(recipe_files, "load_recipe", broken)
    result = invoke("train", "--label", "SM")
    assert isinstance(result.exception, RuntimeError)


def test_a_corpus_without_a_version_is_shown_by_its_name(tmp_path):
    from .report.conftest import write_run

    run = write_run(tmp_path, "SM", info={"corpus": {"name": "lf", "version": ""}})
    assert json.loads(invoke("info", run, "--json").stdout)["corpus"] == "lf"
