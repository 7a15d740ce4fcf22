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
    put,
    put_priced,
    settings,
    value_lists,
    write,
)
from aero.cli.errors import one_line_errors

if TYPE_CHECKING:
    from aero.mpc.generation import GenerationReport


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
        from aero.mpc.optimization_tables import optimization_table

        sizes = [_size(text) for text in size or ("128", "256", "512:16384")]
        keywords: dict[str, Any] = {"model": model, "stack": stack, **settings(set_)}
        table = optimization_table(label, sizes=sizes, **keywords)
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
    stack: Annotated[
        str | None,
        typer.Option(help=f"{STACKS} Default: spu-0.9.5 with the settings of `aero private`."),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(help="cheetah, semi2k or aby3, as `aero private chat --protocol` runs it."),
    ] = None,
    set_: Settings = None,
    network: Network = None,
    compute: Compute = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    html: Html = None,
) -> None:
    """Prices prompts continued token by token.

    Keys and values of earlier tokens are kept as shares. Without --stack the price is that of
    `aero private chat`, which lacks some optimizations. CSV has a line per token.
    """
    with one_line_errors(ValueError, OSError):
        from aero import mpc

        check_machines(network, compute)
        sizes: dict[str, Any] = {"context_length": context_length, "vocab_size": vocab_size}
        own = {"stack": stack} if protocol is None else _as_private_runs(protocol, stack)
        keywords = {"model": model, **own, **sizes, **settings(set_)}
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
    label: Annotated[
        list[str] | None, typer.Option(help="Label, name or folder; may be repeated.")
    ] = None,
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
    compute: Compute = None,
    model: Model = "gpt2",
    pareto: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OBJECTIVE",
            help="Only rows that no other beats: comm_gb, rounds, perplexity or a --network; "
            "may be repeated.",
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
        shown = found.pareto(*pareto) if pareto else found
        put(
            lambda: to_text(shown),
            shown.to_dict,
            lambda: to_csv(shown),
            as_json=as_json,
            as_csv=as_csv,
        )
        if html is not None:
            from aero.report import to_html

            write("--html", html, to_html(found))


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


def _as_private_runs(protocol: str, stack: str | None) -> dict[str, Any]:
    from aero.mpc.generation import private_fields
    from aero.private.settings import STACKS as BY_PROTOCOL

    if protocol not in BY_PROTOCOL or stack is not None:
        raise ValueError(
            f"generate: --protocol must be {', '.join(BY_PROTOCOL)} and goes without --stack, got "
            f"{protocol}{'' if stack is None else f' and {stack}'}"
        )
    return {"stack": BY_PROTOCOL[protocol], **private_fields(BY_PROTOCOL[protocol])}


def _size(text: str) -> tuple[int, int | None]:
    length, _, vocab = text.partition(":")
    try:
        return int(length), int(vocab) if vocab else None
    except ValueError:
        raise ValueError(f"--size must be T or T:V in tokens, got {text!r}") from None


def _timed(found: GenerationReport, network: str | None, compute: str | None) -> dict[str, Any]:
    if network is None:
        return {}
    seconds = found.seconds_per_token(network, compute)
    return {"network": network, "seconds_per_token": list(seconds)}
