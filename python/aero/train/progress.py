"""One look for every progress bar: on standard error, with an estimate, silent on other ranks."""

import logging
import os
import shutil
import sys
from typing import Any

from tqdm import tqdm

from aero.reading import printable

# Where lines about runs go that no caller asked for.
LOG = logging.getLogger("aero.train")


def is_main_process() -> bool:
    """Returns whether this process is alone or the first of those `torchrun` started."""
    return int(os.environ.get("RANK", "0")) == 0


def progress_bar(description: str, total: float, unit: str, *, initial: float = 0) -> "tqdm[Any]":
    """Returns a bar that shows itself only if the work takes longer than two seconds.

    Args:
        description: of the work.
        total: amount of work, in `unit`s.
        unit: `B` is scaled to kB, MB, GB.
        initial: work already done by an earlier, interrupted call.
    """
    on_terminal = sys.stderr.isatty()
    # tqdm hides its bars on terminals that say they have no columns, as those of containers may;
    # this function answers 80 x 24 there.
    size = shutil.get_terminal_size()
    return tqdm(
        desc=printable(description),
        total=total,
        initial=initial,
        unit=unit,
        unit_scale=unit == "B",
        delay=2.0,
        # A log file gets a line now and then, not ten a second.
        mininterval=0.2 if on_terminal else 10.0,
        ncols=size.columns,
        nrows=size.lines,
        disable=not is_main_process(),
    )
