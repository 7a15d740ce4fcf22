"""Results, settings and plans cannot be changed in place: who holds one may trust it."""

from __future__ import annotations

import dataclasses
import importlib

import pytest

from .test_examples import MODULES

# Values that fill while something runs, and those that transformers changes.
MAY_CHANGE = {
    "families": {"Size"},
    "models": {"AeroCausalLMOutput", "AeroConfig", "AeroModelOutput"},
    "mpc": {"_Network"},
    "network": {"Step"},
    "private": {"ClientInLine", "Conversation", "Direction", "Generated", "SideBySide", "Stranger"},
    "train": {"CorpusScan"},
}


@pytest.mark.parametrize("room", sorted({name.split(".")[1] for name in MODULES if "." in name}))
def test_dataclasses_are_frozen(room: str) -> None:
    changing = {
        held.__name__
        for name in MODULES
        if name.startswith(f"aero.{room}")
        for held in vars(importlib.import_module(name)).values()
        if isinstance(held, type) and dataclasses.is_dataclass(held) and held.__module__ == name
        if not held.__dataclass_params__.frozen
    }
    assert changing == MAY_CHANGE.get(room, set())
