"""The operators of a wheel against those of a build from source, both in one process.

python benchmarks/wheel_speed.py dist/WHEEL [--quick] [--output results/NAME.md]

A wheel is linked for an older Linux. The build from source is the target `aero_kernel`, which is
compiled and linked as `pip install .` does it and has its operators under another name. `aero.ops`
may not be imported here: it would load a third library, under the wheel's name.
"""

from __future__ import annotations

import subprocess
import zipfile
from functools import partial
from pathlib import Path

import torch
from timer import interleaved, machine, parser, publish

from aero.ops._gradients import PLAIN
from aero.tables import markdown_table

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "wheel_speed"
NAMESPACES = {"source": "_aero_development", "wheel": "aero"}
METHOD = """\
The two take turns. A time is the median of {rounds} rounds in milliseconds of {clock}, with its
quartiles. A ratio is the median of the rounds' own ratios: above 1, the wheel is slower."""


def libraries(wheel: Path) -> None:
    """Builds the operators from source; loads them and the wheel's."""
    tools = ["-DAERO_PYTHON=OFF", "-DAERO_CUDA=OFF", f"-DAERO_KERNEL_ID={NAMESPACES['source']}"]
    subprocess.run(["cmake", "-S", ROOT, "-B", WORK, "-G", "Ninja", *tools], check=True)
    subprocess.run(["cmake", "--build", WORK, "--target", "aero_kernel"], check=True)
    with zipfile.ZipFile(wheel) as opened:
        unpacked = opened.extract("aero/libaero_ops.so", WORK)
    for library in (WORK / "libaero_kernel.so", unpacked):
        torch.ops.load_library(library)


def cases() -> dict[str, tuple[str, tuple[object, ...]]]:
    """Name of a row -> operator and its arguments, at GPT-2's width."""
    torch.manual_seed(0)
    found: dict[str, tuple[str, tuple[object, ...]]] = {}
    one, temperature = torch.ones(1), 0.5 + torch.rand(12, 512)
    for dtype in (torch.float32, torch.bfloat16):
        q, k, v, dout = torch.randn(4, 4, 12, 512, 64).to(dtype)
        scores, dscores = torch.randn(2, 4, 12, 512, 512).to(dtype)
        x, dy, weight, bias = (
            torch.randn(n).to(dtype) for n in ((2048, 768), (2048, 768), (768, 768), (768,))
        )
        out, entropy, _, rows, _, _ = torch.ops.aero.attention_entropy(
            q, k, v, temperature, None, True, None, *PLAIN, False
        )
        statistics = torch.ops.aero.temperature_softmax(scores, temperature, None, True)[3]
        layer = (weight, bias, one, one)
        for operator, arguments in {
            "attention_entropy": (q, k, v, temperature, None, True, None, *PLAIN, False),
            "attention_entropy_backward": (
                dout, entropy, None, None, q, k, v, temperature, None, out, rows, None, True, None,
                *PLAIN,
                *[True] * 4, *[False] * 3,
            ),
            "temperature_softmax": (scores, temperature, None, True),
            "temperature_softmax_backward": (
                dscores, entropy, None, scores, temperature, None, statistics, True, True, True,
            ),
            "scaled_ffn": (x, *layer),
            "scaled_ffn_backward": (dy, x, *layer, True, True),
        }.items():  # fmt: skip
            found[f"{operator}, {str(dtype).removeprefix('torch.')}"] = (operator, arguments)
    return found


def main() -> None:
    """Times every operator of both."""
    command = parser(__doc__.splitlines()[0])
    command.add_argument("wheel", type=Path)
    given = command.parse_args()
    libraries(given.wheel)
    torch.set_num_threads(given.threads)
    rounds, rows = 5 if given.quick else given.rounds, []
    for name, (operator, arguments) in cases().items():
        contenders = {
            who: partial(getattr(getattr(torch.ops, namespace), operator), *arguments)
            for who, namespace in NAMESPACES.items()
        }
        times = interleaved(contenders, rounds, cpu_time=given.cpu_time)
        ratio = times["wheel"].ratio_to(times["source"])
        middle = f"{ratio.median:.3f} ({ratio.lower:.3f} .. {ratio.upper:.3f})"
        rows.append([name, *map(str, times.values()), middle])
    table = markdown_table(["", "source", "wheel", "ratio"], rows)
    title = "# The operators of a wheel against a build from source"
    method = METHOD.format(rounds=rounds, clock="CPU time" if given.cpu_time else "the wall clock")
    options = f"--threads {given.threads} --rounds {rounds}{' --cpu-time' * given.cpu_time}"
    said = f"`python benchmarks/wheel_speed.py dist/{given.wheel.name} {options}`"
    publish("\n\n".join([title, said, machine(), method, table]), given.output)


if __name__ == "__main__":
    main()
