"""The object code of the CUDA kernels: what their instructions have to be, without a GPU.

The disassembly of the kernels that were built, for every architecture.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([A-Z][\w.]*)(.*?);")
# The tensor cores' instructions for products of tiles, by the element type in a kernel's name.
PRODUCT = {
    "BFloat16": "HMMA.16816.F32.BF16",
    "Float16": "HMMA.16816.F32",
    "Float32": "HMMA.1688.F32.TF32",
    "TensorFloat32": "HMMA.1688.F32.TF32",
}


@dataclass
class Code:
    """The instructions of one kernel for one architecture: name and operands."""

    kernel: str
    architecture: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def named(self, pattern: str) -> list[str]:
        return [name for name, _ in self.instructions if re.match(pattern, name)]


def disassembled(listing: Iterable[str]) -> Iterator[Code]:
    """The kernels of one listing of cuobjdump."""
    architecture, code = "", None
    for line in listing:
        if line.startswith("arch = "):
            architecture = line.split()[2]
        elif line.startswith("\t\tFunction : "):
            if code:
                yield code
            code = Code(line.split()[2], architecture)
        elif code and (found := INSTRUCTION.match(line)):
            code.instructions.append((found[1], found[2]))
    if code:
        yield code


def disassembler() -> tuple[str, dict[str, str]]:
    """cuobjdump, and an environment in which it finds nvdisasm: those of the test requirements."""
    installed = Path(sysconfig.get_paths()["purelib"], "nvidia", "cu13", "bin")
    path = os.pathsep.join([str(installed), os.environ.get("PATH", "")])
    found = shutil.which("cuobjdump", path=path)
    assert found, "cuobjdump is missing: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
    return found, {**os.environ, "PATH": path}


def build_folder() -> Path:
    """Where the newest build that compiled the kernels left its objects and reports."""
    folders = [
        path
        for path in ROOT.glob("build/*/cuda")
        if list(path.glob("*.ptxas"))
        # A later build without them leaves those of an earlier source there.
        and "AERO_HAS_CUDA:INTERNAL=ON" in (path.parent / "CMakeCache.txt").read_text()
    ]
    if not folders:
        pytest.skip(
            "the installed library was built without CUDA kernels: `make test AERO_CUDA=ON`"
        )
    return max(folders, key=lambda folder: folder.stat().st_mtime)


def architectures() -> set[str]:
    """Those that the kernels were compiled for."""
    cache = (build_folder().parent / "CMakeCache.txt").read_text()
    listed = re.search(r"^AERO_CUDA_ARCHITECTURES:STRING=(.+)$", cache, re.MULTILINE)
    assert listed
    return {f"sm_{name}" for name in re.split("[; ]", listed[1])}


def readable(names: list[str]) -> list[str]:
    """Kernel names such as `ForwardPass<ForwardShape<BFloat16, 64>>`."""
    plain = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True)
    found = []
    for line in plain.stdout.splitlines():
        name = re.sub(r"aero::kernels::cuda::|\(anonymous namespace\)::|\(.*", "", line)
        found.append(
            name.removeprefix("void run_pass<").removesuffix(">").replace(" >", ">").strip()
        )
    return found


def listing(file: Path, kept: Path) -> Path:
    """The disassembly of an object; kept, as cuobjdump takes 3 s of a processor per megabyte."""
    program, environment = disassembler()
    content = hashlib.sha256(file.read_bytes() + str(Path(program).stat().st_mtime_ns).encode())
    whole = kept / f"{file.stem}.{content.hexdigest()[:16]}.gz"
    if not whole.exists():
        kept.mkdir(parents=True, exist_ok=True)
        part, command = kept / f"{file.stem}.{os.getpid()}", [program, "-sass", str(file)]
        with (
            gzip.open(part, "wt", compresslevel=1) as out,
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as run,
        ):
            assert run.stdout
            # Every second line is a number alone.
            out.writelines(line for line in run.stdout if not line.startswith(" " * 40))
        assert run.returncode == 0, f"{command} failed"
        for old in kept.glob(f"{file.stem}.*.gz"):
            old.unlink()
        part.rename(whole)
    return whole


@functools.cache
def built_code() -> list[Code]:
    """All kernels that were built, disassembled, under their readable names."""
    kernels: list[Code] = []
    for file in sorted(build_folder().glob("*.o")):
        with gzip.open(listing(file, ROOT / "build" / "object_code"), "rt") as lines:
            kernels += disassembled(lines)
    for code, name in zip(kernels, readable([code.kernel for code in kernels]), strict=True):
        code.kernel = name
    return kernels


def test_products_are_the_tensor_cores_and_of_the_elements_type() -> None:
    with_products = [code for code in built_code() if code.named("HMMA")]
    assert {code.architecture for code in with_products} == architectures()
    for code in with_products:
        (element,) = (name for name in PRODUCT if re.search(rf"\b{name}\b", code.kernel))
        assert set(code.named("HMMA")) == {PRODUCT[element]}, code.kernel


def test_every_pass_of_attention_over_tiles_multiplies_on_the_tensor_cores() -> None:
    passes = [code for code in built_code() if re.match(r"\w+Pass<\w+Shape<", code.kernel)]
    assert passes
    for code in passes:
        assert code.named("HMMA"), f"{code.kernel} for {code.architecture}"


def test_copies_to_shared_memory_are_16_bytes_a_lane() -> None:
    copying = [code for code in built_code() if code.named("LDGSTS")]
    assert copying
    for code in copying:
        assert all(".128" in name for name in code.named("LDGSTS")), code.kernel


def test_no_comparison_is_made_by_an_instruction_for_a_minimum() -> None:
    """Before CUDA 13.4 ptxas takes x >= 16 from a minimum that is also held above 0, wrongly.

    Rows beyond the end of a tensor were written so. The same instruction in a chain can be wrong.
    """
    for code in built_code():
        for name, operands in code.instructions:
            if name.startswith("VIMNMX"):
                assert ".RELU" not in name, f"{code.kernel} for {code.architecture}"
                assert not re.match(r"\s*R\d+, U?P\d", operands), (code.kernel, operands)


def test_attention_sums_nothing_by_atomics() -> None:
    for code in built_code():
        if re.match(r"(Forward|Backward)\w*Pass", code.kernel):
            assert not code.named("ATOM|RED"), f"{code.kernel} for {code.architecture}"


LISTING = """\
arch = sm_90a
\t\tFunction : first
        /*0000*/                   LDG.E.128 R4, desc[UR4][R2.64] ;   /* 0x000000 */
                                                                      /* 0x000e22 */
        /*0010*/              @!P0 LDGSTS.E.BYPASS.128.ZFILL [R7], desc[UR4][R2.64], P1 ;
        /*0020*/                   LDSM.16.M88.4 R8, [R7] ;
        /*0030*/                   HMMA.16816.F32.BF16 R4, R8, R2, R4 ;
        /*0040*/               @P3 LDL.LU R3, [R1+0x4] ;
        /*0050*/                   LDS R3, [R9] ;
        /*0060*/               @P0 BRA 0x20 ;
        /*0070*/                   STL [R1], R3 ;
        /*0080*/                   LDS R3, [R9] ;
        /*0090*/               @P1 BRA 0x70 ;
        /*00a0*/                   BRA 0xa0;
\t\tFunction : second
        /*0000*/                   EXIT ;
arch = sm_90
"""


def test_an_object_is_disassembled_once_for_each_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, file = tmp_path / "cuobjdump", tmp_path / "kernels.o"
    program.write_text(f"#!/bin/sh\necho once >> {tmp_path}/calls\ncat $2\n")
    program.chmod(0o755)
    monkeypatch.setitem(globals(), "disassembler", lambda: (str(program), {**os.environ}))

    def kernels_of(text: str) -> list[Code]:
        file.write_text(text)
        with gzip.open(listing(file, tmp_path / "kept"), "rt") as lines:
            return list(disassembled(lines))

    expected = list(disassembled(LISTING.splitlines(keepends=True)))
    assert kernels_of(LISTING) == kernels_of(LISTING) == expected
    assert (tmp_path / "calls").read_text().count("once") == 1
    other = LISTING.replace("EXIT", "NOP")
    assert kernels_of(other) != expected
    assert len(list((tmp_path / "kept").iterdir())) == 1
    program.write_text(program.read_text() + "exit 3\n")
    with pytest.raises(AssertionError, match=r"kernels\.o'\] failed"):
        kernels_of(LISTING)
