"""The private environment: where its Python is, and how a program of this package starts there.

That environment has jax, spu, numpy and safetensors, but not this package: it is used from where
this process has it, so the two cannot differ.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

# Names the Python of the private environment when it is not found by itself.
VARIABLE = "AERO_PRIVATE_PYTHON"
_PACKAGE = Path(__file__).parents[1]
_START = """
import importlib.util, runpy, sys
folder = sys.argv[1]
spec = importlib.util.spec_from_file_location("aero", folder + "/__init__.py")
spec.submodule_search_locations = [folder]
sys.modules["aero"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.argv = sys.argv[2:]
if sys.argv[0].endswith(".py"):
    runpy.run_path(sys.argv[0], run_name="__main__")
else:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


class PrivateEnvironmentError(ValueError):
    """There is no private environment, or it is not complete.

    Example:
        >>> from aero.private.environment import PrivateEnvironmentError
        >>> issubclass(PrivateEnvironmentError, ValueError)
        True
    """


def find_private_python() -> Path:
    """The Python with jax and spu.

    Looked for: `AERO_PRIVATE_PYTHON`, `.venv-private` in the working folder and in the checkout
    that this package lies in, and this process's own.

    Raises:
        PrivateEnvironmentError: none is there; says how to make one.
    """
    named = os.environ.get(VARIABLE)
    if named:
        if not Path(named).is_file():
            raise PrivateEnvironmentError(f"private: {VARIABLE} must be a Python, got {named}")
        return Path(named)
    for folder in (Path.cwd(), _PACKAGE.parents[1]):
        python = folder / ".venv-private" / "bin" / "python"
        if python.is_file():
            return python
    if importlib.util.find_spec("spu") and importlib.util.find_spec("jax"):
        return Path(sys.executable)
    raise PrivateEnvironmentError(
        "private: needs an environment of its own with spu and jax, and found none; run `make "
        "private`, or with Python 3.10 or 3.11: python3.11 -m venv .venv-private && "
        ".venv-private/bin/pip install spu==0.9.5 'jax[cpu]==0.4.34' 'numpy<2' safetensors msgspec "
        f"(elsewhere: {VARIABLE}=.../bin/python)"
    )


def private_command(program: str, python: Path | None = None) -> list[str]:
    """The command that runs a program in the private environment, with this package.

    Args:
        program: the full name of a module of this package, or a .py file.
        python: of the environment; default: `find_private_python()`.
    """
    python = find_private_python() if python is None else python
    return [str(python), "-I", "-c", _START, str(_PACKAGE), program]
