"""The cost of statistics and temperature: the attention kernels against themselves without them.

    python benchmarks/entropy_share.py

The opponent is the same source, compiled the same way, with the expressions of REMOVED taken out:
the second sum of a row, the entropy's part of the gradient of the scores, and the gradient of the
temperature. With the largest key, calls also return the largest score and its key, and
their backward passes add its gradient. One thread, CPU time.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

from peaks import PROGRAMS, ROOT, compiled
from timer import Quartiles, interleaved, parser

from aero._library import cpu_isa
from aero.tables import markdown_table

# As CMakeLists.txt compiles the kernels: tuned for the very processor, gcc 12 makes others of them.
AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512")
AVX512BF16 = (*AVX512, "-mavx512bf16")
FLAGS = {
    "scalar": (),
    "avx2": AVX2,
    "avx512": AVX512,
    "avx512bf16": AVX512BF16,
    "amx": (*AVX512BF16, "-mamx-tile", "-mamx-bf16"),
}
SIZES = ((2, 12, 128), (1, 6, 512), (1, 3, 1024))  # B, H, T
REMOVED = {
    "online_softmax.h": (
        "score_sum = factor * score_sum + delta * sum;",
        "score_sum += weight * x;",
    ),
    "cpu/attention_row_gradients.h": (" - dentropy * z",),
    "cpu/attention_entropy_backward.h": ("dtemperature += result.dscore * result.z;",),
}


def without_entropy() -> Path:
    """A copy of the kernels in which nothing belongs to entropy or temperature."""
    root = Path(PROGRAMS.name, "without_entropy")
    shutil.copytree(ROOT / "kernels", root / "kernels")
    for name, expressions in REMOVED.items():
        path = root / "kernels" / name
        text = path.read_text()
        for expression in expressions:
            if text.count(expression) != 1:
                raise SystemExit(f"{path.name} must hold `{expression}` once: adapt {__file__}")
            text = text.replace(expression, "")
        path.write_text(text)
    return root


def libraries() -> dict[str, ctypes.CDLL]:
    source = Path(__file__).with_suffix(".cpp")
    flags = ("-shared", "-fPIC", "-fno-math-errno", "-w", "-march=x86-64", "-mtune=generic")
    flags += FLAGS[cpu_isa()]
    built = {
        "with": compiled(source, "with.so", *flags),
        "without": compiled(
            source, "without.so", f"-I{without_entropy()}", "-DAERO_WITHOUT_ENTROPY", *flags
        ),
    }
    return {name: ctypes.CDLL(str(path)) for name, path in built.items()}


def shares(rounds: int) -> list[tuple[str, int, str, Quartiles, Quartiles]]:
    """dtype, T, direction and two times over that of the reduced kernels.

    The first is with the entropy, the second with the largest key too.
    """
    found = []
    loaded = libraries()
    for library in loaded.values():
        library.prepare.restype = ctypes.c_void_p
        library.prepare.argtypes = [ctypes.c_bool, *[ctypes.c_int64] * 4, ctypes.c_bool]
    for dtype, direction, size in itertools.product(
        ("float32", "bfloat16"), ("forward", "backward"), SIZES
    ):
        calls: dict[str, Callable[[], object]] = {}
        prepared = []
        for name, which, largest in (
            ("without", "without", False), ("entropy", "with", False), ("all", "with", True)
        ):  # fmt: skip
            library = loaded[which]
            call = ctypes.c_void_p(library.prepare(dtype == "bfloat16", *size, 64, largest))
            prepared.append((library, call))
            calls[name] = functools.partial(getattr(library, direction), call)
        times = interleaved(calls, rounds, cpu_time=True, sample_seconds=0.01)
        entropy, everything = (
            times[name].ratio_to(times["without"]) for name in ("entropy", "all")
        )
        found.append((dtype, size[2], direction, entropy, everything))
        for library, call in prepared:
            library.release(call)
    return found


def table(rounds: int) -> str:
    """The removed parts, the cost case by case, and the largest cost."""
    measured = shares(rounds)
    rows = [
        [dtype, str(length), direction, *(f"{100 * (r.median - 1):+.1f} %" for r in ratios)]
        for dtype, length, direction, *ratios in measured
    ]
    worst = [max(row[i].median - 1 for row in measured) for i in (3, 4)]
    return "\n\n".join(
        [
            "The kernels are compared with the same source compiled without three parts: the "
            "second sum of a row, the entropy's part of the gradient of the scores, and the "
            "temperature with its gradient. All statistics are these and the largest score with "
            "its key and its gradient. One thread, CPU time.",
            markdown_table(["dtype", "T", "direction", "entropy", "all statistics"], rows),
            f"The largest cost is {worst[0]:.1%}, of all statistics {worst[1]:.1%}.",
        ]
    )


if __name__ == "__main__":
    print(table(parser(__doc__.splitlines()[0]).parse_args().rounds))
