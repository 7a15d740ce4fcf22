"""`aero train`, `evaluate`, `analyze`, `report`, `info` and `verify`: trainings and their runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aero.cli.arguments import LAST_SEED, AsJson, settings
from aero.cli.errors import note, one_line_errors, say
from aero.internals.errors import UserError
from aero.reading import read_json

if TYPE_CHECKING:
    from aero.train.runs.perplexity import HeldOutLoss
    from aero.train.runs.run_folder import RunFolder

Runs = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of run folders.")
]


def train(
    label: Annotated[list[str], typer.Option(help="Network, such as 'SM+LN+G'; may be repeated.")],
    recipe: Annotated[str, typer.Option(help="demo, codeparrot or languini.")] = "demo",
    data: Annotated[
        str | None, typer.Option(help="stdlib, a folder, a file or the name of a hub dataset.")
    ] = None,
    seed: Annotated[
        list[int] | None,
        typer.Option(help="Seed of a run; may be repeated; default 0.", min=0, max=LAST_SEED),
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
    as_json: AsJson = False,
) -> None:
    """Trains one or several networks; interrupted, the same command resumes.

    Ends with 1 where a network diverged, after all others were trained.
    """
    with one_line_errors():
        from aero.train.recipes.recipe_files import data_settings, load_recipe
        from aero.train.runs.planning import plan_runs, require_effect

        if dry_run and as_json:
            raise UserError("train: expected --dry-run or --json, got both: a forecast is text")
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
        require_effect(plan, settings)
        if dry_run:
            from aero.train.forecast import forecast

            say(forecast(plan, cache_dir=cache_dir))
            return
        from aero.train.progress import is_main_process
        from aero.train.training import train_runs

        train_runs(plan, cache_dir=cache_dir, say=note)
        if not is_main_process():
            return
        if as_json:
            _say_json([_ending(run.folder) for run in plan])
        if any(run.folder.info().status == "diverged" for run in plan):
            raise typer.Exit(1)


def _ending(folder: RunFolder) -> dict[str, Any]:
    """What a run came to: its folder, its record and, if it finished, its evaluation."""
    from aero.internals.records import as_dict, read_record
    from aero.internals.run_files import Evaluation

    file = folder.path / "evaluation.json"
    evaluation = read_record(file, Evaluation) if file.exists() else None
    return {"run": str(folder.path), **as_dict(folder.info()), "evaluation": evaluation}


def evaluate(
    runs: Runs,
    stride: Annotated[
        int | None,
        typer.Option(
            help="Tokens between the starts of overlapping windows; default: disjoint.",
            min=1,
            max=10**9,
        ),
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
    as_json: AsJson = False,
) -> None:
    """Measures perplexity and bits per byte on the validation split.

    The run keeps a result over the windows that were evaluated after training, which a report
    compares; results over others are only printed.
    """
    with one_line_errors():
        from aero.internals.records import as_dict
        from aero.train.runs.fixed_point_evaluation import evaluate_run_in_fixed_point
        from aero.train.runs.run_results import evaluate_run, evaluation_of

        if set_ and fixed_point is None:
            raise UserError("evaluate: --set is for the stack that --fixed-point names")
        fields = settings(set_)
        found: list[dict[str, Any]] = []
        for run in _trained(runs):
            if fixed_point is not None:
                compared = evaluate_run_in_fixed_point(
                    run, fixed_point, fields, max_tokens=max_tokens, stride=stride
                )
                text, values = f"{run.name}: {compared.to_text()}", compared.to_dict()
            else:
                measured = evaluate_run(run, max_tokens=max_tokens, stride=stride, say=note)
                text = _loss_text(run.name, measured)
                values = as_dict(evaluation_of(measured, stride=stride))
            found.append({"run": str(run), **values})
            if not as_json:
                say(text)
        if as_json:
            _say_json(found)


def _loss_text(name: str, measured: HeldOutLoss) -> str:
    from aero.analysis.context_use import context_text

    interval = ""
    if measured.perplexity_interval is not None:
        low, high = measured.perplexity_interval
        count = len(measured.document_nll)
        interval = f" (95 % interval over {count} documents {low:.3f} to {high:.3f})"
    return (
        f"{name}: perplexity {measured.perplexity:.3f}{interval}, "
        f"{measured.bits_per_byte:.4f} bits per byte on {measured.tokens:,} tokens\n"
        f"  {context_text(measured.context.losses())}"
    )


def analyze(
    runs: Runs,
    windows: Annotated[
        int, typer.Option(help="Validation windows to average over.", min=1, max=10**9)
    ] = 64,
    as_json: AsJson = False,
) -> None:
    """Measures the attention entropies of trained networks.

    The use of context is that of the run's evaluation. The run keeps entropies over the default's
    windows; others are only printed.
    """
    with one_line_errors():
        from aero.analysis.context_use import context_text
        from aero.analysis.spectra import spectra_text
        from aero.train.runs.run_results import analyze_run, context_of_run

        found: list[dict[str, Any]] = []
        for run in _trained(runs):
            values = analyze_run(run, windows=windows, say=note).to_dict()
            context = context_of_run(run)
            found.append({"run": str(run), **values, "context": context})
            if not as_json:
                shares = ", ".join(f"{share:.0%}" for share in values["quarters"]["log_context"])
                say(f"{run.name}: heads per quarter of log T: {shares}")
                say(_heads_text(values["head_entropy"], values["max_entropy"]))
                unmeasured = f"no loss by position: `aero evaluate {run}` measures it"
                say(f"  {unmeasured if context is None else context_text(context)}")
                if spectra := spectra_text(values["ffn_spectra"]):
                    say(f"  {spectra}")
        if as_json:
            _say_json(found)


def _heads_text(heads: list[list[float | None]], most: float) -> str:
    """A line per layer: its mean and each head, nats."""
    lines = [f"  entropy of each head in nats (log T = {most:.2f})"]
    for layer, row in enumerate(heads):
        finite = [value for value in row if value is not None]
        mean = f"{sum(finite) / len(finite):.2f}" if finite else "NaN"
        values = " ".join("NaN " if value is None else f"{value:.2f}" for value in row)
        lines.append(f"  layer {layer}: mean {mean}, heads {values}")
    return "\n".join(lines)


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
    as_json: AsJson = False,
) -> None:
    """Compares trained networks in report.html, report.md, report.json and SVG figures."""
    with one_line_errors(ValueError, OSError):
        import shlex
        import sys

        from aero.internals.errors import disk_errors
        from aero.report import write_report
        from aero.report.document import next_steps
        from aero.report.report_file import read_report
        from aero.report.runs import find_runs
        from aero.report.writing import write_results

        command = shlex.join(["aero", *sys.argv[1:]])
        folder = output or runs[0]
        with disk_errors("the report", folder, "report again", command="report"):
            paths = write_report(
                runs, folder, title=title, command=command, seed_spread=seed_spread
            )
        if results is not None:
            write_results(read_report(paths.json), results)
        if as_json:
            _say_json(read_json(paths.json))
            return
        say(paths.summary)
        say(f"\nreport: {paths.html}")
        places = {run.name: str(run) for run in find_runs(runs)}
        for step, purpose in next_steps(read_report(paths.json), places).items():
            say(f"next: {step}  # {purpose}")


def info(
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="A run folder; default: this machine.")
    ] = None,
    as_json: AsJson = False,
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
            _say_json(facts)
            return
        width = max(map(len, facts))
        for name, value in facts.items():
            say(f"{name:<{width}}  {value}")


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
        from aero.train.runs.checkpoints import run_problems, runs_below

        damaged = False
        for run in runs_below(runs):
            problems = run_problems(run)
            damaged = damaged or bool(problems)
            for line in problems or [f"{printable(str(run))}: whole"]:
                say(line)
        if damaged:
            raise typer.Exit(1)


def _say_json(values: Any) -> None:
    """Prints values as JSON; what is not finite becomes null."""
    from aero.internals.records import record_bytes

    say(record_bytes(values).decode().rstrip())


def _trained(folders: list[Path]) -> Iterator[Path]:
    """Yields the run folders among and below `folders`; of several, diverged ones are named."""
    from aero.report.runs import find_runs
    from aero.train.runs.run_folder import RunFolder

    try:
        runs = find_runs(folders)
    except ValueError as error:
        raise UserError(str(error).removeprefix("report: ")) from error
    for run in runs:
        information = RunFolder(run).info()
        if len(runs) > 1 and information.status == "diverged":
            step = information.diverged and information.diverged.step
            note(f"{run.name}: diverged at step {step}, left out")
        else:
            yield run
