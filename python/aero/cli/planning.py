"""`aero cost optimizations | generate | sweep`: planning with the cost model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aero.cli.arguments import (
    NETWORKS,
    STACKS,
    AsCsv,
    AsJson,
    Compute,
    Html,
    Label,
    Model,
    Network,
    Settings,
    StackName,
    Vocabulary,
    check_machines,
    no_nan,
    put,
    put_priced,
    settings,
    value_lists,
    write,
)
from aero.cli.errors import one_line_errors

if TYPE_CHECKING:
    from aero.mpc.equal_time import EqualTime
    from aero.mpc.generation import GenerationReport
    from aero.mpc.network_sweep import SweepResult


def optimizations(
    label: Annotated[str, typer.Argument(help="Network.")] = "SM+ScFuFFN",
    model: Model = "gpt2",
    size: Annotated[
        list[str] | None,
        typer.Option(metavar="T[:V]", help="Column; may be repeated. Default 128 256 512:16384."),
    ] = None,
    stack: StackName = "spu-2024",
    set_: Settings = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Shows the saving of each optimization beyond the paper.

    The table adds them up and shows each alone, with its assumption, its change of the function,
    and its implementations.
    """
    with one_line_errors(ValueError, OSError):
        from aero import mpc

        sizes = [_size(text) for text in size or ("128", "256", "512:16384")]
        keywords: dict[str, Any] = {"model": model, "stack": stack, **settings(set_)}
        table = mpc.optimization_table(label, sizes=sizes, **keywords)
        put_priced(table, table.to_dict, as_json=as_json, as_csv=as_csv)


def generate(
    label: Label,
    new_tokens: Annotated[
        int, typer.Option(help="Tokens to make for each prompt.", min=1, max=10**6)
    ] = 32,
    batch: Annotated[int, typer.Option(help="Prompts side by side.", min=1, max=10**6)] = 1,
    sampling: Annotated[
        str, typer.Option(help="argmax in secret, or client: the client gets the logits.")
    ] = "argmax",
    model: Model = "gpt2",
    context_length: Annotated[
        int, typer.Option(help="T, tokens of each prompt.", min=1, max=1 << 24)
    ] = 128,
    vocab_size: Vocabulary = None,
    stack: StackName = "aero-optimized-generation",
    set_: Settings = None,
    network: Network = None,
    compute: Compute = "paper-testbed",
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    html: Html = None,
) -> None:
    """Prices prompts continued token by token.

    Keys and values of earlier tokens are kept as shares. CSV has a line per token.
    """
    with one_line_errors(ValueError, OSError):
        from aero import mpc

        check_machines(network, compute)
        sizes: dict[str, Any] = {"context_length": context_length, "vocab_size": vocab_size}
        keywords = {"model": model, "stack": stack, **sizes, **settings(set_)}
        found = mpc.simulate_generation(
            label,
            new_tokens=new_tokens,
            batch=batch,
            sampling=sampling,  # type: ignore[arg-type]
            **keywords,
        )

        def as_dict() -> dict[str, Any]:
            return found.to_dict() | _timed(found, network, compute)

        put_priced(found, as_dict, network, compute, as_json=as_json, as_csv=as_csv, html=html)


def sweep(
    label: Annotated[list[str] | None, typer.Option(help="Network; may be repeated.")] = None,
    runs: Annotated[
        list[Path] | None,
        typer.Option(
            "--run", help="Run folder with a perplexity, or a folder of them; repeatable."
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=V1,V2",
            help="Values of an optimization or another field of stack or network; may be repeated.",
        ),
    ] = None,
    stack: Annotated[list[str] | None, typer.Option(help=f"{STACKS} May be repeated.")] = None,
    network: Annotated[
        list[str] | None, typer.Option(help=f"Also the time on: {NETWORKS} May be repeated.")
    ] = None,
    compute: Compute = "paper-testbed",
    model: Model = "gpt2",
    pareto: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OBJECTIVE",
            help="Only rows that no other beats: comm_gb, rounds, perplexity or a --network; "
            "may be repeated.",
        ),
    ] = None,
    equal_time: Annotated[
        float | None,
        typer.Option(
            metavar="PERCENT",
            min=0,
            max=100,
            callback=no_nan,
            help="Also every network next to the best one that takes as long, give or "
            "take PERCENT, on every --network.",
        ),
    ] = None,
    skip: Annotated[
        bool, typer.Option("--skip", help="Leave out combinations that do not exist.")
    ] = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    html: Html = None,
) -> None:
    """Prices every combination, or shows the Pareto front.

    Bytes, rounds and seconds over networks, sizes, stacks and optimizations; with --run against
    measured perplexity.
    """
    with one_line_errors(ValueError, OSError):
        from aero import mpc
        from aero.report import to_csv, to_text

        check_machines(network, compute)
        found = mpc.sweep(
            label or (),
            runs=runs or (),
            model=model,
            stacks=stack or ("spu-2024",),
            networks=network or (),
            compute=compute,
            skip=skip,
            **value_lists(set_),
        )
        pairs = {} if equal_time is None else _equal_time(found, equal_time / 100)
        shown = found.pareto(*pareto) if pareto else found
        put(
            lambda: "\n".join([to_text(shown), *_equal_time_lines(pairs)]),
            lambda: shown.to_dict() | _equal_time_dict(pairs),
            lambda: to_csv(shown),
            as_json=as_json,
            as_csv=as_csv,
        )
        if html is not None:
            from aero.report import to_html

            within = 0.1 if equal_time is None else equal_time / 100
            write("--html", html, to_html(found, within=within))


def accuracy(
    stack: StackName = "spu-2024",
    set_: Settings = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Shows the error of a stack's arithmetic.

    The largest errors of exp, softmax, 1/x, GELU and the others in Z_2^64 fixed point, bit by bit;
    `aero evaluate RUN --fixed-point STACK` gives their effect on a trained network. --set also
    takes fraction_bits=18 and truncation=floor, nearest or shares.
    """
    with one_line_errors(ValueError, OSError):
        from aero.fixed_point import Approximations, function_errors
        from aero.tables import table_csv, table_lines

        found = function_errors(Approximations.of_stack(stack, **settings(set_)))
        rows = [error.to_dict() for error in found]
        cells = [
            {
                "function": error.name,
                "largest error": f"{error.largest:.1e}",
                "relative, beyond 1/64": f"{error.largest_relative:.1e}",
                "on": error.points,
            }
            for error in found
        ]
        put(
            lambda: "\n".join(table_lines(cells)),
            lambda: {"stack": stack, "errors": rows},
            lambda: table_csv(rows),
            as_json=as_json,
            as_csv=as_csv,
        )


def _size(text: str) -> tuple[int, int | None]:
    length, _, vocab = text.partition(":")
    try:
        return int(length), int(vocab) if vocab else None
    except ValueError:
        raise ValueError(f"--size must be T or T:V in tokens, got {text!r}") from None


def _timed(found: GenerationReport, network: str | None, compute: str) -> dict[str, Any]:
    if network is None:
        return {}
    seconds = found.seconds_per_token(network, compute)
    return {"network": network, "seconds_per_token": list(seconds)}


def _equal_time(found: SweepResult, within: float) -> dict[str, tuple[EqualTime, ...]]:
    from aero.mpc.equal_time import compare_at_equal_time, timed_rows

    networks = list(found.rows[0].seconds) if found.rows else []
    if not networks:
        raise ValueError("--equal-time needs a --network to take the time on, got none")
    return {
        name: compare_at_equal_time(timed_rows(found, name), within=within) for name in networks
    }


def _equal_time_lines(pairs: dict[str, tuple[EqualTime, ...]]) -> list[str]:
    from aero.tables import table_lines

    lines = []
    for name, compared in pairs.items():
        lines += ["", f"equal time on {name}:", *table_lines([pair.cells() for pair in compared])]
    return lines


def _equal_time_dict(pairs: dict[str, tuple[EqualTime, ...]]) -> dict[str, Any]:
    found = {name: [pair.to_dict() for pair in compared] for name, compared in pairs.items()}
    return {"equal_time": found} if found else {}
