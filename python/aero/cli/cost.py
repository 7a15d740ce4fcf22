"""`aero cost`: what private inference costs; every command starts without torch."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from aero.cli.errors import one_line_errors

cost = typer.Typer(help="What one private forward pass costs.", no_args_is_help=True)


@cost.command()
def show(
    label: Annotated[str, typer.Argument(help="Network, such as 'SM+ScFuFFN'.")],
    model: Annotated[str, typer.Option(help="Size preset.")] = "gpt2",
    context_length: Annotated[int, typer.Option(help="T, tokens.")] = 128,
    vocab_size: Annotated[int | None, typer.Option(help="V; default: the preset's.")] = None,
    stack: Annotated[str, typer.Option(help="Protocol stack.")] = "spu-2024",
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Bytes and flights of one private forward pass, by kind of operation and by layer."""
    with one_line_errors(ValueError):
        from aero import mpc

        found = mpc.simulate(
            label, model=model, context_length=context_length, vocab_size=vocab_size, stack=stack
        )
        typer.echo(json.dumps(found.to_dict(), indent=2) if as_json else found.to_text())
