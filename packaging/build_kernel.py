"""Builds the operators as a kernel of Hugging Face's `kernels`, in dist/kernel: `make kernel`.

    python packaging/build_kernel.py           # for the CPU of 64-bit x86 Linux
    python packaging/build_kernel.py cuda      # or aarch64: beside it

The folder is the kernel's repository. `kernels.get_kernel` loads the variant that fits, without
this package: one library for every torch from 2.11 on, and the Python of `aero.ops` with relative
imports. Torch knows the operators by a name of their own, so a process may hold several versions,
and this package too. `cuda` has the operators of the CPU too; its build needs nvcc and no GPU.
`aarch64` is built and tried as `make arm-wheel` does it, under QEMU.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import arm_wheel
import build_wheels
from build_wheels import DIST, ROOT, run
from older_linux import NEWEST, linker_flags, newest_versions

#: What a variant needs beside its processor and torch. One PTX serves all later GPUs.
BACKENDS: dict[str, dict[str, Any]] = {
    "cpu": {"type": "cpu"},
    "cuda": {"type": "cuda", "archs": ["8.0+PTX"]},
    "aarch64": {"type": "cpu"},
}
#: Files of `aero.ops` that the kernel goes without: its own __init__, and torch's attention, which
#: a kernel that a model loads does not replace.
NOT_IN_KERNEL = ("__init__.py", "torch_attention.py", "_torch_math.py")
LAYOUT, OPERATORS = ROOT / "packaging" / "kernel_layout", ROOT / "python" / "aero" / "ops"
#: The version that users ask for; raised when a public function changes or is added.
VERSION = 1

INIT = '''\
"""The operators of softmax-only language models, which return the entropy of attention's rows.

Example:
    >>> import torch
    >>> from kernels import get_local_kernel
    >>> aero = get_local_kernel("dist/kernel")
    >>> q, k, v = torch.zeros(3, 1, 2, 8, 16)  # [B, H, T, D] each
    >>> out, entropy, logsumexp = aero.attention_entropy(q, k, v, is_causal=True)
"""

from . import _library as _library
from .attention_entropy import attention_entropy
from .entropy_regularization import entropy_regularization
from .scaled_ffn import scaled_ffn
from .temperature_softmax import temperature_softmax
from .transformers_attention import flash_attn_forward, supports_flash_attn

__all__ = [
    "attention_entropy",
    "entropy_regularization",
    "flash_attn_forward",
    "scaled_ffn",
    "supports_flash_attn",
    "temperature_softmax",
]
'''

# Where `kernels` before 0.11 looks: one folder below.
INIT_OF_OLD = """\
import importlib.util
import sys
from pathlib import Path

if "IDENTIFIER" not in sys.modules:
    _path = Path(__file__).parents[1] / "__init__.py"
    _spec = importlib.util.spec_from_file_location("IDENTIFIER", _path)
    sys.modules["IDENTIFIER"] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules["IDENTIFIER"])

from IDENTIFIER import *
from IDENTIFIER import __all__ as __all__
"""


def variant(name: str) -> str:
    """The name by which `kernels` knows whether a variant fits."""
    if name == "cuda":
        return f"torch-stable-abi211-cu{''.join(map(str, build_wheels.toolkit()[1:]))}-x86_64-linux"
    return f"torch-stable-abi211-cpu-{'x86_64' if name == 'cpu' else name}-linux"


def identity(name: str) -> str:
    """The operators' name in torch, which tells sources apart."""
    digest = hashlib.sha256()
    for folder in ("csrc/torch_ops", "kernels", "python/aero/ops", "packaging/kernel_layout"):
        for path in sorted((ROOT / folder).rglob("*.*")):
            if path.suffix in (".cpp", ".h", ".py", ".cu"):
                digest.update(path.read_bytes())
    return f"_aero_{BACKENDS[name]['type']}_{digest.hexdigest()[:8]}"


def compiled(name: str, identifier: str, torch: str) -> Path:
    """The library for manylinux_2_28."""
    compiler, python = "g++", Path(sys.executable)
    if name == "cuda":
        build_wheels.build_with_cuda()
    if name == "aarch64":
        compiler, python = arm_wheel.COMPILER, arm_wheel.prepare(torch)
    else:
        build_wheels.torch_folder()
    work = build_wheels.WORK
    flags = linker_flags(work / "older_linux", compiler)
    settings = {
        "AERO_PYTHON": "OFF",
        "AERO_CUDA": build_wheels.DEFINES["AERO_CUDA"],
        "AERO_WERROR": "ON",
        "AERO_KERNEL_ID": identifier,
        "CMAKE_SHARED_LINKER_FLAGS": f"{flags} -s",
        "Python_EXECUTABLE": python,
    }
    if name == "cuda":
        settings["AERO_NVCC"], _, _ = build_wheels.toolkit()
    build = work / "kernel"
    given = [f"-D{key}={value}" for key, value in settings.items()]
    run("cmake", "-S", ROOT, "-B", build, "-G", "Ninja", *given)
    run("cmake", "--build", build, "--target", "aero_kernel")
    library = build / "libaero_kernel.so"
    for family, newest in newest_versions(library).items():
        if family in NEWEST and newest > NEWEST[family]:
            raise SystemExit(f"build_kernel: the library needs {family} {newest}")
    return library


def relative(source: str, identifier: str) -> str:
    """A module of `aero.ops` with relative imports and the operators' name in torch.

    Raises:
        ValueError: it would still import this package.
    """
    source = re.sub(r"^from aero\.ops import", "from . import", source, flags=re.MULTILINE)
    source = re.sub(
        r"^from aero\.ops\.(\w+) import", r"from .\1 import", source, flags=re.MULTILINE
    )
    source = re.sub(r"torch\.ops\.aero\b", f"torch.ops.{identifier}", source)
    source = re.sub(r"\baero::", f"{identifier}::", source)
    source = source.replace('Library("aero"', f'Library("{identifier}"')
    # Examples import from this package, which is not there.
    source = re.sub(
        r"^( *)>>> from aero\.ops import (\w+)$",
        r"\1>>> from kernels import get_local_kernel\n"
        r'\1>>> \2 = get_local_kernel("dist/kernel").\2',
        source,
        flags=re.MULTILINE,
    )
    if left := re.search(r"^.*(?:from|import) aero\b.*$", source, re.MULTILINE):
        raise ValueError(f"build_kernel: a module of the kernel has {left[0].strip()!r}")
    return source


def write_variant(repository: Path, name: str, library: Path, identifier: str) -> Path:
    """Writes the folder of a variant from a library with the operators of that name."""
    folder = repository / "build" / variant(name)
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "aero").mkdir(parents=True)
    for path in sorted([*OPERATORS.glob("*.py"), *LAYOUT.glob("*.py")]):
        if path.name not in NOT_IN_KERNEL:
            (folder / path.name).write_text(relative(path.read_text(), identifier))
    (folder / "__init__.py").write_text(INIT)
    (folder / "aero" / "__init__.py").write_text(INIT_OF_OLD.replace("IDENTIFIER", identifier))
    shutil.copyfile(library, folder / "libaero_kernel.so")
    files = {
        str(path.relative_to(folder)): base64.b64encode(
            hashlib.sha256(path.read_bytes()).digest()
        ).decode()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    metadata = {
        "name": "aero",
        "id": identifier,
        "version": VERSION,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": BACKENDS[name],
        "digest": {"algorithm": "sha256", "files": files},
    }
    (folder / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")
    return folder


def try_on_arm(repository: Path) -> None:
    """Loads the repository under QEMU, without this package, and uses it."""
    program = ROOT / "tests" / "python" / "kernel_layout_program.py"
    os.environ |= {
        "LOCAL_KERNELS": f"someone/aero={repository}",
        "PYTHONPATH": str(arm_wheel.PACKAGES),
    }
    print(run(arm_wheel.system(), program, repository))


def main() -> None:
    """Builds one variant of the repository."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("variant", nargs="?", choices=BACKENDS, default="cpu")
    parser.add_argument("--torch", default="2.13.0", help="of which aarch64 is built")
    given = parser.parse_args()
    name, identifier = given.variant, identity(given.variant)
    folder = write_variant(
        DIST / "kernel", name, compiled(name, identifier, given.torch), identifier
    )
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder.relative_to(ROOT)}  {size / 1e6:.1f} MB  torch.ops.{identifier}")
    if name == "aarch64":
        try_on_arm(DIST / "kernel")


if __name__ == "__main__":
    main()
