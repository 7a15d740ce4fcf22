"""One warm process: it has torch imported and not `aero`, and forks for every run of tests."""

from __future__ import annotations

import importlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "mutants"
HOOK = Path(__file__).parent / "hook"
# A mutant may ask for anything.
MAX_MEMORY_BYTES, MAX_FILE_BYTES = 24 << 30, 1 << 30

# Prints every module outside `aero` that a folder of it imports.
LIST_MODULES = """
import pkgutil, importlib, sys
package = importlib.import_module(f"aero.{sys.argv[1]}")
for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
print(*[n for n in sys.modules if n.partition(".")[0] not in ("aero", "__main__")], sep="\\n")
"""


def warm_up(room: str) -> None:
    """Imports what a folder of aero imports, except aero itself, and what runs its tests."""
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HOOK)}
    command = [sys.executable, "-c", LIST_MODULES, room]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    for name in [*found.stdout.split(), "pytest", "hypothesis", "coverage"]:
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # some modules make parts of themselves up
    assert "aero" not in sys.modules
    if str(HOOK) not in sys.path:
        sys.path.insert(0, str(HOOK))


def run_in_fork(work: Callable[[], Any], log: Path, seconds: float) -> Any:
    """What `work` returned in a child process, as JSON; None where it took too long or died."""
    answer = log.with_suffix(".json")
    answer.unlink(missing_ok=True)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(out, 1)
            os.dup2(out, 2)
            resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
            resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))
            answer.write_text(json.dumps(work()))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
    handle = os.pidfd_open(child)
    select.select([handle], [], [], seconds)
    os.close(handle)
    # The child leads a group of its own, so that this ends what its tests have left.
    for _ in range(2):
        try:
            os.killpg(child, signal.SIGKILL)
        except ProcessLookupError:
            break
        time.sleep(0.01)
    os.waitpid(child, 0)
    return json.loads(answer.read_text()) if answer.exists() else None
