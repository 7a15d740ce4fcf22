"""float32 attention on the emulated GPU: its error does not grow with the number of terms.

Products of the emulation round toward zero once per instruction. The committed page of errors comes
from this file, in three minutes of one core:

    python -m tests.python.test_cuda_float32_sums
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from .emulated_gpu import ROOT, built, with_changed_kernels

PAGE = ROOT / "benchmarks" / "results" / "cuda_float32_sums_emulated_202611.md"
README = ROOT / "kernels" / "cuda" / "README.md"
WIDTHS = (32, 64, 96, 128, 256)
LENGTHS = (256, 1024, 4096, 16384)
#: The bound of every pair of head width and length in tests, in half a minute.
CASES = [(width, length) for width in WIDTHS for length in (256, 4096)] + [(64, 1024), (64, 16384)]
#: Where a tile's sum is kept apart from the running sum.
APART = "static constexpr bool kSumsTilesApart = true;"
Errors = dict[tuple[int, int], list[float]]  # (D, N) -> of out, dq, dk, dv


def budget(width: int) -> float:
    """Relative rms error allowed for out, dq, dk and dv, whatever T and S.

    A score is 3 D / 8 instructions, each of which takes up to 2^-23 of it away, and a tile of up to
    64 rows takes as much from its share of the sum. The roundings of weights and of sums over tiles
    go both ways.
    """
    return 3 * (width + 64) / 8 * 2**-23 + 1e-6


def driver_of(folder: Path, kernels: Path = ROOT / "kernels") -> Path:
    # -O2 takes three seconds more for two programs, and saves them half a second.
    return built("cuda_float32_sums.cpp", folder, kernels, "-O1")


def broken(folder: Path) -> Path:
    """Kernels whose running sums go through the tensor cores."""
    assert (ROOT / "kernels" / "cuda" / "products.h").read_text().count(APART) == 1
    return with_changed_kernels(folder, ("products.h", APART, APART.replace("true", "false")))


def errors(driver: Path, cases: list[tuple[int, int]]) -> Errors:
    said = subprocess.run(
        [driver, *(str(number) for case in cases for number in case)],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert said.returncode == 0, said.stdout
    lines = [line.split() for line in said.stdout.splitlines()]
    return {(int(line[0]), int(line[1])): [float(word) for word in line[2:]] for line in lines}


def test_the_error_of_float32_is_in_its_budget_however_much_is_summed(tmp_path: Path) -> None:
    found = errors(driver_of(tmp_path), CASES)
    assert list(found) == CASES
    for (width, length), of in found.items():
        assert 0 < max(of) <= budget(width), f"D = {width}, N = {length}: {of}"


def test_running_sums_in_the_tensor_cores_are_over_the_budget(tmp_path: Path) -> None:
    driver = driver_of(tmp_path, broken(tmp_path))
    for (width, length), of in errors(driver, [(64, 1024), (128, 4096)]).items():
        assert min(of) > budget(width), f"D = {width}, N = {length}: {of}"


def rows(text: str) -> list[list[str]]:
    """The cells of the tables' rows that are all numbers."""
    lines = (line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|"))
    return [cells for cells in lines if all(re.fullmatch(r"[\d.,e-]+", cell) for cell in cells)]


def test_the_page_is_in_the_budget_and_the_readme_quotes_it() -> None:
    now, before = PAGE.read_text().split("## If ")
    measured = {(int(c[0]), int(c[1].replace(",", ""))): c[2:] for c in rows(now)}
    assert list(measured) == [(width, length) for width in WIDTHS for length in LENGTHS]
    for (width, length), cells in measured.items():
        assert max(map(float, cells)) <= budget(width), f"D = {width}, N = {length}"
    through = {int(c[1].replace(",", "")): c[2:] for c in rows(before)}
    quoted = [row for row in rows(README.read_text()) if len(row) == 9]
    assert [[c[0].replace(",", ""), *c[1:]] for c in quoted] == [
        [str(n), *measured[64, n], *through[n]] for n in LENGTHS
    ]


def table(found: Errors) -> str:
    lines = [
        f"| {width} | {length:,} | " + " | ".join(f"{error:.1e}" for error in of) + " |\n"
        for (width, length), of in found.items()
    ]
    return "| D | N | out | dq | dk | dv |\n|---|---|---|---|---|---|\n" + "".join(lines)


def page(now: Errors, through: Errors) -> str:
    return f"""# Errors of float32 attention on the emulated GPU

Relative rms errors of `attention_entropy` against its definition in double, on the emulation of
`tests/cpp/kernels/cuda`: products are exact and rounded toward zero once per instruction. Inputs
are standard normal, one head, no causal rule. out and dq are sums over N keys for 16 queries; dk
and dv are sums over N queries for 16 keys. The numbers are not measured on a GPU: how its tensor
cores round inside is not documented.

    python -m tests.python.test_cuda_float32_sums

{table(now)}
## If the running sums went through the tensor cores

The same with `kSumsTilesApart = false` in `kernels/cuda/products.h`: every eight rows round a sum
toward zero three times, and the error grows with N.

{table(through)}"""


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        every = [(width, length) for width in WIDTHS for length in LENGTHS]
        now = errors(driver_of(folder), every)
        through = errors(driver_of(folder, broken(folder)), [c for c in every if c[0] == 64])
    PAGE.write_text(page(now, through))
    sys.stdout.write(PAGE.read_text())
