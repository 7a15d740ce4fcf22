"""`aero prune score` and `aero prune search`: which FFNs a network can do without."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aero.cli.arguments import SEED, data_settings, decimal, whole
from aero.cli.errors import note, one_line_errors, say

prune = typer.Typer(help="Finds the FFNs that a network can do without.", no_args_is_help=True)

Bound = Annotated[
    float,
    typer.Option(
        "--max-loss-increase",
        help="How much worse it may be, nats per token.",
        callback=decimal(0, 100),
    ),
]


@prune.command(short_help="Measures the worth of each FFN.")
def score(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A finished run.")],
    max_loss_increase: Bound = 0.02,
    max_tokens: Annotated[
        int, typer.Option(help="Validation tokens per measurement.", callback=whole(1, 10**15))
    ] = 32_768,
) -> None:
    """Measures the loss of a trained network without each FFN; nothing is trained."""
    with one_line_errors(ValueError):
        from aero.conversion import select_prunable_ffns
        from aero.train.run_folder import RunFolder
        from aero.train.run_results import open_run, validation_measure

        model, data = open_run(RunFolder(run))
        measure = validation_measure(data, max_tokens=max_tokens)
        scores = select_prunable_ffns(model, measure, max_loss_increase=max_loss_increase)
        say(scores.to_text())


@prune.command(short_help="Prunes FFN by FFN until it goes wrong.")
def search(
    label: Annotated[str, typer.Option(help="Network to begin with, such as 'SM+ScFuFFN'.")],
    recipe: Annotated[str, typer.Option(help="demo, codeparrot or languini.")] = "demo",
    start_from: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN_OR_CHECKPOINT",
            help="Continue a trained network, stage by stage; else each stage starts again.",
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="stdlib, a folder, a file or the name of a hub dataset.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of all stages.", callback=SEED)] = 0,
    output: Annotated[Path | None, typer.Option(help="Default runs/RECIPE.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="One setting.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file with settings.")] = None,
    max_loss_increase: Bound = 0.05,
    max_collapsed_heads: Annotated[
        float,
        typer.Option(
            help="Share of the heads with less than a quarter of log T.", callback=decimal(0, 1)
        ),
    ] = 0.25,
    cache_dir: Annotated[Path, typer.Option(help="Where corpora and tokenizers are kept.")] = Path(
        "runs/corpora"
    ),
) -> None:
    """Trains with more and more of the deepest FFNs pruned until it goes wrong, and backs off.

    After an interruption the same command continues with its stage.
    """
    with one_line_errors():
        from aero.train.pruning_search import search_prunable_ffns
        from aero.train.recipe_files import load_recipe

        settings = [*(set_ or ()), *data_settings(data)]
        loaded = load_recipe(recipe, config=config, settings=settings)
        found = search_prunable_ffns(
            loaded,
            label,
            seed=seed,
            output=output or Path("runs") / loaded.name,
            cache_dir=cache_dir,
            start_from=start_from,
            max_loss_increase=max_loss_increase,
            max_collapsed_heads=max_collapsed_heads,
            say=note,
        )
        say(found.to_text())
        say(f"table: {found.table}")
