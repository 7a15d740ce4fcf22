"""What only an extra of aero-torch installs: where it is missing, one line names the extra."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aero.internals.errors import UserError


class MissingExtraError(UserError, ImportError):
    """A package is not installed; the text names it and the extra that installs it."""


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
