"""Cells as jobs of Slurm, one each, submitted through submitit.

The queue alone holds the jobs: a job is found again by its name, which the run folder decides. So
the same command goes on from any machine of the cluster.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import shlex
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from aero.internals.errors import StopRequestedError, TrainingError
from aero.train.data.prepared_data import prepare_data
from aero.train.progress import LOG, StopRequest
from aero.train.runs.run_folder import run_slug
from benchmarks.paper.cells import Cell
from benchmarks.paper.running import ended, operations_left, operations_per_second, train_in_worker

# Where jobs find this module.
_CHECKOUT = Path(__file__).parents[2]
# How often the queue is asked, and a stop is looked for in between.
_POLL_SECONDS, _POLLS = 5.0, 20
# A cell that needs longer than this on the machine that submits asks for a GPU.
_LONGEST_WITHOUT_GPU = 12 * 3600.0
# Operations per second that a GPU is taken to do: 3 % of the 312e12 that NVIDIA states for the
# A100's bfloat16, because networks as small as these keep no GPU busy.
_GPU_RATE = 1e13
# Starting, validation and slower nodes. A job whose time runs out writes a checkpoint before.
_SPARE, _START_MINUTES = 2.0, 10

_ENDED = {
    "BOOT_FAIL": "lost its node",
    "CANCELLED": "was cancelled",
    "COMPLETED": "ended before its run did",
    "DEADLINE": "missed its deadline",
    "FAILED": "failed",
    "NODE_FAIL": "lost its node",
    "OUT_OF_MEMORY": "ran out of memory",
    "PREEMPTED": "was preempted",
    "TIMEOUT": "ran out of its time",
}


@dataclass(frozen=True)
class _Job:
    """A job in the queue: its number, its state and the reason that it waits."""

    number: int
    state: str
    reason: str

    @property
    def is_open(self) -> bool:
        return self.state not in _ENDED


@dataclass
class SlurmJobs:
    """The jobs of some cells.

    Args:
        cells: in the order in which they are submitted.
        output: run folders go to `output/cells`, what jobs print to `output/slurm`; on a file
            system that all nodes share.
        cache_dir: corpora and tokenizers, shared too.
        options: of `sbatch`, such as `{"partition": "gpu", "time": "600"}`; they come before those
            that the plan asks for.
        say: called with one line per cell that ended, and when the queue moves.

    Raises:
        TrainingError: Slurm's commands are not there.
    """

    cells: Sequence[Cell]
    output: Path
    cache_dir: Path
    options: Mapping[str, str] = field(default_factory=dict)
    say: Callable[[str], None] = LOG.info

    def __post_init__(self) -> None:
        for command in ("sbatch", "srun", "squeue", "scancel"):
            if shutil.which(command) is None:
                raise TrainingError(
                    f"reproduce: --launcher slurm needs {command} in PATH; run it where the "
                    "cluster's jobs are submitted"
                )

    def states(self) -> dict[str, str]:
        """Returns the state of each cell's last job in the queue, by key."""
        return {
            key: f"job {job.number} {job.state.lower()}"
            + (f" ({job.reason})" if job.state == "PENDING" else "")
            for key, job in self._jobs().items()
        }

    def cancel(self) -> int:
        """Cancels the open jobs, which write checkpoints; returns how many there were."""
        numbers = [str(job.number) for job in self._jobs().values() if job.is_open]
        if numbers:
            _slurm("scancel", *numbers)
        return len(numbers)

    def requests(self) -> dict[str, dict[str, Any]]:
        """Returns the requests of the job of each missing cell, as options of `sbatch`, by key.

        Minutes are twice the plan's estimate and ten. One network is timed here, the first that is
        missing; whoever would need more than twelve hours here asks for a GPU.
        """
        missing = [cell for cell in self.cells if not cell.is_done(self.output)]
        if not missing:
            return {}
        rate = operations_per_second(missing[0], self.output)
        asked = {}
        for cell in missing:
            operations = operations_left(cell, self.output)
            on_gpu = operations / rate > _LONGEST_WITHOUT_GPU
            seconds = operations / (_GPU_RATE if on_gpu else rate)
            asked[cell.key] = {
                "time": math.ceil(_SPARE * seconds / 60) + _START_MINUTES,
                "cpus_per_task": torch.get_num_threads(),
                **({"gpus_per_node": 1} if on_gpu else {}),
                **self.options,
            }
        return asked

    def run(self) -> None:
        """Submits every cell that has neither result nor job, and waits for all of them.

        Raises:
            TrainingError: no submitit, a refused submission, or cells that ended without a result.
            StopRequestedError: Ctrl-C or SIGTERM; the jobs go on.
        """
        todo = {cell.key: cell for cell in self.cells if not cell.is_done(self.output)}
        asked, executor = self.requests(), self._executor()
        watched: set[str] = set()  # whose jobs this command submitted or saw
        missed: set[str] = set()
        submitted, failed, moved = 0, 0, ""
        with StopRequest() as stop:
            while todo:
                jobs = self._jobs()
                for key, cell in list(todo.items()):
                    job = jobs.get(key)
                    if cell.is_done(self.output):
                        del todo[key]
                        done = len(self.cells) - len(todo) - failed
                        self.say(f"[{done}/{len(self.cells)}] {ended(cell, self.output)}")
                    elif job is not None and job.is_open:
                        watched.add(key)
                    elif cell.is_locked(self.output):
                        continue  # trained by a process without a job
                    elif key in watched - missed:
                        missed.add(key)  # a shared file system may show the result later
                    elif key in watched or not self._has_origins(cell, todo):
                        del todo[key]
                        failed += 1
                        self.say(f"{cell.label} seed {cell.seed}: {self._why(cell, job)}")
                    elif cell.is_ready(self.output):
                        self._submit(executor, cell, asked[key], submitted)
                        submitted += 1
                        watched.add(key)
                moved = self._tell_moved(jobs, moved)
                for _ in range(_POLLS if todo else 0):
                    if stop.requested:
                        raise StopRequestedError(
                            f"stopped waiting for {len(todo)} cells; their jobs go on: the same "
                            "command waits for them again, with --cancel it ends them"
                        )
                    time.sleep(_POLL_SECONDS / _POLLS)
        if failed:
            raise TrainingError(
                f"reproduce: {failed} of {len(self.cells)} cells have no result (see above); run "
                "the same command again to go on"
            )

    def _executor(self) -> Any:
        try:
            from submitit import SlurmExecutor
        except ImportError:
            raise TrainingError(
                "reproduce: --launcher slurm needs submitit: pip install submitit"
            ) from None
        return SlurmExecutor(folder=self.output / "slurm")

    def _submit(self, executor: Any, cell: Cell, asked: Mapping[str, Any], before: int) -> None:
        # Here, for nodes often reach no network.
        data, context = cell.recipe.data, cell.recipe.model.context_length
        prepare_data(data, cache_dir=self.cache_dir, context_length=context)
        executor.parameters.clear()
        executor.update_parameters(
            job_name=self._name(cell),
            setup=[
                # From Slurm 22.05 on srun no longer takes over how many it was given.
                "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK",
                f"export PYTHONPATH={shlex.quote(str(_CHECKOUT))}${{PYTHONPATH:+:$PYTHONPATH}}",
            ],
            additional_parameters=dict(asked),
        )
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # submitit prints its errors too
                executor.submit(_train, cell, str(self.output), str(self.cache_dir))
        except Exception as error:
            raise TrainingError(
                f"reproduce: Slurm refused the job of {cell.label} seed {cell.seed}: "
                f"{_last_line(str(error))}; {before} jobs were submitted before it and go on; run "
                "the same command again when that is mended"
            ) from error

    def _jobs(self) -> dict[str, _Job]:
        """The last job of each cell that the queue knows, by key."""
        keys = {self._name(cell): cell.key for cell in self.cells}
        # Slurm forgets jobs some minutes after their end (MinJobAge).
        lines = _slurm("squeue", "--me", "--noheader", "--states=all", "--format=%A|%T|%r|%j")
        found = [line.strip().split("|", 3) for line in lines.splitlines()]
        found = sorted((row for row in found if row[-1] in keys), key=lambda row: int(row[0]))
        return {keys[name]: _Job(int(n), state, reason) for n, state, reason, name in found}

    def _name(self, cell: Cell) -> str:
        digest = hashlib.sha256(str(cell.folder(self.output).path.resolve()).encode()).hexdigest()
        return f"{run_slug(cell.label)}-seed{cell.seed}-{digest[:12]}"

    def _has_origins(self, cell: Cell, todo: Mapping[str, Cell]) -> bool:
        """True if the runs that it starts or learns from are done or may be yet."""
        return all(
            other.key in todo or other.is_done(self.output) for other in cell.origins.values()
        )

    def _why(self, cell: Cell, job: _Job | None) -> str:
        """Why a cell that is not done has no open job."""
        if not cell.is_ready(self.output):
            return "the network that it starts or learns from has no result"
        if job is None:
            return "its job left the queue without a result"
        log = self.output / "slurm" / f"{job.number}_0_log.err"
        said = _last_line(log.read_text(errors="replace")) if log.is_file() else ""
        said = f": {said}" if job.state == "FAILED" and said else ""
        return f"job {job.number} {_ENDED[job.state]}{said} (its log is {log})"

    def _tell_moved(self, jobs: Mapping[str, _Job], before: str) -> str:
        """Says how many jobs are in which state, where that is news."""
        counts = Counter(job.state.lower() for job in jobs.values() if job.is_open)
        now = ", ".join(f"{number} {state}" for state, number in sorted(counts.items()))
        if now and now != before:
            self.say(f"jobs: {now}")
        return now


def _train(cell: Cell, output: str, cache_dir: str) -> None:
    """The work of a job."""
    # Cancelling ends the steps before the training at once; the training writes a checkpoint. So
    # does the signal that submitit has Slurm send 90 s before the time is over.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGUSR2, lambda *_: signal.raise_signal(signal.SIGTERM))
    train_in_worker([cell], output, cache_dir)


def _slurm(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise TrainingError(f"reproduce: {command[0]} failed: {_last_line(result.stderr)}")
    return result.stdout


def _last_line(text: str) -> str:
    """The last line that says something of ours, else the last one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line.removeprefix("aero: ") for line in lines if line.startswith("aero: ")]
    return (ours or lines or [""])[-1]
