"""Results, settings and plans cannot be changed in place: who holds one may trust it."""

from __future__ import annotations

import dataclasses
import importlib

import pytest

from .test_examples import MODULES

# What fills while something runs, and what transformers changes.
MAY_CHANGE = {
    "aero.models.configuration.AeroConfig",
    "aero.models.outputs.AeroCausalLMOutput",
    "aero.models.outputs.AeroModelOutput",
    "aero.mpc.optimization_tables._Network",
    "aero.private.job.Generated",
    "aero.private.links.delay_line.Direction",
    "aero.private.serving._Client",
    "aero.reproduction.slurm.SlurmJobs",
    "aero.train.corpora.CorpusScan",
    "aero.train.corpora._Unit",
}


@pytest.mark.parametrize("room", sorted({name.split(".")[1] for name in MODULES if "." in name}))
def test_dataclasses_are_frozen(room: str) -> None:
    found = {
        f"{held.__module__}.{held.__qualname__}": held
        for name in MODULES
        if name.startswith(f"aero.{room}")
        for held in vars(importlib.import_module(name)).values()
        if isinstance(held, type) and dataclasses.is_dataclass(held) and held.__module__ == name
    }
    changing = {name for name, held in found.items() if not held.__dataclass_params__.frozen}
    assert changing == {name for name in MAY_CHANGE if name.startswith(f"aero.{room}.")}
