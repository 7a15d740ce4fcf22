"""Makes docstrings ready for the manual: those of the C++ module, and examples as code."""

from __future__ import annotations

import inspect
import re
from typing import Any

import griffe

from aero import _core


class Docstrings(griffe.Extension):
    """Reads the docstrings that the stub of `aero._core` leaves in csrc/bindings.

    And calls the section `Example:` as griffe does, so that it becomes code.
    """

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Called when griffe has read a package."""
        if pkg.path == "aero":
            self._copy(pkg["_core"], _core)
            self._name_examples(pkg)

    def _copy(self, described: griffe.Object, held: object) -> None:
        for name, member in described.members.items():
            native = getattr(held, name, None)
            text = inspect.getdoc(native) if native is not None else None
            if member.is_alias or not text:
                continue
            member.docstring = griffe.Docstring(text, parent=member)
            if member.is_class:
                self._copy(member, native)

    def _name_examples(self, described: griffe.Object) -> None:
        if described.docstring:
            text = described.docstring.value
            described.docstring.value = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
        for member in described.members.values():
            if not member.is_alias:
                self._name_examples(member)
