"""Scalars in TensorBoard's file format, written by the calling thread.

TensorBoard's own writer hands records to a background thread, where a full disk ends in a traceback
that nobody can catch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

__all__ = ["TensorBoardFile"]


class TensorBoardFile:
    """One event file.

    Args:
        folder: created if missing.
        first_step: if above 0, TensorBoard drops later steps of earlier files of the folder.

    Raises:
        OSError: the folder cannot be written.

    Example:
        >>> from aero.train.tensorboard_file import TensorBoardFile
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> board = TensorBoardFile(folder.name)
        >>> board.add_scalars(1, {"train/loss": 2.5})
        >>> board.close()
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
        """Writes values of one step.

        Args:
            step: optimizer steps done.
            values: value by name.
        """
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
