"""The parts of a run on a borrowed GPU: an end that is kept, and results that survive one.

Both `tests/cuda/run.py` and `benchmarks/cuda/run.py` write one JSON after every single result. A
second call with the same library on the same kind of device goes on where the first one ended.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Deadline:
    """The end of a run, `seconds` after its beginning."""

    seconds: float
    begun: float = field(default_factory=time.time)

    @property
    def end(self) -> float:
        return self.begun + self.seconds

    def left(self) -> float:
        return self.end - time.time()


class Record:
    """Results by name in one JSON, together with the machine and software of the measurement.

    Results of another identity (another library, device or PyTorch) are left behind.
    """

    def __init__(self, path: Path, identity: dict[str, str], *, fresh: bool = False) -> None:
        self.path = path
        self.content: dict[str, Any] = {"identity": identity, "results": {}}
        if path.exists() and not fresh:
            before = json.loads(path.read_text())
            if before.get("identity") == identity:
                self.content = before

    @classmethod
    def reopened(cls, path: Path) -> Record:
        """The record that another process has begun."""
        return cls(path, json.loads(path.read_text())["identity"])

    @property
    def results(self) -> dict[str, Any]:
        found: dict[str, Any] = self.content["results"]
        return found

    def add(self, name: str, result: Any) -> None:
        """Keeps a result and writes the whole file."""
        self.results[name] = result
        self.write()

    def try_failures_again(self) -> None:
        """Lets what failed be tried once more, as it may have been mended; what hung would hang."""
        self.content["again"] = [
            name
            for name, result in self.results.items()
            if result["outcome"] == "failed" and "did not end" not in result["message"]
        ]

    def has_ended(self, name: str) -> bool:
        """True if a measurement has a result that a new process leaves as it is."""
        before = self.results.get(name, {}).get("outcome", "not run")
        return before != "not run" and name not in self.content.get("again", ())

    def begin(self, name: str) -> None:
        """Notes the running measurement, for the case that it never ends."""
        self.content["running"] = name
        self.content["again"] = [x for x in self.content.get("again", ()) if x != name]
        self.write()

    def end(self) -> None:
        """Notes that it has ended."""
        self.content.pop("running", None)
        self.write()

    def write(self) -> None:
        """Writes the file whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".writing")
        temporary.write_text(json.dumps(self.content, indent=1) + "\n")
        temporary.replace(self.path)


def said_by(*command: str) -> str:
    """The output of a program in one line; "unknown" if there is none."""
    if shutil.which(command[0]) is None:
        return "unknown"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except subprocess.TimeoutExpired:
        return "unknown"
    return " ".join(done.stdout.split()) if done.returncode == 0 else "unknown"


def identity(device: str) -> dict[str, str]:
    """The identity of results: the operator library, the device and the software."""
    import torch

    from aero._library import cuda_obstacle, library_path

    found = {
        "library": hashlib.sha256(library_path().read_bytes()).hexdigest()[:16],
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": platform.processor() or platform.machine(),
    }
    if device == "cuda":
        if obstacle := cuda_obstacle():
            raise SystemExit(f"the CUDA kernels cannot run here: {obstacle}")
        if not torch.cuda.is_available():
            raise SystemExit(f"torch {torch.__version__} sees no GPU here")
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "device": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "memory GiB": f"{properties.total_memory / 2**30:.0f}",
            "multiprocessors": str(properties.multi_processor_count),
            "cuda": str(torch.version.cuda),
            "cudnn": str(torch.backends.cudnn.version()),
            "driver": said_by("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        }
    return found


def in_words(found: dict[str, str]) -> str:
    """The identity as one line for a table's head."""
    return ", ".join(f"{name} {value}" for name, value in found.items())


def put_in_front(site: str) -> None:
    """Makes this process and those that it starts import the package of a folder."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([site, *([before] if before else [])])
    sys.path.insert(0, site)


def prepared(device: str) -> dict[str, str]:
    """Builds for the GPU, puts what was built in PYTHONPATH, and returns the identity of results.

    For the CPU the installed package is taken. The identity is asked for in a process of its own,
    which imports what was built and leaves nothing on the device. Both take 12 s on an H100's
    machine, so a script of many programs does them once: AERO_GPU_SITE and AERO_GPU_IDENTITY.
    """
    if device == "cuda" and (known := os.environ.get("AERO_GPU_IDENTITY")):
        put_in_front(os.environ["AERO_GPU_SITE"])
        done_before: dict[str, str] = json.loads(known)
        return done_before
    if device == "cuda":
        sys.path.insert(0, str(ROOT / "packaging"))
        import build_offline

        begun = time.time()
        site = build_offline.build(build_offline.architectures())
        print(f"built {site} in {time.time() - begun:.0f} s", flush=True)
        put_in_front(str(site))
    asked = subprocess.run([sys.executable, __file__, device], stdout=subprocess.PIPE, text=True)
    if asked.returncode:
        raise SystemExit(asked.returncode)
    found: dict[str, str] = json.loads(asked.stdout.splitlines()[-1])
    return found


#: New processes after one that did not end by itself.
RESTARTS = 12
#: Exit status of a process that has kept its result but lost the device.
DEVICE_LOST = 70


def run_until_ended(command: Sequence[str], record: Record, seconds: Callable[[], float]) -> bool:
    """Runs a command that keeps its results in `record` until it ends by itself.

    What it notes as "running" when it hangs, crashes or loses the device has failed; the command is
    then started again, and leaves out what has a result.

    Args:
        command: to be started, again and again.
        record: the JSON that it writes.
        seconds: how many are left.

    Returns:
        whether it did; else there may be more to run.
    """
    record.write()
    for _ in range(RESTARTS):
        if seconds() <= 0:
            return False
        status = None
        try:
            status = subprocess.run(command, timeout=seconds() + 20).returncode
            what = f"the process ended with status {status}"
        except subprocess.TimeoutExpired:
            what = "it did not end in its time"
        record.content = json.loads(record.path.read_text())
        running = record.content.pop("running", None)
        if running is not None:
            record.add(running, {"outcome": "failed", "message": what})
        elif status != DEVICE_LOST:
            return True
    return False


#: What messages say where the time was too short.
OUT_OF_TIME = ("the time is used up", "it did not end in its time")


def exit_status(results: Iterable[dict[str, Any]], *, to_its_end: bool) -> int:
    """1 after a failure, 2 where time ran out, 3 for both, 1 where nothing passed, else 0.

    Args:
        results: of what was to be run.
        to_its_end: whether all of it was reached.
    """
    outcomes = [(result["outcome"], result["message"]) for result in results]
    words = {outcome for outcome, _ in outcomes}
    late = not to_its_end or any(
        outcome == "not run" and any(said in message for said in OUT_OF_TIME)
        for outcome, message in outcomes
    )
    has_failed = "failed" in words or not (late or "passed" in words)
    return has_failed + 2 * late


if __name__ == "__main__":
    print(json.dumps(identity(sys.argv[1])))
