"""Loads the operator library, once, and says clearly why when that is impossible."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

import torch

#: The oldest torch whose stable ABI the operator library is built for: TORCH_TARGET_VERSION in
#: CMakeLists.txt.
TORCH_TARGET_VERSION = (2, 11)

REBUILD_COMMAND = "pip install --no-build-isolation --force-reinstall --no-deps ."


def require_torch(version: str) -> None:
    """Refuses a torch older than the operator library's stable ABI.

    Raises:
        ImportError: torch is too old; names both versions and the command that rebuilds.
    """
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) < TORCH_TARGET_VERSION:
        needed = ".".join(map(str, TORCH_TARGET_VERSION))
        raise ImportError(
            f"aero's operator library is built for torch {needed} or newer, but torch {version} is "
            f"installed: upgrade torch, then rebuild with `{REBUILD_COMMAND}`"
        )


def library_path() -> Path:
    """The path of the operator library, next to the compiled module `aero._core`.

    Raises:
        ImportError: aero was not built, or was built without the operators.
    """
    core = importlib.util.find_spec("aero._core")
    path = None if core is None or core.origin is None else Path(core.origin).parent
    if path is None or not (path / "libaero_ops.so").is_file():
        raise ImportError(
            f"aero's operator library libaero_ops.so is missing: rebuild with `{REBUILD_COMMAND}`"
        )
    return path / "libaero_ops.so"


def cpu_isa() -> str:
    """The instruction set that the CPU kernels run with, or why there is none."""
    name = ctypes.CDLL(str(library_path())).aero_cpu_isa
    name.restype = ctypes.c_char_p
    return str(name().decode())


def cuda_obstacle() -> str:
    """What keeps the CUDA kernels from running here, "" where nothing does."""
    text = ctypes.CDLL(str(library_path())).aero_cuda_obstacle
    text.restype = ctypes.c_char_p
    return str(text().decode())


def load() -> None:
    """Makes the operators known to torch as `torch.ops.aero.*`."""
    require_torch(torch.__version__)
    torch.ops.load_library(library_path())  # type: ignore[no-untyped-call]


load()
