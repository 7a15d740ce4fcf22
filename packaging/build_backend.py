"""Build backend: scikit-build-core, after making sure that PyTorch and a compiler are there.

Without this check an isolated `pip install .` would download gigabytes of dependencies and only
then fail in CMake. The package cannot list torch as a build requirement: that would build against
another torch than the one the user runs.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from typing import Any

from scikit_build_core import build as _backend
from scikit_build_core.build import (
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

_LEAST_GCC = 12  # in CMakeLists.txt too
_FIND_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"


def _require_torch() -> None:
    # pip hides the user's packages from an isolated build through PYTHONPATH alone.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if subprocess.run([sys.executable, "-c", _FIND_TORCH], env=environment, check=False).returncode:
        raise SystemExit(
            "aero-torch is built against the PyTorch you run, and none is installed here: run "
            "`pip install 'torch>=2.11' scikit-build-core pybind11` and then "
            "`pip install --no-build-isolation .`"
        )


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    _require_torch()
    return _backend.get_requires_for_build_wheel(config_settings)


def get_requires_for_build_editable(config_settings: dict[str, Any] | None = None) -> list[str]:
    _require_torch()
    return _backend.get_requires_for_build_editable(config_settings)


def _require_compiler() -> None:
    if "CMAKE_CXX_COMPILER" in os.environ.get("CMAKE_ARGS", ""):
        return  # CMakeLists.txt checks that one
    named = shlex.split(os.environ.get("CXX", "")) or ["c++"]
    needed = f"aero-torch needs g++ {_LEAST_GCC} or newer: install it, or name it with CXX=g++-12"
    if shutil.which(named[0]) is None:
        raise SystemExit(f"{needed}; there is no {named[0]}")
    done = subprocess.run([*named, "--version"], capture_output=True, text=True, check=False)
    found = re.match(r"[^\n]*\) (\d+)\.", done.stdout)
    if found and "clang" not in done.stdout and int(found[1]) < _LEAST_GCC:
        raise SystemExit(f"{needed}; {named[0]} is {done.stdout.splitlines()[0]}")


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Builds a wheel with a compiler that can."""
    _require_compiler()
    return _backend.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Builds an editable wheel with a compiler that can; libraries of a wheel need none."""
    if not (config_settings or {}).get("cmake.define.AERO_PREBUILT"):
        _require_compiler()
    return _backend.build_editable(wheel_directory, config_settings, metadata_directory)
