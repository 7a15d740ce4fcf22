"""The folder of one run: its files, each written whole or not at all, and its lock.

config.yaml        the resolved recipe
manifest.json      the corpus, as next to its token files
run.json           status, network, corpus, versions, divergence
metrics.jsonl      one record per line: kind train, validation or entropy
checkpoints/step-N model, optimizer, schedule, random numbers, partial sums of metrics, SHA256SUMS
model/             the trained network and its tokenizer, SHA256SUMS
SHA256SUMS         of config.yaml and manifest.json; of a run that ended also of the other files
tensorboard/       the metrics again
evaluation.json    analysis.json  analysis.npz  sample.json  fixed_point.json
.lock              of the one training at a time, on whichever machine

The lock ends with its process, however that ends: the system frees it. Over NFS the file server
does, also for a machine that died, after the server's own wait (90 s by default).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from aero.internals.atomic_files import (
    checksums_of,
    damage,
    read_checksums,
    write_bytes_atomically,
    write_checksums,
)
from aero.internals.errors import TrainingError, disk_errors
from aero.internals.records import changed, read_record, record_bytes
from aero.internals.run_files import MetricLine, Metrics, RunInfo, read_metrics
from aero.reading import UnreadableFileError, read_yaml

_WAY_OUT = "restore it, or delete the folder to train again"
# Of an end of the training; another one makes others.
_RESULTS = (
    "evaluation.json", "analysis.json", "analysis.npz", "sample.json", "fixed_point.json",
)  # fmt: skip
_STEP_FOLDER = re.compile(r"step-(\d+)$")
# Beside the lock, whose own file `filelock` may empty.
_HOLDER = ".lock-holder"
# Whoever asks for the holder has the lock for a moment. A training waits for that to pass.
_ASKING_SECONDS, _TAKING_SECONDS, _POLL_SECONDS = 0.1, 1.0, 0.01


def run_slug(label: str) -> str:
    """Returns a label as it appears in folder names."""
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")


class RunFolder:
    """Reads and writes one run folder.

    Args:
        path: the folder; it need not exist.

    Attributes:
        path: the same.

    Example:
        >>> from aero.train.runs.run_folder import RunFolder
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> run = RunFolder(folder.name)
        >>> run.exists(), run.metrics().train
        (False, [])
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def checkpoints(self) -> Path:
        """Folder of all checkpoints."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """Folder of the trained network."""
        return self.path / "model"

    @property
    def tensorboard(self) -> Path:
        """Folder of the TensorBoard files."""
        return self.path / "tensorboard"

    def exists(self) -> bool:
        """True if a run was started here."""
        return (self.path / "run.json").is_file()

    def info(self) -> RunInfo:
        """Returns `run.json`.

        Raises:
            TrainingError: there is none, or it cannot be read.
        """
        if not self.exists():
            raise TrainingError(
                f"train: {self.path} is no run folder (it has no run.json); `aero train` makes one"
            )
        with _damage_told():
            info = read_record(self.path / "run.json", RunInfo)
        if info.status == "running":
            return info
        try:
            self.require_whole("run.json")
        except TrainingError:
            with _damage_told():
                now = read_record(self.path / "run.json", RunInfo)
            if now == info:
                raise
            return self.info()  # another process has resumed or ended it since
        return info

    def update(self, **changes: Any) -> None:
        """Changes entries of `run.json`."""
        self.write_info(changed(self.info(), **changes))

    def write_info(self, info: RunInfo) -> None:
        """Writes `run.json`."""
        self.path.mkdir(parents=True, exist_ok=True)
        content = record_bytes(info)
        if info.status != "running":
            self.seal({"run.json": hashlib.sha256(content).hexdigest()})
        write_bytes_atomically(self.path / "run.json", content)

    def write_result(self, name: str, values: object) -> None:
        """Writes a JSON file of measurements; numbers that are not finite become null."""
        write_bytes_atomically(self.path / name, record_bytes(values))
        self.seal(checksums_of(self.path, [name]))

    def seal(self, checksums: dict[str, str]) -> None:
        """Puts the SHA-256 of files that are at rest into `SHA256SUMS`, if the run has one.

        Raises:
            TrainingError: `SHA256SUMS` is damaged.
        """
        listed = self._checksums()
        if listed:
            write_checksums(self.path, listed | checksums)

    def require_whole(self, name: str) -> None:
        """Compares a file that is at rest with `SHA256SUMS`, if the run has one.

        Raises:
            TrainingError: the file is damaged, or `SHA256SUMS` does not name it.
        """
        problems = damage(self.path, [name]) if self._checksums() else []
        if problems:
            raise TrainingError(f"train: {problems[0]}; {_WAY_OUT}")

    def _checksums(self) -> dict[str, str]:
        try:
            return read_checksums(self.path)
        except UnreadableFileError as error:
            raise TrainingError(f"train: {error}; {_WAY_OUT}") from error

    def config(self) -> dict[str, object]:
        """Returns `config.yaml`, which an earlier version may have written.

        Raises:
            TrainingError: it cannot be read.
        """
        self.require_whole("config.yaml")
        with _damage_told():
            config: dict[str, object] = read_yaml(self.path / "config.yaml", dict)
        return config

    def write_config(self, config: Mapping[str, object]) -> None:
        """Writes `config.yaml`."""
        self.path.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
        write_bytes_atomically(self.path / "config.yaml", text.encode())

    def complete_checkpoints(self) -> list[Path]:
        """Returns `checkpoints/step-N`, earliest first."""
        if not self.checkpoints.is_dir():
            return []
        found = [path for path in self.checkpoints.iterdir() if _STEP_FOLDER.search(path.name)]
        return sorted(found, key=checkpoint_step)

    def remove_results(self) -> None:
        """Deletes the results of an earlier end: model, evaluation and analysis."""
        for name in _RESULTS:
            (self.path / name).unlink(missing_ok=True)
        for folder in (self.model, self.path / "model.partial"):
            shutil.rmtree(folder, ignore_errors=True)

    def remove_checkpoints_after(self, step: int) -> None:
        """Deletes later checkpoints and the remains of one of a killed process.

        Only a whole checkpoint is called `step-N`.
        """
        if self.checkpoints.is_dir():
            for path in self.checkpoints.iterdir():
                if not _STEP_FOLDER.search(path.name) or checkpoint_step(path) > step:
                    shutil.rmtree(path, ignore_errors=True)

    def append_metrics(self, record: MetricLine) -> bytes:
        """Adds one line to `metrics.jsonl` and returns it; non-finite numbers become null."""
        line = record_bytes(record, indent=0)
        with (self.path / "metrics.jsonl").open("ab") as file:
            file.write(line)
        return line

    def metrics_head(self, size: int = -1) -> bytes:
        """Returns the first bytes of `metrics.jsonl`, or fewer where it ends; -1 returns all."""
        try:
            with (self.path / "metrics.jsonl").open("rb") as file:
                return file.read(size)
        except FileNotFoundError:
            return b""

    def metrics(self) -> Metrics:
        """Returns the lines of `metrics.jsonl`; one that a crash cut off is left out.

        Raises:
            TrainingError: another line is damaged.
        """
        file = self.path / "metrics.jsonl"
        if not file.exists():
            return Metrics([], [], [])
        with _damage_told():
            return read_metrics(file)[0]

    def truncate_metrics(self, size: int) -> None:
        """Cuts the file after some bytes: a resumed run writes the rest again."""
        write_bytes_atomically(self.path / "metrics.jsonl", self.metrics_head(size))


def corpus_folder(info: RunInfo, run: Path) -> Path:
    """Returns where a run's token files lay, next to its tokenizer.

    Raises:
        TrainingError: `run.json` does not say it.
    """
    if info.corpus is None or info.corpus.folder is None:
        raise TrainingError(
            f"train: {run / 'run.json'}: corpus.folder: expected a text, got none; {_WAY_OUT}"
        )
    return Path(info.corpus.folder)


@contextmanager
def _damage_told() -> Iterator[None]:
    try:
        yield
    except UnreadableFileError as error:
        raise TrainingError(f"train: {error}; {_WAY_OUT}") from error


def checkpoint_step(path: Path) -> int:
    """Returns N of `step-N`.

    Raises:
        TrainingError: the folder has another name.
    """
    found = _STEP_FOLDER.search(path.name)
    if found is None:
        raise TrainingError(f"train: a checkpoint folder is called step-N, got {path}")
    return int(found.group(1))


class RunLockedError(TrainingError):
    """Another process trains in the run folder; the text names folder, process and host."""


@contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Holds the lock of a run folder.

    Args:
        folder: of the run; created if missing.

    Raises:
        RunLockedError: another process holds it.
        TrainingError: the file cannot be written, or its file system has no locks.
    """
    path = Path(folder)
    lock = _lock(path)
    with disk_errors("the lock", path, "run the same command again"):
        path.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=_TAKING_SECONDS, poll_interval=_POLL_SECONDS)
        except Timeout:
            raise _locked_by(path, _named_in(path)) from None
    try:
        with disk_errors("the lock", path, "run the same command again"):
            (path / _HOLDER).write_text(f"process {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        with suppress(OSError):
            (path / _HOLDER).unlink()
        lock.release()


def lock_holder(folder: str | Path) -> str | None:
    """Returns who trains in a run folder, such as "process 7 on box"; None if nobody does."""
    path = Path(folder)
    if not (path / _HOLDER).exists():
        return None
    try:
        with _lock(path).acquire(timeout=_ASKING_SECONDS, poll_interval=_POLL_SECONDS):
            return None
    except (Timeout, PermissionError):  # a folder that others own cannot be tried
        return _named_in(path)


def require_unlocked(folder: str | Path) -> None:
    """Raises `RunLockedError` if another process trains in a run folder."""
    holder = lock_holder(folder)
    if holder is not None:
        raise _locked_by(folder, holder)


def _lock(folder: Path) -> FileLock:
    return FileLock(folder / ".lock")


def _locked_by(folder: str | Path, holder: str) -> RunLockedError:
    return RunLockedError(
        f"train: {folder} is being trained by {holder}; wait for its end, stop it, or choose "
        "another --output"
    )


def _named_in(folder: Path) -> str:
    try:
        text = (folder / _HOLDER).read_bytes()[:200].decode(errors="replace")
    except OSError:
        text = ""
    return text if text.isprintable() and text else "another process"
