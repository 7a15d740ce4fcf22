"""`aero cost options | generate | sweep | compare`: planning with the cost model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from aero.cli.errors import one_line_errors

Model = Annotated[str, typer.Option(help="Size preset.")]
Context = Annotated[int, typer.Option(help="T, tokens.")]
Vocabulary = Annotated[int | None, typer.Option(help="V; default: the preset's.")]
StackName = Annotated[str, typer.Option(help="A stack, or the path of a description.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="A field of network or stack."),
]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]


def options(
    label: Annotated[str, typer.Argument(help="Network.")] = "SM+ScFuFFN",
    model: Model = "gpt2",
    size: Annotated[
        list[str] | None,
        typer.Option(metavar="T[:V]", help="Column; may be repeated. Default 128 256 512:16384."),
    ] = None,
    stack: StackName = "spu-2024",
    as_json: AsJson = False,
) -> None:
    """What each measure beyond the paper assumes and saves."""
    with one_line_errors(ValueError):
        from aero import mpc

        sizes = [_size(text) for text in size or ("128", "256", "512:16384")]
        table = mpc.option_table(label, model=model, sizes=sizes, stack=stack)
        typer.echo(json.dumps(table.to_dict(), indent=2) if as_json else table.to_text())


def generate(
    label: Annotated[str, typer.Argument(help="Network.")],
    new_tokens: Annotated[int, typer.Option(help="Tokens to make for each prompt.")] = 32,
    batch: Annotated[int, typer.Option(help="Prompts side by side.")] = 1,
    sampling: Annotated[
        str, typer.Option(help="argmax in secret, or client: the client gets the logits.")
    ] = "argmax",
    model: Model = "gpt2",
    context_length: Annotated[int, typer.Option(help="T, tokens of each prompt.")] = 128,
    vocab_size: Vocabulary = None,
    stack: StackName = "aero-optimized-generation",
    set_: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Bytes and flights of continuing prompts token by token with cached keys and values."""
    with one_line_errors(ValueError):
        from aero import mpc

        found = mpc.simulate_generation(
            label,
            new_tokens=new_tokens,
            batch=batch,
            sampling=sampling,  # type: ignore[arg-type]
            model=model,
            context_length=context_length,
            vocab_size=vocab_size,
            stack=stack,
            **_single(set_),
        )
        typer.echo(json.dumps(found.to_dict(), indent=2) if as_json else found.to_text())


def sweep(
    label: Annotated[list[str] | None, typer.Option(help="Network; may be repeated.")] = None,
    runs: Annotated[
        list[Path] | None, typer.Option("--run", help="Run folder with a perplexity; repeatable.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=V1,V2", help="Values of a field; may be repeated."),
    ] = None,
    stack: Annotated[list[str] | None, typer.Option(help="May be repeated.")] = None,
    network: Annotated[
        list[str] | None, typer.Option(help="Network profile to time on; may be repeated.")
    ] = None,
    model: Model = "gpt2",
    pareto: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OBJECTIVE",
            help="Only rows that no other beats: comm_gb, flights, perplexity or a --network.",
        ),
    ] = None,
    skip: Annotated[
        bool, typer.Option("--skip", help="Leave out combinations that do not exist.")
    ] = False,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="As CSV.")] = False,
) -> None:
    """Bytes, flights and seconds of every combination, or the Pareto front among them."""
    with one_line_errors(ValueError):
        from aero import mpc

        found = mpc.sweep(
            label or (),
            runs=runs or (),
            model=model,
            stacks=stack or ("spu-2024",),
            networks=network or (),
            skip=skip,
            **_lists(set_),
        )
        if pareto:
            found = found.pareto(*pareto)
        if as_json:
            typer.echo(json.dumps(found.to_dict(), indent=2))
        else:
            typer.echo(found.to_csv().rstrip("\n") if as_csv else found.to_text())


def compare(
    first: Annotated[str, typer.Argument(help="Network.")],
    second: Annotated[str, typer.Argument(help="The one to compare with it.")],
    model: Model = "gpt2",
    context_length: Context = 128,
    vocab_size: Vocabulary = None,
    stack: StackName = "spu-2024",
    second_stack: Annotated[
        str | None, typer.Option(help="Of the second network; default: the same.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Two networks, or one on two stacks, part by part."""
    with one_line_errors(ValueError):
        from aero import mpc

        sizes: dict[str, Any] = {
            "model": model,
            "context_length": context_length,
            "vocab_size": vocab_size,
        }
        comparison = mpc.simulate(first, stack=stack, **sizes).compare(
            mpc.simulate(second, stack=second_stack or stack, **sizes)
        )
        typer.echo(json.dumps(comparison.to_dict(), indent=2) if as_json else comparison.to_text())


def _size(text: str) -> tuple[int, int | None]:
    length, _, vocab = text.partition(":")
    try:
        return int(length), int(vocab) if vocab else None
    except ValueError:
        raise ValueError(f"size must be T or T:V in tokens, got {text!r}") from None


def _lists(settings: list[str] | None) -> dict[str, Any]:
    """FIELD=V1,V2 as values: true, false, integers, decimals, else text."""
    found = {}
    for setting in settings or ():
        name, equals, values = setting.partition("=")
        if not equals or not values:
            raise ValueError(f"--set must be FIELD=VALUE, got {setting!r}")
        found[name] = [_value(value) for value in values.split(",")]
    return found


def _single(settings: list[str] | None) -> dict[str, Any]:
    found = _lists(settings)
    for name, values in found.items():
        if len(values) != 1:
            raise ValueError(f"--set {name} must have one value, got {len(values)}")
    return {name: values[0] for name, values in found.items()}


def _value(text: str) -> bool | int | float | str:
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
