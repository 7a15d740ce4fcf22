"""Speed where a clock cannot tell: instructions and register spills of the attention kernels.

Counts against tests/object_code/budget.json: instructions executed on a fixed shape, by callgrind
(scalar and AVX2; valgrind does not know AVX-512), and what the loops of products consist of, by
disassembly. Renew the budget after a change that is meant, and say so in its commit:

    python tests/python/test_object_code.py
"""

from __future__ import annotations

import itertools
import json
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUDGET = ROOT / "tests" / "object_code" / "budget.json"
DRIVER = ROOT / "tests" / "object_code" / "attention_fixed_shape.cpp"
CALLS = [
    f"{isa} {dtype} {direction}"
    for isa, dtype, direction in itertools.product(
        ("scalar", "avx2"), ("float32", "bfloat16"), ("forward", "backward")
    )
]
OBJECTS = ["avx2", "avx512", "avx512bf16", "amx"]
# Functions that make no products: of other operators in the same objects, and what scores pass
# through, whose tanh has a loop of multiply-adds too.
WITHOUT_PRODUCTS = re.compile(
    "TemperatureSoftmax|CrossEntropy|EntropyPasses|any_(epilogue|column_sums|weight_rows)"
    "|TileTransform.*apply_parts"
)
# Same compiler, same flags, same counts, but for the C library's logarithm and the addresses that
# branches of memcpy depend on; 2 % is the smallest change in speed that anybody would look for.
TOLERANCE = 0.02


def build_tree() -> Path:
    """Where the kernels that are installed were built."""
    trees = [cache.parent for cache in ROOT.glob("build/*/CMakeCache.txt")]
    shipped = [tree for tree in trees if (tree / "libaero_ops.so").exists()]
    if not shipped:
        pytest.skip("the installed kernels were not built in this folder")
    return max(shipped, key=lambda tree: (tree / "libaero_kernels.a").stat().st_mtime)


def compiler() -> str:
    """The compiler of the installed kernels."""
    cache = (build_tree() / "CMakeCache.txt").read_text()
    found = re.search(r"^CMAKE_CXX_COMPILER:\w+=(.*)$", cache, re.MULTILINE)
    assert found
    return found[1]


def compiler_version() -> str:
    command = [compiler(), "-dumpfullversion", "-dumpversion"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def budget() -> dict[str, dict[str, float]]:
    kept = json.loads(BUDGET.read_text())
    if kept["compiler"] != (here := compiler_version()):
        pytest.skip(f"the budget is for compiler {kept['compiler']}, here is {here}")
    return kept  # type: ignore[no-any-return]


# --- instructions executed -----------------------------------------------------------------------


def built_driver(folder: Path) -> Path:
    """The fixed call, linked with the installed kernels."""
    program = folder / "attention_fixed_shape"
    library = build_tree() / "libaero_kernels.a"
    command = [compiler(), "-std=c++20", "-O1", f"-I{ROOT}", str(DRIVER), str(library)]
    subprocess.run([*command, "-o", str(program)], check=True)
    return program


def instruction_count(program: Path, call: str) -> int:
    isa, dtype, direction = call.split()
    command = [
        "valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no",
        f"--toggle-collect=counted_{direction}", str(program), dtype, direction,
    ]  # fmt: skip
    run = subprocess.run(
        command, env={"AERO_CPU_ISA": isa, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True
    )
    found = re.search(r"Collected : (\d+)", run.stderr)
    assert run.returncode == 0 and found, run.stderr
    return int(found[1])


# --- loops of products ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Instruction:
    address: int
    name: str
    operands: str

    @property
    def multiplies_vectors(self) -> bool:
        return bool(re.match(r"vf(n?m)(add|sub)\d+p[sd]|[vt]dpbf16ps", self.name))

    @property
    def multiplies_tiles(self) -> bool:
        return self.name == "tdpbf16ps"

    @property
    def is_exponential(self) -> bool:
        """Of an exponential or, as it divides or takes a reciprocal, a logarithm or a tanh."""
        return bool(
            re.match(r"v(scalef|reduce|rndscale|round|div|rcp14)p[sd]|vpslld|vpsllq", self.name)
        )

    @property
    def stores_vector(self) -> bool:
        store = r"%[xyz]mm\d+,[^,]*\(.*\)$"
        return self.name.startswith("vmov") and bool(re.match(store, self.operands))

    @property
    def loads_from_stack(self) -> bool:
        load = r"-?(0x)?[0-9a-f]*\(%r[sb]p\),"
        return self.name.startswith("v") and bool(re.match(load, self.operands))


def functions(file: Path) -> Iterator[list[Instruction]]:
    """Those of attention, as the object file has them."""
    command = ["objdump", "-d", "--no-show-raw-insn", "-w", str(file)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    line = re.compile(r"^ *([0-9a-f]+):\t(\S+)[ \t]*(.*?)[ \t]*$", re.MULTILINE)
    for body in text.split("\n\n"):
        if WITHOUT_PRODUCTS.search(body.partition("\n")[0]):
            continue
        yield [Instruction(int(m[1], 16), m[2], m[3]) for m in line.finditer(body)]


def innermost_loops(code: list[Instruction]) -> list[list[Instruction]]:
    """From the target of every backward jump to the jump, where no other such range lies within."""
    index = {instruction.address: i for i, instruction in enumerate(code)}
    ranges = set()
    for i, instruction in enumerate(code):
        target = re.match(r"[0-9a-f]+", instruction.operands)
        if instruction.name.startswith("j") and target:
            begin = index.get(int(target[0], 16), i + 1)
            if begin <= i:
                ranges.add((begin, i))
    return [
        code[begin : end + 1]
        for begin, end in ranges
        if not any(begin <= b and e <= end and (b, e) != (begin, end) for b, e in ranges)
    ]


def loop_facts(file: Path) -> dict[str, float]:
    """Of the loops with a product of tiles or eight multiply-adds of vectors, and no exponential.

    Sums stay in registers there, so "vector stores" counts those for which there was none, and
    "stack loads" other operands that had to be parked; "instructions per multiply-add" is 1 plus
    the share of loads and counting.
    """
    loops = [loop for code in functions(file) for loop in innermost_loops(code)]
    products = [
        loop
        for loop in loops
        if sum(16 * i.multiplies_tiles + i.multiplies_vectors for i in loop) >= 8
        and not any(i.is_exponential for i in loop)
    ]
    code = list(itertools.chain.from_iterable(products))
    multiply_adds = sum(i.multiplies_vectors for i in code)
    return {
        "loops": len(products),
        "instructions per multiply-add": round(len(code) / max(multiply_adds, 1), 3),
        "vector stores": sum(i.stores_vector for i in code),
        "stack loads": sum(i.loads_from_stack for i in code),
    }


def object_file(isa: str) -> Path:
    (file,) = build_tree().rglob(f"kernels/cpu/{isa}.cpp.o")
    return file


# --- tests ---------------------------------------------------------------------------------------

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="budgets are for x86-64")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("valgrind"):
        pytest.skip("valgrind is not installed, so nothing counts instructions")
    return built_driver(tmp_path_factory.mktemp("driver"))


@pytest.mark.parametrize("call", CALLS)
def test_attention_executes_no_more_instructions_than_budgeted(program: Path, call: str) -> None:
    allowed = budget()["instructions"][call]
    count = instruction_count(program, call)
    assert count <= allowed * (1 + TOLERANCE), f"{count / allowed - 1:+.1%} instructions"


@pytest.mark.parametrize("isa", OBJECTS)
def test_loops_of_products_hold_no_more_than_budgeted(isa: str) -> None:
    allowed, facts = budget()[isa], loop_facts(object_file(isa))
    assert facts["loops"] > 0
    for name in ("vector stores", "stack loads"):
        assert facts[name] <= allowed[name], name
    name = "instructions per multiply-add"
    assert facts[name] <= allowed[name] * (1 + TOLERANCE)


PLANTED = """
#include "kernels/cpu/micro_kernel.h"
using namespace aero::kernels::cpu;
void product(const float* a, const float* b, float* to, int64_t count) {{
  Tile<float, {rows}, 4> tile;
  multiply_rows(tile, Matrix<const float>{{a, 64}}, {{b, 64}}, count);
  for (int r = 0; r < {rows}; ++r)
    for (int v = 0; v < 4; ++v) store(to + (r * 4 + v) * kLanes<float>, tile.at[r][v]);
}}
"""


def test_spills_of_a_tile_too_large_for_the_registers_are_seen(tmp_path: Path) -> None:
    facts = []
    for rows in (4, 9):  # 16 and 36 accumulators for 32 registers
        source, file = tmp_path / f"tile{rows}.cpp", tmp_path / f"tile{rows}.o"
        text = PLANTED.format(rows=rows)
        # Whose loops are unrolled by up to 4.
        for name in ("micro_kernel.h", "simd.h", "simd_elements.h"):
            header = (ROOT / "kernels" / "cpu" / name).read_text()
            changed = re.sub(r"unroll [48]\b", "unroll 16", header)
            folder = tmp_path / "kernels" / "cpu"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(changed)
        source.write_text(text)
        flags = [
            "-std=c++20",
            "-O3",
            "-mavx512f",
            "-mavx512dq",
            "-mavx512bw",
            "-mavx512vl",
            "-mfma",
        ]
        folders = [f"-I{tmp_path}", f"-I{ROOT}"]
        command = [compiler(), *flags, "-mprefer-vector-width=512", *folders, "-c", str(source)]
        subprocess.run([*command, "-o", str(file)], check=True)
        facts.append(loop_facts(file))
    small, large = facts
    assert small["loops"] == large["loops"] == 1
    assert small["vector stores"] == small["stack loads"] == 0
    assert large["vector stores"] > 0


# --- linkage -------------------------------------------------------------------------------------

FUNCTION = "template <class T> T f(T x) { return x + 1; }"
LINKAGE = {
    "its own": f"namespace {{ {FUNCTION} }} int g() {{ return f(1); }}",
    "shared": f"{FUNCTION} int g() {{ return f(1); }}",
}


def checked_linkage(objects: list[Path]) -> subprocess.CompletedProcess[str]:
    script = ROOT / "kernels" / "cpu" / "check_linkage.cmake"
    listed = ";".join(map(str, objects))
    command = ["cmake", "-DNM=nm", f"-DOBJECTS={listed}", "-P", str(script)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize("function", LINKAGE)
@pytest.mark.parametrize("name", ["scalar", "avx512bf16", "amx", "attention_entropy"])
def test_instruction_sets_that_share_a_function_fail_the_build(
    tmp_path: Path, name: str, function: str
) -> None:
    source, file = tmp_path / "source.cpp", tmp_path / f"{name}.cpp.o"
    plain = tmp_path / "avx2.cpp.o"
    for to, text in ((file, LINKAGE[function]), (plain, LINKAGE["its own"])):
        source.write_text(text)
        subprocess.run([compiler(), "-O0", "-c", str(source), "-o", str(to)], check=True)
    found = checked_linkage([plain, file])
    is_refused = function == "shared" and name != "attention_entropy"
    assert (found.returncode != 0) == is_refused, found.stderr
    unwrapped = "".join(found.stderr.split())
    assert (f"{name}.cpp.omustgive" in unwrapped) == is_refused


def test_a_build_without_the_objects_to_check_fails() -> None:
    found = checked_linkage([Path("attention_entropy.cpp.o")])
    assert found.returncode != 0 and "no object of an instruction set" in found.stderr


def test_the_benchmark_can_still_take_entropy_out_of_the_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import entropy_share

    folder = entropy_share.without_entropy()
    for name in entropy_share.REMOVED:
        assert (folder / "kernels" / name).read_text() != (ROOT / "kernels" / name).read_text()


def renew() -> None:
    """Writes the present needs of the installed kernels as the budget."""
    with tempfile.TemporaryDirectory() as folder:
        driver = built_driver(Path(folder))
        kept: dict[str, object] = {"compiler": compiler_version()}
        kept["instructions"] = {call: instruction_count(driver, call) for call in CALLS}
    kept |= {isa: loop_facts(object_file(isa)) for isa in OBJECTS}
    BUDGET.write_text(json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
    renew()
