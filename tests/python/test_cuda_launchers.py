"""What cannot be put on a GPU is said in words: the launchers of the build, without a GPU."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DRIVER = ROOT / "tests" / "object_code" / "cuda_launchers.cpp"


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each call of the driver was answered, linked with the newest build of the kernels."""
    builds = [path.parent for path in ROOT.glob("build/*/libaero_cuda_launchers.a")]
    if not builds or shutil.which("g++") is None:
        pytest.skip("there are no CUDA kernels to link: no nvcc, or AERO_CUDA=OFF, or no g++")
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
