"""The fields of a network's architecture, without the labels and counts of aero-torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ArchitectureSpec:
    """Like `aero.ArchitectureSpec`; the defaults are ``SM+LN+G`` in the size ``mini``."""

    # The fields, which `export_remote_code` writes.

    @classmethod
    def from_label(cls, label: str, *, model: str = "gpt2", **overrides: Any) -> ArchitectureSpec:
        """The default network; other labels need aero-torch."""
        if label not in ("SM", "SM+LN+G") or model != "mini":
            raise ValueError(f"labels such as {label!r} are read by aero-torch; install it")
        return cls(**overrides)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> ArchitectureSpec:
        """Reads the result of `to_dict`."""
        return cls(**fields)

    def to_dict(self) -> dict[str, Any]:
        """All fields by name."""
        return dataclasses.asdict(self)

    def replace(self, **fields: Any) -> ArchitectureSpec:
        """The same with other values of some fields."""
        return dataclasses.replace(self, **fields)
