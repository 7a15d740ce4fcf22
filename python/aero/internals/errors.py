"""Errors that a user can mend."""

from __future__ import annotations


class UserError(Exception):
    """The command line shows the text alone, without a traceback.

    Attributes:
        exit_code: of the command.
    """

    exit_code = 2
