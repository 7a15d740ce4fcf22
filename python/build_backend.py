"""Build backend: scikit-build-core, after making sure that PyTorch is there to build against.

Without this check an isolated `pip install .` would download gigabytes of dependencies and only
then fail in CMake. The package cannot list torch as a build requirement: that would build against
another torch than the one the user runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from scikit_build_core import build as _backend
from scikit_build_core.build import (
    build_editable,
    build_sdist,
    build_wheel,
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

_FIND_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"


def _require_torch() -> None:
    # pip hides the user's packages from an isolated build through PYTHONPATH alone.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if subprocess.run([sys.executable, "-c", _FIND_TORCH], env=environment, check=False).returncode:
        raise SystemExit(
            "aero-torch is built against the PyTorch you run, and none is installed here: run "
            "`pip install torch==2.13.0 scikit-build-core pybind11` and then "
            "`pip install --no-build-isolation .`"
        )


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    _require_torch()
    return _backend.get_requires_for_build_wheel(config_settings)


def get_requires_for_build_editable(config_settings: dict[str, Any] | None = None) -> list[str]:
    _require_torch()
    return _backend.get_requires_for_build_editable(config_settings)
