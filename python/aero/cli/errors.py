"""How commands end: errors that the user can mend are one line, with exit code 2."""

from __future__ import annotations

import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer

from aero.internals.errors import UserError
from aero.reading import UnreadableFileError, one_line, printable

# Typer brings Click under names of its own, which change.
_UsageError: Any = typer.BadParameter.__base__


def note(text: str) -> None:
    """Writes a line to standard error; standard output is for results."""
    typer.echo(_printable_lines(text), err=True)


def say(text: str) -> None:
    """Writes results to standard output; nothing in them acts on the terminal but line ends."""
    typer.echo(_printable_lines(text))


def _printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


@contextmanager
def one_line_errors(*expected: type[Exception]) -> Iterator[None]:
    """Shows errors that the user can mend as one line; `expected` names further such kinds.

    Errors of the system that name a file are among them: a name that is too long, a file that may
    not be read.
    """
    try:
        yield
    except _UsageError as error:
        if type(error).show is not _UsageError.show:  # help, as nothing was asked for
            raise
        path = error.ctx.command_path if error.ctx else "aero"
        message = error.format_message().rstrip(".") + _name_here(error, path)
        _end(f"{message} (see `{path} --help`)", code=2)
    except UserError as error:
        _end(str(error), code=error.exit_code)
    except KeyboardInterrupt:
        _end("interrupted; run the same command again to continue", code=130)
    except Exception as error:
        names_file = isinstance(error, OSError) and error.filename is not None
        shown = names_file or isinstance(error, (UnreadableFileError, *expected))
        if not shown or _nobody_reads(error):
            raise
        _end(str(error), code=2)


def end_on_termination() -> None:
    """Treats termination as the keyboard's interrupt, so that the command ends its processes."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def _name_here(error: Any, path: str) -> str:
    """What an option of other tools, which `aero cost` lacks, is called here."""
    option = getattr(error, "option_name", None)
    if option is None or " cost" not in path:
        return ""
    from aero.mpc.other_words import name_here

    known = [one.name for one in error.ctx.command.params] if error.ctx else []
    answer = name_here(option.lstrip("-"), known)
    return "" if answer is None else f"; here it is {answer}"


def _nobody_reads(error: Exception) -> bool:
    """Returns whether our output was cut off, as by `| head`; click ends that in silence."""
    if not isinstance(error, BrokenPipeError):
        return False
    output = select.poll()
    output.register(1, 0)
    return any(event & select.POLLERR for _, event in output.poll(0))


def _end(message: str, *, code: int) -> NoReturn:
    # Line ends and tabs are written out first, not joined.
    note(f"aero: {one_line(printable(message), 1200)}")
    raise typer.Exit(code)
