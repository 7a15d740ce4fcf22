"""Errors of calls that no GPU can run: the launchers, without a GPU.

Those of the build with the real runtime, and launch.cpp alone with a runtime of our own.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DRIVER = ROOT / "tests" / "object_code" / "cuda_launchers.cpp"


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The answers to each call of the driver, linked with the newest build of the kernels."""
    builds = [
        path.parent
        for path in ROOT.glob("build/*/libaero_cuda_launchers.a")
        # A later build without them leaves those of an earlier source there.
        if "AERO_HAS_CUDA:INTERNAL=ON" in (path.parent / "CMakeCache.txt").read_text()
    ]
    if not builds or shutil.which("g++") is None:
        pytest.skip("there are no CUDA kernels to link: `make test AERO_CUDA=ON` makes them")
    build = max(builds, key=lambda folder: (folder / "libaero_cuda_launchers.a").stat().st_mtime)
    runtime = re.search(
        r"^AERO_CUDART:\w+=(.+)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE
    )
    assert runtime is not None
    program = tmp_path_factory.mktemp("launchers") / "driver"
    kernels = map(str, sorted(build.glob("cuda/*.o")))
    subprocess.run(
        ["g++", "-std=c++20", f"-I{ROOT}", str(DRIVER), f"{build}/libaero_cuda_launchers.a",
         *kernels, f"{build}/libaero_cuda_launchers.a", runtime[1], "-lrt", "-ldl", "-lpthread",
         "-o", str(program)],
        check=True,
    )  # fmt: skip
    done = subprocess.run([program], capture_output=True, text=True, check=True, timeout=60)
    return dict(line.split(": ", 1) for line in done.stdout.splitlines())


WRONG_INPUT = {
    "attention in float64":
        "attention_entropy: q must be float32, bfloat16 or float16 on CUDA, got float64",
    "attention of wide heads": "attention_entropy: D must be at most 256, got 257",
    "attention of wide values": "attention_entropy: Dv must be D (8) on CUDA, got 16",
    "attention with a bias": "attention_entropy: bias must be null on CUDA",
    "attention with slopes": "attention_entropy: alibi_slopes must be null on CUDA",
    "attention of many keys": "attention_entropy: T and S must be at most 1073741823 on CUDA, "
        "got 8 and 1073741824",
    "attention of many heads":
        "attention_entropy: B * H must be at most 1073741823 on CUDA, got 1073741824",
    "attention backward sideways":
        "AERO_CUDA_BACKWARD must be heads or split, got sideways",
    "softmax in float64":
        "temperature_softmax: scores must be float32, bfloat16 or float16 on CUDA, got float64",
    "softmax backward in float64":
        "temperature_softmax: scores must be float32, bfloat16 or float16 on CUDA, got float64",
    "softmax of many queries": "temperature_softmax: T and S must be at most 1073741823 on CUDA, "
        "got 1073741824 and 8",
    "penalty in float64":
        "entropy_regularization: entropies must be float32 on CUDA, got float64",
    "penalty of many queries":
        "entropy_regularization: T must be at most 1073741823 on CUDA, got 1073741824",
    "feed-forward in float64":
        "scaled_ffn: weight must be float32, bfloat16 or float16 on CUDA, got float64",
    "feed-forward of wide rows":
        "scaled_ffn: C must be at most 1073741823 on CUDA, got 1073741824",
    "feed-forward backward in float64":
        "scaled_ffn: weight must be float32, bfloat16 or float16 on CUDA, got float64",
}  # fmt: skip


@pytest.mark.parametrize("call", WRONG_INPUT)
def test_input_that_no_kernel_takes_is_an_error_in_words(call: str, said: dict[str, str]) -> None:
    assert said[call] == f"invalid_argument: {WRONG_INPUT[call]}"


def test_a_layer_of_no_rows_needs_no_gpu(said: dict[str, str]) -> None:
    assert said["feed-forward of no rows"] == "done"


@pytest.mark.parametrize(
    ("call", "operator"),
    [
        ("attention", "attention_entropy"),
        ("attention backward", "attention_entropy"),
        ("softmax", "temperature_softmax"),
        ("penalty", "entropy_regularization"),
        ("feed-forward", "scaled_ffn"),
        ("feed-forward backward", "scaled_ffn"),
    ],
)
def test_a_machine_without_a_gpu_is_an_error_in_words(
    call: str, operator: str, said: dict[str, str]
) -> None:
    if call not in said:
        pytest.skip("here is a GPU")
    start = f"runtime_error: {operator}: CUDA device 0 cannot be used: "
    assert said[call].startswith(start) and len(said[call]) > len(start)


def test_the_probe_of_the_first_contact_compiles_to_the_instructions_of_the_kernels(
    tmp_path: Path,
) -> None:
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        pytest.skip("there is no nvcc")
    source, ptx = ROOT / "tests" / "cuda" / "first_contact.cu", tmp_path / "first_contact.ptx"
    command = [nvcc, "-std=c++20", "-arch=compute_80", f"-I{ROOT}", "-ptx", str(source)]
    subprocess.run([*command, "-o", str(ptx)], check=True)
    found = set(re.findall(r"\b(mma\.sync\S+|ex2\S+)", ptx.read_text()))
    assert found == {
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
        "ex2.approx.ftz.f32",
    }


@pytest.fixture(scope="module")
def fake_runtime(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], dict[str, str]]:
    """The answers to calls over a runtime of our own, by the version the driver supports."""
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None or shutil.which("g++") is None:
        pytest.skip("there is no g++ or no CUDA toolkit, whose headers the launchers need")
    plan = subprocess.run([nvcc, "--dryrun", "-c", "none.cu"], capture_output=True, text=True)
    top = re.search(r"#\$ TOP=(\S+)", plan.stderr)
    assert top is not None
    program = tmp_path_factory.mktemp("fake_runtime") / "driver"
    sources = [ROOT / "kernels" / "cuda" / f"{name}.cpp" for name in ("launch", "versions")]
    sources.append(ROOT / "tests" / "object_code" / "cuda_fake_runtime.cpp")
    includes = [f"-I{ROOT}", f"-isystem{top[1]}/include"]
    command = ["g++", "-std=c++20", *includes, *map(str, sources), "-ldl", "-o", str(program)]
    subprocess.run(command, check=True)

    def answers(driver: int) -> dict[str, str]:
        said = subprocess.run([program, str(driver)], capture_output=True, text=True, check=True)
        return dict(line.split(": ", 1) for line in said.stdout.splitlines())

    return answers


def test_an_error_belongs_to_the_call_that_made_it(
    fake_runtime: Callable[[int], dict[str, str]],
) -> None:
    said = fake_runtime(99000)
    refused = "operator: a CUDA kernel or copy could not be started: "
    done = "done after 2 launches"
    assert said == {
        "a call with a plan": done,
        "a call": done,
        "a refused attribute": f"{refused}invalid argument; refused after 1 launches",
        "the call after it": done,
        "a call after an error of someone else": done,
        "a refused launch": f"{refused}too many resources; refused after 1 launches",
        "refused PTX": f"{refused}unsupported toolchain; refused after 1 launches",
        "the last call": done,
        "copies": "acdbef",
        "a refused copy": f"{refused}invalid argument",
        "obstacle": "",
    }


def test_a_driver_older_than_the_toolkit_is_named_at_the_first_call(
    fake_runtime: Callable[[int], dict[str, str]],
) -> None:
    said = fake_runtime(11040)
    words = (
        r"the kernels were built by CUDA (\d+\.\d), but the driver supports CUDA 11\.4 \(PyTorch "
        r"uses CUDA of an unknown version\): update the driver to one for CUDA \1, or rebuild "
        r"aero-torch with the nvcc of CUDA 11\.4 or older \(CUDA_HOME\)"
    )
    assert re.fullmatch(words, said.pop("obstacle"))
    for answer in said.values():
        assert re.fullmatch(rf"operator: {words}(; refused after 0 launches)?", answer)
