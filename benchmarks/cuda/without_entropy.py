"""The cost of entropy and temperature on the GPU: the kernels against themselves without the two.

As ../entropy_share.py does on the CPU: the opponent is the same source in which the expressions of
REPLACED are taken out. Both are compiled for this GPU and timed by without_entropy.cu.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from gpu_run import ROOT

# At the end: the package itself is what was built.
sys.path.append(str(ROOT / "packaging"))

from build_offline import ARCHITECTURES, search_path

SOURCE = Path(__file__).with_suffix(".cu")
FLAGS = ("-std=c++20", "-O3", "-fmad=false", "--expt-relaxed-constexpr")
#: File -> expression -> what stands there without entropy and temperature.
REPLACED = {
    "cuda/attention_entropy_forward.h": {
        "factor * (sum.score_sum + delta * sum.sum)": "0.0f",
        "sum.score_sum = __builtin_fmaf(weight, x, sum.score_sum);": "",
    },
    "cuda/attention_backward_rows.h": {
        "(__builtin_fmaf(-gradient.dentropy, z, dweight) - gradient.center)": (
            "(dweight - gradient.center)"
        )
    },
    "cuda/attention_backward_heads.h": {
        "row_sums[column] = __builtin_fmaf(of.dscore, of.z, row_sums[column]);": "",
        "p.dtemperature ? sum_over_groups(lane, row_sums) : 0.0f": "0.0f",
        "if (!p.dtemperature) return;": "return;",
        "if (p.dtemperature) add_row_sums(p, lane, pair, stage, before);": "",
    },
    "cuda/attention_entropy_backward.h": {
        # Of the plain kernels: those of windows and caps are indented further.
        "\n        dtemperature[r][half] = "
        "__builtin_fmaf(of.dscore, of.z, dtemperature[r][half]);": ""
    },
}


def without(folder: Path) -> Path:
    """A copy of the kernels in which nothing belongs to entropy or temperature."""
    shutil.copytree(ROOT / "kernels", folder / "kernels")
    for name, expressions in REPLACED.items():
        path = folder / "kernels" / name
        text = path.read_text()
        for expression, instead in expressions.items():
            if text.count(expression) != 1:
                raise RuntimeError(f"{name} must hold `{expression}` once: adapt {__file__}")
            text = text.replace(expression, instead)
        path.write_text(text)
    return folder


def command(sources: Path, program: Path, architecture: str) -> list[str]:
    """How nvcc makes the program from the kernels below `sources`."""
    target = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
    return ["nvcc", *FLAGS, target, f"-I{sources}", str(SOURCE), "-o", str(program)]


def printed(program: Path) -> Any:
    """The JSON that a program prints."""
    done = subprocess.run([program], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{program.name}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def without_entropy() -> dict[str, Any]:
    """Milliseconds with and without, forward and backward, by T."""
    environment = {**os.environ, "PATH": search_path()}
    architecture = ARCHITECTURES.get(torch.cuda.get_device_capability(), "90")
    with tempfile.TemporaryDirectory() as folder:
        trees = {"with": ROOT, "without": without(Path(folder))}
        programs = {name: Path(folder, f"time_{name}") for name in trees}
        compiling = [
            subprocess.Popen(command(tree, programs[name], architecture), env=environment)
            for name, tree in trees.items()
        ]
        if any(process.wait() for process in compiling):
            raise RuntimeError("nvcc could not compile without_entropy.cu")
        return {name: printed(program) for name, program in programs.items()}
