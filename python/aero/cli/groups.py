"""Groups of commands: each loads when it is asked for, and a wrong line ends with one line."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperGroup

from aero.cli.errors import one_line_errors


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
