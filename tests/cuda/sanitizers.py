"""Runs sanitized_calls.py under compute-sanitizer and reads what the tool found.

A tool that does not start, or that cannot follow this device, has proven nothing: that is "not
run", and only calls that all went through under a tool without a finding are "passed".
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

CALLS = Path(__file__).with_name("sanitized_calls.py")
TOOLS = ("memcheck", "racecheck", "synccheck")
#: Seconds that one tool may take.
LIMIT = 110
#: Lines of a tool's output that are shown where it does not pass.
WORDS = 200
# What the tools say of a kernel's mistake, unlike of a device that they cannot follow.
FINDING = re.compile(
    r"Invalid __\w+__|Race reported|Potential \w+ hazard|Uninitialized __|Barrier error|"
    r"divergent thread|[Mm]isaligned address|illegal memory access"
)
ALL_DONE = "sanitized calls: all done"


def program() -> str | None:
    """compute-sanitizer in PATH or where the toolkit usually is."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    folders = [os.environ.get("PATH", "")]
    folders += [f"{home}/{sub}" for home in homes if home for sub in ("bin", "compute-sanitizer")]
    return shutil.which("compute-sanitizer", path=os.pathsep.join(folders))


def verdict(output: str, status: int) -> dict[str, str]:
    """What a tool's output and exit status amount to."""
    lines = output.splitlines()
    if findings := [line.strip("= ") for line in lines if FINDING.search(line)]:
        return {"outcome": "failed", "message": f"{len(findings)} findings, first: {findings[0]}"}
    summary = re.search(r"SUMMARY: (\d+) (?:error|hazard)", output)
    clean = summary is not None and int(summary[1]) == 0
    if status == 0 and ALL_DONE in output and clean:
        return {"outcome": "passed", "message": ""}
    said = [line.strip("= ") for line in lines if line.strip("= ")]
    return {
        "outcome": "not run",
        "message": f"the tool does not work here (status {status}): {' / '.join(said[-3:])}",
    }


def sanitized(tool: str, device: str, left: float, how_many: str = "all") -> dict[str, str]:
    """Runs all of the calls, or "few", under one tool, for at most `left` seconds."""
    if device != "cuda":
        return {"outcome": "not run", "message": "needs a GPU"}
    if left < 20:
        return {"outcome": "not run", "message": "the time is used up"}
    found = program()
    if found is None:
        return {"outcome": "not run", "message": "compute-sanitizer was not found"}
    # Every tensor an allocation of its own, so that memcheck knows where it ends.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    command = [found, "--tool", tool, "--error-exitcode", "9", sys.executable, str(CALLS)]
    command += [device, how_many]
    limit = min(LIMIT, left)
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        return {"outcome": "not run", "message": f"it did not end in its time of {limit:.0f} s"}
    found_by_it = verdict(done.stdout, done.returncode)
    if found_by_it["outcome"] != "passed":
        print(*done.stdout.splitlines()[:WORDS], sep="\n", flush=True)
    return found_by_it
