"""The operators as a kernel of Hugging Face's `kernels`, loaded from a local folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import kernels
import kernels.variants
import pytest
import torch
from packaging.version import Version

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "packaging"))
import build_wheels  # noqa: E402
from build_kernel import BACKENDS, relative, variant, write_variant  # noqa: E402

PROGRAM = Path(__file__).with_name("kernel_layout_program.py")
IDENTIFIER = "_aero_development"  # AERO_KERNEL_ID of a build that names none


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the library of the build that is installed here."""
    build = ROOT / "build" / "native"
    if not (build / "CMakeCache.txt").exists():
        pytest.skip("the installed library was not built here: `make build` compiles it")
    command = ["cmake", "--build", build, "--target", "aero_kernel"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    made = tmp_path_factory.mktemp("kernel")
    write_variant(made, "cpu", build / "libaero_kernel.so", IDENTIFIER)
    return made


def test_the_kernel_works_without_this_package_and_by_name_in_transformers(
    repository: Path,
) -> None:
    environment = {**os.environ, "LOCAL_KERNELS": f"someone/aero={repository}"}
    command = [sys.executable, PROGRAM, repository]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"torch.ops.{IDENTIFIER} computes what plain PyTorch does, to ")


def test_the_kernel_and_this_package_share_a_process_and_bits(repository: Path) -> None:
    import aero.ops

    kernel = kernels.get_local_kernel(repository)
    q, k, v = torch.randn(3, 2, 2, 16, 8)
    own = aero.ops.attention_entropy(q, k, v, is_causal=True)
    for one, other in zip(kernel.attention_entropy(q, k, v, is_causal=True), own, strict=True):
        assert torch.equal(one, other)
    own_operator = torch.ops.aero.attention_entropy
    assert getattr(torch.ops, IDENTIFIER).attention_entropy is not own_operator


def test_the_metadata_is_what_the_library_reads_and_the_digest_holds(repository: Path) -> None:
    native = kernels._rust
    folder = repository / "build" / variant("cpu")
    metadata = native.Metadata.read_from_file(folder / "metadata.json")
    assert (str(metadata.name), metadata.id, metadata.version) == ("aero", IDENTIFIER, 1)
    said = json.loads((folder / "metadata.json").read_text())["digest"]["files"]
    found = native.Digest.hash_variant(native.DigestAlgorithm.SHA256, folder).files
    assert said == {name: digest for name, digest in found.items() if name != "metadata.json"}


def test_each_machine_takes_the_variant_that_is_made_for_it(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_wheels, "toolkit", lambda: ("nvcc", "13", "0"))
    library = repository / "build" / variant("cpu") / "libaero_kernel.so"
    for name in BACKENDS:
        folder = write_variant(tmp_path, name, library, IDENTIFIER)
        said = kernels._rust.Metadata.read_from_file(folder / "metadata.json").backend
        assert said.archs == (["8.0+PTX"] if name == "cuda" else None)
    made = kernels.variants.get_variants_local(tmp_path / "build")
    cpu, cuda = kernels.backends.CPU(), kernels.backends.CUDA(version=Version("13.2"))

    def chosen(backend: Any, processor: str, torch: str = "2.13") -> list[str]:
        found, _ = kernels.variants._resolve_variant_for_system(
            made, backend, processor, "linux", Version(torch), True, None
        )
        return [each.variant_str for each in found]

    assert chosen(cpu, "x86_64") == [variant("cpu")]
    assert chosen(cpu, "aarch64") == [variant("aarch64")]
    assert chosen(cuda, "x86_64") == [variant("cuda")]
    assert chosen(cuda, "aarch64") == chosen(cpu, "x86_64", "2.10") == []


def test_what_would_import_this_package_is_refused() -> None:
    with pytest.raises(ValueError, match=r"has 'from aero.nn import Linear'$"):
        relative("from aero.nn import Linear\n", IDENTIFIER)
    example = "    >>> from aero.ops import scaled_ffn\n"
    assert relative(example, IDENTIFIER).splitlines() == [
        "    >>> from kernels import get_local_kernel",
        '    >>> scaled_ffn = get_local_kernel("dist/kernel").scaled_ffn',
    ]


def test_old_versions_of_kernels_find_the_package_one_folder_below(repository: Path) -> None:
    below = repository / "build" / variant("cpu") / "aero" / "__init__.py"
    program = (
        "import importlib.util, sys, torch; "
        f"spec = importlib.util.spec_from_file_location('of_old', {str(below)!r}); "
        "kernel = importlib.util.module_from_spec(spec); spec.loader.exec_module(kernel); "
        "print(kernel.scaled_ffn(torch.ones(1, 1), torch.ones(1, 1), torch.ones(1), "
        "alpha=torch.ones(1), beta=torch.ones(1)).item(), sorted(kernel.__all__)[0])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["3.0", "attention_entropy"], done.stderr
