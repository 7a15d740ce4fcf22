"""How commands end: errors that the user can mend are one line, with exit code 2."""

from __future__ import annotations

import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from aero.reading import UnreadableFileError, printable
from aero.train.errors import StopRequestedError, TrainingError


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
    """Shows what the user can mend as one line; `expected` are further kinds that mean that."""
    try:
        yield
    except StopRequestedError as error:
        _end(str(error), code=130)
    except KeyboardInterrupt:
        _end("interrupted; run the same command again to continue", code=130)
    except Exception as error:
        if not isinstance(error, (TrainingError, UnreadableFileError, *expected)) or _nobody_reads(
            error
        ):
            raise
        _end(str(error), code=2)


def end_on_termination() -> None:
    """Termination as the keyboard's interrupt: what was started is ended on the way out."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def _nobody_reads(error: Exception) -> bool:
    """Whether it is our output that was cut off, as by `| head`; click ends that in silence."""
    if not isinstance(error, BrokenPipeError):
        return False
    output = select.poll()
    output.register(1, 0)
    return any(event & select.POLLERR for _, event in output.poll(0))


def _end(message: str, *, code: int) -> NoReturn:
    note(f"aero: {printable(message)[:4000]}")
    raise typer.Exit(code)
