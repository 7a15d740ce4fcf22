"""The command line: `aero train`, `prune`, `convert`, `evaluate`, `export`, `cost` and the others.

Each command is loaded when it is asked for, and imports its modules when it runs: help and
`aero cost` start without torch. Bad input ends with one line on standard error and exit code 2, an
interrupt with 130; anything else is a defect and shows its traceback.
"""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, NamedTuple

import typer
from typer.core import TyperGroup

from aero.cli.errors import one_line_errors, say


class Command(NamedTuple):
    """A row of a group: where the function is, how it is called, its heading and line in the help.

    Without a line of its own it has the function's first one; long ones would be cut off there.
    """

    function: str
    example: str
    short: str | None = None
    heading: str | None = None


class Group(TyperGroup):
    """Commands whose wrong lines end with one line instead of their usage."""

    rows: ClassVar[Mapping[str, Command]] = {}

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.commands: Any = _Loading(self.rows, self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Lists the commands below the headings that they were registered under."""
        headings: dict[str, list[tuple[str, Any]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            headings.setdefault(command.rich_help_panel or "Commands", []).append((name, command))
        longest = max(len(name) for commands in headings.values() for name, _ in commands)
        for heading, commands in headings.items():
            rows = [
                (name.ljust(longest), command.get_short_help_str(formatter.width - 6 - longest))
                for name, command in commands
            ]
            with formatter.section(heading):
                formatter.write_dl(rows)

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Reads the options before the command."""
        with one_line_errors():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        """Reads the rest and runs the command."""
        with one_line_errors():
            return super().invoke(ctx)


def group_of(*rows: Command) -> type[Group]:
    """The group of these commands, each named as its function."""
    named = {row.function.partition(":")[2]: row for row in rows}
    return type("Group", (Group,), {"rows": named})


class _Loading(Mapping[str, Any]):
    """Commands by name; those of a table are loaded one by one, when they are asked for."""

    def __init__(self, rows: Mapping[str, Command], loaded: Mapping[str, Any]) -> None:
        self._rows, self._loaded = rows, dict(loaded)

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _command(name, self._rows[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._rows, **self._loaded})

    def __len__(self) -> int:
        return len({**self._rows, **self._loaded})


def _command(name: str, row: Command) -> Any:
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    alone.command(
        name,
        short_help=row.short,
        epilog=f"Example: aero {row.example}",
        rich_help_panel=row.heading,
    )(pkgutil.resolve_name(f"aero.cli.{row.function}"))
    return typer.main.get_command(alone)


START, MEASURE, CONVERT = "Start", "Train and measure", "Convert"
app = typer.Typer(
    name="aero",
    cls=group_of(
        Command(
            "diagnosis:doctor",
            "doctor",
            "Says what works here, what does not, and what to do.",
            START,
        ),
        Command(
            "runs:info",
            "info runs/mine/sm-scfuffn-seed0",
            "Shows a run, or how aero was built.",
            START,
        ),
        Command(
            "runs:train",
            "train --label SM+ScFuFFN --dry-run",
            "Trains one or several networks.",
            MEASURE,
        ),
        Command(
            "runs:evaluate",
            "evaluate runs/mine --json",
            "Measures perplexity and bits per byte.",
            MEASURE,
        ),
        Command(
            "runs:analyze",
            "analyze runs/mine --windows 16",
            "Measures attention entropies.",
            MEASURE,
        ),
        Command("runs:report", "report runs/mine", "Compares trained networks on a page.", MEASURE),
        Command(
            "networks:show",
            "show runs/mine/sm-scfuffn-seed0 --text 'for line in file:'",
            "Shows where every head looks in a text.",
            MEASURE,
        ),
        Command(
            "runs:verify", "verify runs/mine", "Compares run folders with their checksums.", MEASURE
        ),
        Command(
            "networks:convert",
            "convert gpt2 --label SM+FN+R --output converted",
            "Converts a network to a label.",
            CONVERT,
        ),
        Command(
            "networks:export",
            "export converted --output exported",
            "Writes a network as plain weights.",
            CONVERT,
        ),
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
prune = typer.Typer(
    cls=group_of(
        Command(
            "networks:score",
            "prune score runs/mine/sm-scfuffn-seed0",
            "Measures the worth of each FFN.",
        )
    ),
    help="Finds the FFNs that a network can do without.",
    no_args_is_help=True,
)
cost = typer.Typer(
    cls=group_of(
        Command("cost:show", "cost show SM+ScFuFFN --network wan-100mbps"),
        Command("cost:compare", "cost compare SM+LN+G SM+FN+R --context-length 512"),
        Command("cost:schedule", "cost schedule SM+ScFuFFN --what-if softmax=2"),
        Command("advice:advise", "cost advise SM+LN+G --rtt-ms 20 --mbps 200"),
        Command("advice:where", "cost where SM+LN+G --rtt-ms 20 --mbps 200"),
        Command("planning:optimizations", "cost optimizations SM+LN+G --size 256"),
        Command("planning:accuracy", "cost accuracy --set exp_squarings=5"),
        Command("planning:generate", "cost generate SM+FN+R --new-tokens 64"),
        Command("planning:sweep", "cost sweep --label SM+FN+R --set context_length=128,512"),
    ),
    help="Prices one private forward pass.",
    no_args_is_help=True,
)
private = typer.Typer(
    cls=group_of(
        Command(
            "private:run",
            "private run runs/mine/sm-scfuffn-seed0 --prompt def --tokens 2",
            "Continues a prompt privately.",
        ),
        Command(
            "private_chat:chat",
            "private chat exported --prompt 'def read(self' --stop ')' --yes",
            "Converses with a network privately.",
        ),
        Command(
            "private_parties:keys",
            "private keys --output server",
            "Makes the key and the certificate of one party.",
        ),
        Command(
            "private_parties:publish",
            "private publish exported --output public",
            "Writes the files for a client.",
        ),
        Command(
            "private_parties:serve",
            "private serve exported --keys server --listen 0.0.0.0:7700",
            "Computes a network for clients.",
        ),
        Command(
            "private_parties:ask",
            "private ask public --keys client --connect host:7700 --prompt a",
            "Continues a prompt with a server's network.",
        ),
        Command(
            "private_calibration:calibrate",
            "private calibrate --output machine.json",
            "Measures the speed of this machine.",
        ),
    ),
    help="Runs trained networks between two or three parties. `make private` sets it up.",
    no_args_is_help=True,
)
app.add_typer(prune, name="prune", rich_help_panel=CONVERT)
app.add_typer(cost, name="cost", rich_help_panel="Price")
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
