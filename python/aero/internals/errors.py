"""Errors that a user can mend; what only an extra of aero-torch installs has one that names it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# safetensors says it in Rust's words, torch.save only that its file ended early.
_FULL_IN_WORDS = ("No space left", "File too large", "os error 28", "enforce fail at inline_cont")


class UserError(Exception):
    """The command line shows the text alone, without a traceback.

    Attributes:
        exit_code: of the command.
    """

    exit_code = 2


class TrainingError(UserError):
    """Bad input, a corrupt file or a full disk; the text names the fault and the remedy.

    The command line shows the text alone, without a traceback, and ends with exit code 2.

    Example:
        >>> from aero.train import TrainingError, load_recipe
        >>> try:
        ...     load_recipe("gpt5")
        ... except TrainingError as error:
        ...     print(error)
        train: recipe must be one of codeparrot, demo, languini, got 'gpt5'
    """


class StopRequestedError(UserError):
    """Training was asked to stop and did; the text says how to go on. Exit code 130."""

    exit_code = 130


class MissingExtraError(UserError, ImportError):
    """A package is not installed; the text names it and the extra that installs it."""


@contextmanager
def disk_errors(
    what: str, folder: str | Path, way_out: str, *, command: str = "train"
) -> Iterator[None]:
    """Turns the operating system's refusal to write into a `TrainingError`.

    Args:
        what: the file that was being written, in words.
        folder: where.
        way_out: the user's remedy, beyond making room.
        command: which command the error names.

    Raises:
        TrainingError: the block could not write.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        # safetensors and torch.save wrap the system's error in their own.
        number = error.errno if isinstance(error, OSError) else None
        text = str(error)
        full = number in _FULL or any(words in text for words in _FULL_IN_WORDS)
        if full:
            raise TrainingError(
                f"{command}: no space left in {folder} while writing {what}; make room there and "
                f"{way_out}"
            ) from error
        if isinstance(error, OSError):
            reason = error.strerror or text
            raise TrainingError(
                f"{command}: cannot write {what} to {folder}: {reason}; mend that and {way_out}"
            ) from error
        raise


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Surrounds the imports of an extra's packages.

    Args:
        name: of the extra, as in `pip install "aero-torch[name]"`.

    Raises:
        MissingExtraError: a package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"this needs {error.name}, which is not installed: pip install 'aero-torch[{name}]'",
            name=error.name,
        ) from error
