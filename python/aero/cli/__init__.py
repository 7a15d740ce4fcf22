"""The command line: `aero train`, `prune`, `convert`, `evaluate`, `export`, `cost` and the others.

Each command imports its modules when it runs: help and `aero cost` start without torch. Bad input
ends with one line on standard error and exit code 2, an interrupt with 130; anything else is a
defect and shows its traceback.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated

import typer

from aero.cli.cost import cost
from aero.cli.diagnosis import doctor
from aero.cli.errors import OneLineGroup, say
from aero.cli.networks import convert, export, prune, show
from aero.cli.private import private
from aero.cli.private_calibration import calibrate
from aero.cli.private_chat import chat
from aero.cli.private_parties import ask, keys, publish, serve
from aero.cli.runs import analyze, evaluate, info, report, train, verify

app = typer.Typer(
    name="aero",
    cls=OneLineGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
#: Heading of the help -> its commands: function, line in the list, example.
COMMANDS: dict[str, list[tuple[Callable[..., None], str, str]]] = {
    "Start": [
        (doctor, "Says what works here, what does not, and what to do.", "aero doctor"),
        (info, "Shows a run, or how aero was built.", "aero info runs/mine/sm-scfuffn-seed0"),
    ],
    "Train and measure": [
        (train, "Trains one or several networks.", "aero train --label SM+ScFuFFN --dry-run"),
        (evaluate, "Measures perplexity and bits per byte.", "aero evaluate runs/mine --json"),
        (analyze, "Measures attention entropies.", "aero analyze runs/mine --windows 16"),
        (report, "Compares trained networks on a page.", "aero report runs/mine"),
        (
            show,
            "Shows where every head looks in a text.",
            "aero show runs/mine/sm-scfuffn-seed0 --text 'for line in file:'",
        ),
        (verify, "Compares run folders with their checksums.", "aero verify runs/mine"),
    ],
    "Convert": [
        (
            convert,
            "Converts a network to a label.",
            "aero convert gpt2 --label SM+FN+R --output converted",
        ),
        (
            export,
            "Writes a network as plain weights.",
            "aero export converted --output exported",
        ),
    ],
}  # fmt: skip
for heading, commands in COMMANDS.items():
    for command, short, example in commands:
        register = app.command(
            short_help=short, epilog=f"Example: {example}", rich_help_panel=heading
        )
        register(command)
app.add_typer(prune, name="prune", rich_help_panel="Convert")
app.add_typer(cost, name="cost", rich_help_panel="Price")
# Long first sentences would be cut off in the lists of commands.
for command, short, example in (
    (
        chat,
        "Converses with a network privately.",
        "chat exported --prompt 'def read(self' --stop ')' --yes",
    ),
    (keys, "Makes the key and the certificate of one party.", "keys --output server"),
    (publish, "Writes the files for a client.", "publish exported --output public"),
    (
        serve,
        "Computes a network for clients.",
        "serve exported --keys server --listen 0.0.0.0:7700",
    ),
    (
        ask,
        "Continues a prompt with a server's network.",
        "ask public --keys client --connect host:7700 --prompt a",
    ),
    (calibrate, "Measures the speed of this machine.", "calibrate --output machine.json"),
):
    register = private.command(short_help=short, epilog=f"Example: aero private {example}")
    register(command)
app.add_typer(private, name="private", rich_help_panel="Run privately")


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


def main() -> None:
    """Entry point of the `aero` command."""
    app()
