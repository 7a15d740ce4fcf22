"""Checks that a run fits the memory of a machine before it starts.

`aero.mpc.party_memory` says what it takes.
"""

from __future__ import annotations

import dataclasses

from aero.mpc.party_memory import HEADS, PartyMemory
from aero.network.description import Description
from aero.private.parties.worker_pipe import most_memory
from aero.private.prediction import predicted_operations, weight_elements
from aero.private.settings import PrivateSettings


def check_memory(
    description: Description,
    settings: PrivateSettings,
    rows: int,
    *,
    parties: int,
    most: int | None = None,
    sequences: int = 1,
) -> None:
    """Checks that a run fits on this machine.

    Args:
        description: of the network.
        settings: of the run.
        rows: tokens of its longest pass, as a rule the prompt's.
        parties: that are on this machine.
        most: bytes that they may take; default: four fifths of the machine's.
        sequences: side by side.

    Raises:
        ValueError: it would take more.
    """
    takes = memory_of_run(description, settings, rows, sequences).run_bytes(parties)
    may = most_memory(most)
    if takes > may:
        several = f" of each of {sequences} prompts" * (sequences > 1)
        fewer = "fewer prompts, " * (sequences > 1)
        raise ValueError(
            f"private: a pass over {rows} tokens{several} takes up to {takes / 1e9:.1f} GB of "
            f"memory here, and may take {may / 1e9:.1f}; give {fewer}a shorter prompt, a smaller "
            "largest_product, which sends more, or another protocol"
        )


def in_slices(
    description: Description,
    settings: PrivateSettings,
    rows: int,
    *,
    parties: int,
    most: int | None = None,
    sequences: int = 1,
) -> PrivateSettings:
    """The settings with large products in as few further slices as memory needs.

    Arguments are `check_memory`'s. Where no number of slices fits, the settings are as they were.
    """
    own = memory_of_run(description, settings, rows, sequences)
    found = own.in_slices(most_memory(most), parties)
    if found is None or found is own:
        return settings
    return dataclasses.replace(settings, largest_product=found.largest_product)


def memory_of_run(
    description: Description, settings: PrivateSettings, rows: int, sequences: int = 1
) -> PartyMemory:
    """What the parties of a run take besides their processes, at most.

    Args:
        description: of the network.
        settings: of the run.
        rows: tokens of its longest pass, of each sequence.
        sequences: side by side.
    """
    operations = (
        predicted_operations(description, rows, settings, sequences=sequences)
        if settings.protocol == "cheetah"
        else ()
    )
    return PartyMemory(
        description["operations"], weight_elements(description), description["context_length"],
        rows, settings.stack, settings.stack_fields(),
        [one.cost for one in operations if one.kind in HEADS], sequences,
    )  # fmt: skip
