"""`aero cost`: what private inference costs; every command starts without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from aero.cli import planning
from aero.cli.errors import note, one_line_errors

cost = typer.Typer(help="What one private forward pass costs.", no_args_is_help=True)
for command in (planning.options, planning.generate, planning.sweep, planning.compare):
    cost.command()(command)
_NETWORK_HELP = (
    "paper-testbed, lan-1gbps, wan-400mbps or wan-100mbps, with changes: "
    "'wan-100mbps,uplink_mbps=20,software_seconds=0.006'."
)


@cost.command()
def show(
    label: Annotated[str, typer.Argument(help="Network, such as 'SM+ScFuFFN'.")],
    model: Annotated[str, typer.Option(help="Size preset.")] = "gpt2",
    context_length: Annotated[int, typer.Option(help="T, tokens.")] = 128,
    vocab_size: Annotated[int | None, typer.Option(help="V; default: the preset's.")] = None,
    stack: planning.StackName = "spu-2024",
    network: Annotated[str | None, typer.Option(help=f"Also minutes on: {_NETWORK_HELP}")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Operations as CSV.")] = False,
    html: Annotated[Path | None, typer.Option(help="Also write a page to this file.")] = None,
) -> None:
    """Bytes and flights of one private forward pass, by kind of operation and by layer."""
    with one_line_errors(ValueError, OSError):
        from aero import mpc
        from aero.atomic_files import write_bytes_atomically

        found = mpc.simulate(
            label, model=model, context_length=context_length, vocab_size=vocab_size, stack=stack
        )
        as_text = found.to_csv().rstrip("\n") if as_csv else found.to_text(network)
        typer.echo(json.dumps(found.to_dict(network), indent=2) if as_json else as_text)
        if html is not None:
            write_bytes_atomically(html, found.to_html().encode())
            note(f"wrote {html}")


@cost.command()
def schedule(
    label: Annotated[str, typer.Argument(help="Network, such as 'SM+ScFuFFN'.")],
    model: Annotated[str, typer.Option(help="Size preset.")] = "gpt2",
    context_length: Annotated[int, typer.Option(help="T, tokens.")] = 128,
    vocab_size: Annotated[int | None, typer.Option(help="V; default: the preset's.")] = None,
    stack: Annotated[str, typer.Option(help="Protocol stack.")] = "spu-2024",
    network: Annotated[str, typer.Option(help=_NETWORK_HELP)] = "paper-testbed",
    compute: Annotated[
        str, typer.Option(help="paper-testbed or none, with changes: 'paper-testbed,threads=8'.")
    ] = "paper-testbed",
    overlap: Annotated[
        bool, typer.Option(help="Operations, computing and sending overlap.")
    ] = True,
    trace: Annotated[
        Path | None, typer.Option(help="Write a trace for ui.perfetto.dev to this file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """When every operation runs, what bounds the end, and what each kind of operation costs."""
    with one_line_errors(ValueError, OSError):
        from aero import mpc
        from aero.atomic_files import write_bytes_atomically

        report = mpc.simulate(
            label, model=model, context_length=context_length, vocab_size=vocab_size, stack=stack
        )
        found = report.latency(network, compute).schedule(overlap=overlap)
        if trace is not None:
            write_bytes_atomically(trace, found.trace_json().encode())
        typer.echo(json.dumps(found.to_dict(), indent=2) if as_json else found.to_text())


@cost.command()
def reproduce(
    stack: Annotated[str, typer.Option(help="Protocol stack of our numbers.")] = "spu-2024",
    output: Annotated[
        Path | None, typer.Option(help="Folder for Figures 1 and 15 as PNG, text and JSON.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """The paper's Tables 4-7 and Figures 1 and 15 cell by cell beside ours, and what follows."""
    with one_line_errors(ValueError, OSError):
        from aero import mpc

        found = mpc.reproduce(stack=stack)
        typer.echo(json.dumps(found.to_dict(), indent=2) if as_json else found.to_text())
        if output is not None:
            from aero.report.reproduction import write_reproduction

            for path in write_reproduction(found, output):
                note(f"wrote {path}")
