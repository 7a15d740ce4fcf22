"""The machine, the versions and the commit of a result, and how a process settles in on them.

The processor's name needs no torch.
"""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import aero

_PACKAGES = ("torch", "transformers", "accelerate", "tokenizers", "numpy")
# What a processor says about itself, and the entries that tell generations of one name apart.
_FILE = Path("/proc/cpuinfo")
_NUMBERS = {"family": "cpu family", "model": "model"}
# Parameters of glibc's mallopt (malloc.h).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_ONE_GIGABYTE = 1 << 30


def settle_in(threads: int | None) -> None:
    """Prepares the process for training: torch's threads, and memory that is kept for reuse.

    Args:
        threads: as asked; None shares the available cores among the local processes.
    """
    import torch

    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    available = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads if threads is not None else max(1, available // local))
    if platform.libc_ver()[0] == "glibc":
        # glibc returns large blocks to the kernel and asks for them again at each step; zeroing
        # pages took a sixth of a step of the demo (0.39 s of processor time against 0.32 s).
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _ONE_GIGABYTE)
        libc.mallopt(_M_TRIM_THRESHOLD, _ONE_GIGABYTE)


def package_versions() -> dict[str, str]:
    """Returns the versions that a result depends on, by name.

    Of a package that is loaded, its own word: the environment may have another one by now.
    """
    versions = {"aero": aero.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        loaded = sys.modules.get(name)
        versions[name] = loaded.__version__ if loaded else metadata.version(name)
    return versions


def processor() -> str:
    """Returns the processor's name with its family and model.

    A name alone may be that of several generations: AMD calls Zen 4 (family 25) and Zen 5 (26)
    "AMD EPYC". ARM's processors have neither, and show their architecture.
    """
    try:
        text = _FILE.read_text("utf-8").partition("\n\n")[0]
    except OSError:
        text = ""
    parted = (line.partition(":") for line in text.splitlines())
    facts = {key.strip(): value.strip() for key, _, value in parted}
    name = facts.get("model name") or platform.processor() or platform.machine()
    numbers = [f"{word} {facts[key]}" for word, key in _NUMBERS.items() if facts.get(key)]
    return ", ".join([name, " ".join(numbers)]) if numbers else name


def hardware() -> str:
    """Returns processor, threads and accelerator in one line."""
    import torch

    threads = torch.get_num_threads()
    text = f"{processor()}, {threads} {'thread' if threads == 1 else 'threads'}"
    if torch.cuda.is_available():
        text += f", {torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return text


def git_commit() -> str | None:
    """Returns the commit of the checkout that this package runs from; None if it is none."""
    try:
        result = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()
