"""The command line: `aero train`, `prune`, `convert`, `evaluate`, `export`, `cost` and the others.

Each command imports its modules when it runs: help and `aero cost` start without torch. Bad input
ends with one line on standard error and exit code 2, an interrupt with 130; anything else is a
defect and shows its traceback.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from aero.cli.arguments import LAST_SEED, data_settings
from aero.cli.cost import cost
from aero.cli.diagnosis import doctor
from aero.cli.errors import OneLineGroup, note, one_line_errors, say
from aero.cli.networks import convert, export, prune, show
from aero.cli.private import calibrate, private
from aero.cli.private_parties import ask, keys, publish, serve
from aero.internals.errors import UserError
from aero.reading import read_json

app = typer.Typer(
    name="aero",
    cls=OneLineGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)
app.add_typer(cost, name="cost", rich_help_panel=None)
# Long first sentences would be cut off in the lists of commands.
for command, short in (
    (keys, "Makes the key and the certificate of one party."),
    (publish, "Writes the files for a client."),
    (serve, "Computes a network for clients."),
    (ask, "Continues a prompt with a server's network."),
    (calibrate, "Measures the speed of this machine."),
):
    private.command(short_help=short)(command)
app.add_typer(private, name="private")
app.add_typer(prune, name="prune")
app.command(short_help="Writes a network as plain weights.")(export)
app.command(short_help="Converts a network to a label.")(convert)
app.command(short_help="Shows where every head looks in a text.")(show)
app.command(short_help="Says what works here, what does not, and what to do.")(doctor)


def _say_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        say(f"aero-torch {version('aero-torch')}")
        raise typer.Exit


@app.callback()
def start(
    _version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_say_version, help="Show the version."),
    ] = False,
) -> None:
    """Softmax-only language models with entropy-regularized attention."""
    # Read when torch loads. By default waiting threads spin for milliseconds, which made a training
    # step on two busy cores four times slower; threads that sleep at once made it 1.25 times slower
    # on idle ones. Spinning for some microseconds first costs idle cores nothing.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")


Runs = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of run folders.")
]


@app.command(short_help="Trains one or several networks.")
def train(
    label: Annotated[list[str], typer.Option(help="Network, such as 'SM+LN+G'; may be repeated.")],
    recipe: Annotated[str, typer.Option(help="demo, codeparrot or languini.")] = "demo",
    data: Annotated[
        str | None, typer.Option(help="stdlib, a folder, a file or the name of a hub dataset.")
    ] = None,
    seed: Annotated[
        list[int] | None, typer.Option(help="May be repeated; default 0.", min=0, max=LAST_SEED)
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Default runs/RECIPE.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="One setting.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file with settings.")] = None,
    resume: Annotated[
        str, typer.Option(help="auto, never, or a checkpoint folder to continue from.")
    ] = "auto",
    start_from: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN_OR_CHECKPOINT",
            help="Start from a trained network: a run, a checkpoint or a Hugging Face folder.",
        ),
    ] = None,
    distill_from: Annotated[
        str | None,
        typer.Option(metavar="TEACHER", help="Learn from the logits of a trained network too."),
    ] = None,
    cache_dir: Annotated[Path, typer.Option(help="Where corpora and tokenizers are kept.")] = Path(
        "runs/corpora"
    ),
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Do all but the steps and say how long they take."),
    ] = False,
) -> None:
    """Trains one or several networks; interrupted, the same command resumes.

    Ends with 1 where a network diverged, after all others were trained.
    """
    with one_line_errors():
        from aero.train.planning import plan_runs
        from aero.train.recipe_files import load_recipe

        settings = [*(set_ or ()), *data_settings(data)]
        loaded = load_recipe(recipe, config=config, settings=settings)
        plan = plan_runs(
            loaded,
            label,
            seed or [0],
            output=output or Path("runs") / loaded.name,
            resume=resume,
            start_from=start_from,
            distill_from=distill_from,
        )
        if dry_run:
            from aero.train.forecast import forecast

            say(forecast(plan, cache_dir=cache_dir))
            return
        from aero.train.progress import is_main_process
        from aero.train.runs import train_runs

        train_runs(plan, cache_dir=cache_dir, say=note)
        if is_main_process() and any(run.folder.info().get("status") == "diverged" for run in plan):
            raise typer.Exit(1)


@app.command(short_help="Measures perplexity and bits per byte.")
def evaluate(
    runs: Runs,
    stride: Annotated[
        int | None,
        typer.Option(help="Distance of overlapping windows; default: disjoint.", min=1, max=10**9),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            help="Validation tokens to look at; default: as many as after training.",
            min=1,
            max=10**15,
        ),
    ] = None,
    fixed_point: Annotated[
        str | None,
        typer.Option(metavar="STACK", help="Compare with the arithmetic of a stack: spu-2024, ..."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Of the stack: exp_squarings=5, ..."),
    ] = None,
) -> None:
    """Measures perplexity and bits per byte on the validation split.

    The run keeps a result over the windows that were evaluated after training, which a report
    compares; results over others are only printed.
    """
    with one_line_errors():
        from aero.analysis.context_use import context_text
        from aero.train.fixed_point_evaluation import evaluate_run_in_fixed_point
        from aero.train.run_results import evaluate_run

        if set_ and fixed_point is None:
            raise UserError("evaluate: --set is for the stack that --fixed-point names")
        for run in _trained(runs):
            if fixed_point is not None:
                compared = evaluate_run_in_fixed_point(
                    run, fixed_point, set_, max_tokens=max_tokens, stride=stride
                )
                say(f"{run.name}: {compared.to_text()}")
                continue
            measured = evaluate_run(run, max_tokens=max_tokens, stride=stride, say=note)
            interval = ""
            if measured.perplexity_interval is not None:
                low, high = measured.perplexity_interval
                count = len(measured.document_nll)
                interval = f" (95 % interval over {count} documents {low:.3f} to {high:.3f})"
            say(
                f"{run.name}: perplexity {measured.perplexity:.3f}{interval}, "
                f"{measured.bits_per_byte:.4f} bits per byte on {measured.tokens:,} tokens"
            )
            say(f"  {context_text(measured.context.to_dict())}")


@app.command()
def analyze(
    runs: Runs,
    windows: Annotated[
        int, typer.Option(help="Validation windows to average over.", min=1, max=10**9)
    ] = 64,
) -> None:
    """Measures the attention entropies of trained networks.

    The run keeps those over the default's windows; others are only printed.
    """
    with one_line_errors():
        from aero.train.run_results import analyze_run, context_of_run

        for run in _trained(runs):
            found = analyze_run(run, windows=windows, say=note).to_dict()
            shares = ", ".join(f"{share:.0%}" for share in found["quarters"]["observed_max"])
            say(f"{run.name}: heads per quarter of the largest entropy: {shares}")
            say(f"  {context_of_run(run)}")


@app.command(short_help="Compares trained networks on a page.")
def report(
    runs: Runs,
    output: Annotated[
        Path | None, typer.Option(help="Folder of the report; default: the first RUN.")
    ] = None,
    title: Annotated[str, typer.Option(help="Heading.")] = "AERO networks compared",
    seed_spread: Annotated[
        Path | None, typer.Option(help="report.json over several seeds, to be quoted.")
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(metavar="STEM", help="Also write numbers and text to STEM.json and STEM.md."),
    ] = None,
) -> None:
    """Compares trained networks in report.html, report.md, report.json and SVG figures."""
    with one_line_errors(ValueError, OSError):
        import shlex
        import sys

        from aero.internals.errors import disk_errors
        from aero.report import write_report
        from aero.report.writing import write_results

        command = shlex.join(["aero", *sys.argv[1:]])
        folder = output or runs[0]
        with disk_errors("the report", folder, "report again", command="report"):
            paths = write_report(
                runs, folder, title=title, command=command, seed_spread=seed_spread
            )
        if results is not None:
            write_results(read_json(paths.json), results)
        say(paths.summary)
        say(f"\nreport: {paths.html}")


@app.command(short_help="Shows a run, or how aero was built.")
def info(
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="A run folder; default: this machine.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Shows a run and its start, or how aero was built and the machine that it runs on."""
    with one_line_errors(ImportError, ValueError):
        if run is not None:
            from aero.cli.diagnosis import run_facts

            facts = run_facts(run)
        else:
            from aero.cli.diagnosis import machine_facts

            facts = machine_facts()
        if as_json:
            say(json.dumps(facts, indent=2))
            return
        width = max(map(len, facts))
        for name, value in facts.items():
            say(f"{name:<{width}}  {value}")


@app.command(short_help="Compares run folders with their checksums.")
def verify(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders with some.")
    ],
) -> None:
    """Compares checkpoints, network, settings and records with their checksums.

    One line per problem; ends with 1 if there is any, with 0 if all is whole.
    """
    with one_line_errors():
        from aero.reading import printable
        from aero.train.checkpoints import run_problems, runs_below

        damaged = False
        for run in runs_below(runs):
            problems = run_problems(run)
            damaged = damaged or bool(problems)
            for line in problems or [f"{printable(str(run))}: whole"]:
                say(line)
        if damaged:
            raise typer.Exit(1)


def _trained(folders: list[Path]) -> Iterator[Path]:
    """Yields the run folders among and below `folders`; of several, diverged ones are named."""
    from aero.report.runs import find_runs
    from aero.train.run_folder import RunFolder

    try:
        runs = find_runs(folders)
    except ValueError as error:
        raise UserError(str(error).removeprefix("report: ")) from error
    for run in runs:
        information = RunFolder(run).info()
        if len(runs) > 1 and information.get("status") == "diverged":
            step = (information.get("diverged") or {}).get("step")
            note(f"{run.name}: diverged at step {step}, left out")
        else:
            yield run


def main() -> None:
    """Entry point of the `aero` command."""
    app()
