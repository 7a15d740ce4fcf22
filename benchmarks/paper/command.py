"""`python -m benchmarks.paper`: the paper's tables and figures, retrained and judged."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from aero.cli import start
from aero.cli.errors import note, one_line_errors, say
from aero.train.recipes.recipe_files import data_settings

#: The options that each mode looks at which trains nothing.
TAKEN = {
    "list": (),
    "costs": ("--output", "--stack", "--json"),
    "judge": ("--results",),
}
#: The options that only one launcher looks at.
LAUNCHERS = {"local": ("--jobs",), "slurm": ("--slurm", "--cancel")}

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None, add_completion=False)


class OneLineCommand(TyperCommand):
    """A command whose wrong lines end with one line instead of its usage."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Reads the command line."""
        with one_line_errors():
            return super().make_context(*arguments, **options)


@app.command(cls=OneLineCommand)
def reproduce(
    context: typer.Context,
    target: Annotated[
        list[str],
        typer.Argument(metavar="TARGET...", help="list, all, judge, costs, or table2, table4, ..."),
    ],
    scale: Annotated[
        str, typer.Option(help="mini (a minute per run), small (an hour) or paper.")
    ] = "mini",
    output: Annotated[Path, typer.Option(help="Folder of runs and results.")] = Path(
        "runs/reproduction"
    ),
    seeds: Annotated[
        int | None,
        typer.Option(help="Runs per network; default: the scale's.", min=1, max=10**6),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes that train at once.", min=1, max=4096)] = 1,
    data: Annotated[
        str | None, typer.Option(help="Another corpus: stdlib, a folder, a file or a hub dataset.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="One setting, for every network."),
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(metavar="STEM", help="Also write all targets to STEM.md and STEM.json."),
    ] = None,
    stack: Annotated[str, typer.Option(help="Protocol stack that costs are priced on.")] = (
        "spu-2024"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print costs as JSON.")] = False,
    collect: Annotated[
        bool, typer.Option("--collect", help="Train nothing; write the results of finished runs.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Do all but the steps; print runs and their time."),
    ] = False,
    cache_dir: Annotated[Path, typer.Option(help="Where corpora and tokenizers are kept.")] = Path(
        "runs/corpora"
    ),
    launcher: Annotated[
        str, typer.Option(help="local, or slurm: one job per run on the cluster of this machine.")
    ] = "local",
    slurm: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="One option of sbatch, such as partition=gpu."),
    ] = None,
    status: Annotated[
        bool, typer.Option("--status", help="Only print the runs and how far each is.")
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Only cancel the jobs of these runs.")
    ] = False,
) -> None:
    """Retrains a table or figure of the paper's version 2; repeat the command to continue it.

    `judge --results STEM` needs no runs: it judges the values of STEM.json again. `costs` trains
    nothing: it prices Tables 4-7 and Figures 1, 15, 20 and 21, and writes a page, figures, text and
    JSON to OUTPUT/costs.
    """
    with one_line_errors(ValueError, OSError):
        from benchmarks.paper.cells import Cell, TargetPlan, plan_target, unique_cells
        from benchmarks.paper.targets import load_target, target_names

        _refuse_ignored(context, target, launcher)
        if target == ["list"]:
            for name in target_names():
                found = load_target(name)
                say(f"{name:<9} {found.title} ({len(found.rows)} networks)")
            return
        if target == ["costs"]:
            _price(stack, output / "costs", as_json=as_json)
            return
        if target == ["judge"]:
            _judge_again(results)
            return
        names = list(dict.fromkeys(target))
        if names == ["all"]:
            names = [name for name in target_names() if load_target(name).exists_at(scale)]
        settings = [*(set_ or ()), *data_settings(data)]

        def planned() -> list[TargetPlan]:
            return [
                plan_target(name, scale, seeds=seeds, settings=settings, output=output)
                for name in names
            ]

        plans = planned()
        cells, to_come = unique_cells(plans), sum(plan.to_come for plan in plans)

        from benchmarks.paper.running import cell_table, run_cells, run_plans

        queue = _queue(cells, output, cache_dir, slurm) if launcher == "slurm" else None
        if dry_run or status:
            say(cell_table(cells, output, queue and queue.states()))
        if to_come and not collect:
            say(f"then {to_come} cells at the rates that these find best")
        if cancel and queue:
            say(f"cancelled {queue.cancel()} jobs")
        if status or cancel:
            return
        if not collect:
            from benchmarks.paper.running import rehearse_cells, what_it_takes

            say(what_it_takes(cells, output, jobs=jobs))
            if dry_run:
                say(rehearse_cells(cells, output, cache_dir=cache_dir))
        if dry_run:
            for key, asked in (queue.requests() if queue else {}).items():
                say(f"{key}: {' '.join(f'{name}={value}' for name, value in asked.items())}")
            return

        def train(cells: Sequence[Cell]) -> None:
            if launcher == "slurm":
                _queue(cells, output, cache_dir, slurm).run()
            else:
                run_cells(cells, output=output, cache_dir=cache_dir, jobs=jobs, say=note)

        if not collect:
            plans = list(run_plans(planned, train))

        from aero.internals.errors import disk_errors
        from benchmarks.paper.document import results_document, write_results
        from benchmarks.paper.outcome import write_target

        again = "run the same command again, which trains nothing twice"
        with disk_errors("the results", output / "results", again, command="reproduce"):
            outcomes = [write_target(plan, output, beside=plans) for plan in plans]
        command = shlex.join(["python", "-m", "benchmarks.paper", *sys.argv[1:]])
        say(results_document(outcomes, command=command))
        if results is not None:
            with disk_errors("--results", results.parent, again, command="reproduce"):
                write_results(outcomes, results, command=command)
        say(f"files: {output / 'results' / scale}")


def _queue(cells: Sequence[Any], output: Path, cache_dir: Path, slurm: list[str] | None) -> Any:
    """The jobs of the cells, with the options that were given for them."""
    from benchmarks.paper.slurm import SlurmJobs

    options = {}
    for text in slurm or ():
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ValueError(f"reproduce: --slurm must be KEY=VALUE, got {text!r}")
        options[name.strip("-").replace("-", "_")] = value
    return SlurmJobs(cells, output, cache_dir, options, note)


def _refuse_ignored(context: typer.Context, target: list[str], launcher: str) -> None:
    """An option that was given and that these targets would not look at is an error."""
    if launcher not in LAUNCHERS:
        raise ValueError(f"reproduce: --launcher must be local or slurm, got {launcher!r}")
    mode = target[0] if len(target) == 1 and target[0] in TAKEN else "a target that trains"
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        name = max(option.opts, key=len)
        ignored = name not in TAKEN[mode] if mode in TAKEN else name in ("--stack", "--json")
        given = source is not None and source.name == "COMMANDLINE"
        if given and ignored and option.name != "target":
            raise ValueError(f"reproduce: {name} means nothing for {mode}")
        if given and name in LAUNCHERS["local" if launcher == "slurm" else "slurm"]:
            raise ValueError(f"reproduce: {name} means nothing for --launcher {launcher}")


def _price(stack: str, output: Path, *, as_json: bool) -> None:
    """The tables of costs next to the paper's, printed and written."""
    from aero.internals.errors import disk_errors
    from benchmarks.paper.cost_tables import reproduce_costs, write_cost_tables

    found = reproduce_costs(stack=stack)
    with disk_errors("the costs", output, "run the same command again", command="reproduce"):
        paths = write_cost_tables(found, output)
    say(json.dumps(found.to_dict(), indent=2) if as_json else found.to_text())
    for path in paths:
        note(f"wrote {path}")


def _judge_again(stem: Path | None) -> None:
    """Reads STEM.json and writes it and STEM.md with today's verdicts."""
    from aero.internals.errors import TrainingError, disk_errors
    from aero.reading import read_json
    from benchmarks.paper.document import results_document, write_results
    from benchmarks.paper.outcome import judge_again

    if stem is None:
        raise TrainingError("reproduce: judge needs --results STEM, of STEM.json")
    content = read_json(f"{stem}.json", {"targets": [dict], "command": str})
    judge_again(content["targets"])
    with disk_errors("--results", stem.parent, "run the same command again", command="reproduce"):
        write_results(content["targets"], stem, command=content["command"])
    say(results_document(content["targets"], command=content["command"]))


def main() -> None:
    """Entry point of `python -m benchmarks.paper`."""
    start()  # threads wait as they do in `aero train`
    app()
