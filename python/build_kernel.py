"""Builds the operators as a kernel of Hugging Face's `kernels`, in dist/kernel: `make kernel`.

    python python/build_kernel.py

The folder is the kernel's repository. `kernels.get_kernel` loads its variant, without this package:
one library for the CPU of 64-bit x86 Linux and every torch from 2.11 on, and the Python of
`aero.ops` with relative imports. Torch knows the operators by a name of their own, so a process may
hold several versions, and this package too.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from pathlib import Path

from build_wheels import DIST, ROOT, WORK, run, torch_folder
from older_linux import NEWEST, linker_flags, newest_versions

VARIANT = "torch-stable-abi211-cpu-x86_64-linux"
LAYOUT, OPERATORS = ROOT / "python" / "kernel_layout", ROOT / "python" / "aero" / "ops"
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


def identity() -> str:
    """The operators' name in torch, which tells sources apart."""
    digest = hashlib.sha256()
    for folder in ("csrc/torch_ops", "kernels/cpu", "python/aero/ops", "python/kernel_layout"):
        for path in sorted((ROOT / folder).rglob("*.*")):
            if path.suffix in (".cpp", ".h", ".py"):
                digest.update(path.read_bytes())
    return f"_aero_cpu_{digest.hexdigest()[:8]}"


def compiled(identifier: str) -> Path:
    """The library for manylinux_2_28."""
    torch_folder()
    build, tools = WORK / "kernel", "-DAERO_PYTHON=OFF -DAERO_CUDA=OFF -DAERO_WERROR=ON"
    flags = f"-DCMAKE_SHARED_LINKER_FLAGS={linker_flags(WORK / 'older_linux')} -s"
    named = f"-DAERO_KERNEL_ID={identifier}"
    run("cmake", "-S", ROOT, "-B", build, "-G", "Ninja", *tools.split(), flags, named)
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


def write_variant(repository: Path, library: Path, identifier: str) -> Path:
    """Writes the folder of the variant from a library with the operators of that name."""
    folder = repository / "build" / VARIANT
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "aero").mkdir(parents=True)
    for path in sorted([*OPERATORS.glob("*.py"), *LAYOUT.glob("*.py")]):
        if path.name != "__init__.py":
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
        "backend": {"type": "cpu"},
        "digest": {"algorithm": "sha256", "files": files},
    }
    (folder / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")
    return folder


def main() -> None:
    """Builds the repository."""
    identifier = identity()
    folder = write_variant(DIST / "kernel", compiled(identifier), identifier)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder.relative_to(ROOT)}  {size / 1e6:.1f} MB  torch.ops.{identifier}")


if __name__ == "__main__":
    main()
