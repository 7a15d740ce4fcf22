"""The facts that `aero info` shows."""

from __future__ import annotations

import os

import torch

from aero._core import build_info, cpu_features
from aero._library import TORCH_TARGET_VERSION, cpu_isa, library_path
from aero.train.machine import git_commit, hardware, package_versions


def machine_facts() -> dict[str, str]:
    """Returns how aero was built and what it runs on, by name.

    Example:
        >>> from aero.cli.machine_facts import machine_facts
        >>> machine_facts()["cuda"] == "no" or "CUDA" in machine_facts()["cuda"]
        True
    """
    build, versions = build_info(), package_versions()
    cuda = "no"
    if torch.cuda.is_available():
        cuda = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    facts = {
        "aero": versions["aero"],
        "commit": git_commit() or "not a git checkout",
        "python": versions["python"],
        "torch": torch.__version__,
        "TORCH_TARGET_VERSION": ".".join(map(str, TORCH_TARGET_VERSION)),
        "operator library": str(library_path()),
        "compiler": f"{build['compiler']}, {build['build_type']}",
        "cpu": hardware(),
        "cpu isa": cpu_isa(),
        "cpu features": " ".join(cpu_features()),
        "cuda": cuda,
        "cuda backward": os.environ.get("AERO_CUDA_BACKWARD") or "heads or split, by size",
    }
    return facts | {name: value for name, value in versions.items() if name not in facts}
