"""Scalars in TensorBoard's file format, and those that curves of entropies are drawn from.

TensorBoard's own writer hands records to a background thread, where a full disk ends in a traceback
that nobody can catch; this one writes in the calling thread.

Letters: L layers, H heads, T positions.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from aero.analysis.statistics import quarter_shares


class TensorBoardFile:
    """One event file.

    Args:
        folder: created if missing.
        first_step: if above 0, TensorBoard drops later steps of earlier files of the folder.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: str | Path, *, first_step: int = 0) -> None:
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in order of name.
        name = f"events.out.tfevents.{time.time_ns()}.{os.getpid()}"
        self._file = (folder / name).open("wb")
        self._records = RecordWriter(self._file)
        self._add(Event(file_version="brain.Event:2"))
        if first_step:
            start = SessionLog(status=SessionLog.START)
            self._add(Event(step=first_step + 1, session_log=start))

    def add_scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes values of one step."""
        entries = [
            Summary.Value(tag=name, simple_value=float(value)) for name, value in values.items()
        ]
        self._add(Event(step=step, summary=Summary(value=entries)))
        self._records.flush()

    def close(self) -> None:
        """Closes the file."""
        self._records.close()

    def _add(self, event: Event) -> None:
        event.wall_time = time.time()
        self._records.write(event.SerializeToString())


def entropy_scalars(
    head_entropy: NDArray[Any],
    *,
    temperatures: Sequence[NDArray[Any]] | None = None,
    thresholds: NDArray[Any] | None = None,
) -> dict[str, float]:
    """Means per layer, and the shares of collapsed and of overloaded heads.

    Args:
        head_entropy: [L, H], nats.
        temperatures: L arrays [H, T]; None for networks without.
        thresholds: [L, H], fractions; None for networks without.

    Returns:
        ``entropy/layer_i/mean`` in nats, ``entropy/frac_collapse`` and ``entropy/frac_overload``
        (the first and last quarter of the largest head entropy), ``aero/temperature/layer_i/mean``,
        ``.../min`` and ``.../max``, ``aero/threshold/layer_i/mean``.
    """
    finite = head_entropy[np.isfinite(head_entropy)]
    # The paper's bins: quarters of the largest head entropy.
    shares = quarter_shares(head_entropy, float(finite.max(initial=0.0)))
    scalars = {f"entropy/layer_{i}/mean": layer.mean() for i, layer in enumerate(head_entropy)}
    scalars["entropy/frac_collapse"] = shares[0]
    scalars["entropy/frac_overload"] = shares[3]
    for i, values in enumerate(temperatures or ()):
        scalars[f"aero/temperature/layer_{i}/mean"] = values.mean()
        scalars[f"aero/temperature/layer_{i}/min"] = values.min()
        scalars[f"aero/temperature/layer_{i}/max"] = values.max()
    if thresholds is not None:
        for i, layer in enumerate(thresholds):
            scalars[f"aero/threshold/layer_{i}/mean"] = layer.mean()
    return {name: float(value) for name, value in scalars.items()}
