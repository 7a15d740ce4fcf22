"""Installs each wheel of dist/ into a new environment and runs tests against it there.

    python packaging/try_wheels.py --torch 2.13.0 python3.11                # all dependencies
    python packaging/try_wheels.py --torch 2.11.0 --torch 2.12.1 python3.11 python3.12
    python packaging/try_wheels.py python3.10 python3.12                    # costs alone, no torch
    python packaging/try_wheels.py --cuda --torch 2.13.0 python3.11         # those of dist/cuda

A result stands in benchmarks/results/platforms_*.json under its platform, Python and torch. `pip`
chooses the build of torch: on Linux the usual index has the one with gigabytes of CUDA. An
environment is removed when it was tried.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import build_wheels
from build_wheels import ROOT, release, run

_FOLDER = ROOT / "benchmarks" / "results"
RESULTS = max(
    _FOLDER.glob("platforms_*.json"), default=_FOLDER / f"platforms_{time.strftime('%Y%m')}.json"
)
#: Dependencies that need torch.
OF_TORCH = {"torch", "transformers"}
#: What the tests need beside aero's dependencies.
TOOLS = ["pytest>=8,<10", "hypothesis>=6.100,<7", "ipython>=8,<10"]
WITHOUT_TORCH = [
    "mpc", "fixed_point/test_fixed_point.py", "test_architecture.py", "test_cli_cost.py",
    "test_reading.py", "test_tables.py", "report/test_cost_pages.py",
]  # fmt: skip
WITH_TORCH = [
    *WITHOUT_TORCH, "ops/test_attention_entropy.py", "ops/test_entropy_regularization.py",
    "ops/test_errors.py", "ops/test_scaled_ffn.py", "ops/test_second_derivatives.py",
    "ops/test_temperature_softmax.py", "ops/test_transforms.py", "nn/test_attention.py",
    "nn/test_feed_forward.py", "nn/test_norm.py", "test_cli_doctor.py",
]  # fmt: skip


def wheel_for(version: tuple[int, int], processor: str = platform.machine()) -> Path:
    """The wheel of dist/ for a Python and a processor."""
    found = [*build_wheels.DIST.glob(f"*-cp{version[0]}{version[1]}-*_{processor}.whl")]
    if len(found) != 1:
        raise SystemExit(
            f"try_wheels: {build_wheels.DIST} must hold one wheel for {version}, has {len(found)}"
        )
    return found[0]


def requirements(wheel: Path, torch: str | None) -> list[str]:
    """What pip is asked for beside the wheel."""
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (n for n in opened.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = opened.read(name).decode("utf-8")
    listed = re.findall(r"^Requires-Dist: ([^;\n]+)(?:; (.*))?$", metadata, re.MULTILINE)
    of_reports = [
        name for name, marker in listed if re.fullmatch(r"""extra == ['"]report['"]""", marker)
    ]
    if torch is not None:
        return [f"torch=={torch}", *TOOLS, *of_reports]
    needed = [name for name, marker in listed if not marker]
    core = [n for n in needed if re.split(r"[\s<>=!~\[(]", n)[0] not in OF_TORCH]
    return [*TOOLS, *core, *of_reports]


class NoTorchError(Exception):
    """The index has this version of torch for other Pythons alone."""


def install_torch(pip: tuple[object, ...], torch: str) -> None:
    """Installs one version of torch; NoTorchError where others are to be had."""
    try:
        run(*pip, f"torch=={torch}")
    except SystemExit as failure:
        if re.search(r"from versions: \d.*\n.*No matching distribution found", str(failure)):
            raise NoTorchError from None
        raise


def counted(python: Path, names: Iterable[str], *options: str) -> dict[str, int]:
    """How many of the named tests pass and fail in the environment of a Python."""
    tests = [ROOT / "tests" / "python" / name for name in names]
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *tests]
    # AOTInductor may write libraries that ask for an executable stack: glibc 2.41 refuses them.
    environment = {**os.environ, "GLIBC_TUNABLES": "glibc.rtld.execstack=2"}
    done = subprocess.run(
        [*map(str, command)], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    print(done.stdout[-3000:] if done.returncode else done.stdout.splitlines()[-1], flush=True)
    found = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|error)", done.stdout)}
    failed = found.get("failed", 0) + found.get("error", 0)
    return {"passed": found.get("passed", 0), "failed": failed}


def tried(python: str, torch: str | None, folder: Path) -> dict[str, Any]:
    """What happened to one wheel in one environment.

    Args:
        python: of which the environment is made.
        torch: version of torch that the environment gets; None: none.
        folder: of the environment.
    """
    version = release(python)
    wheel = wheel_for(version)
    kernels = "" if build_wheels.DEFINES["AERO_CUDA"] == "OFF" else ", with CUDA kernels"
    row = row_of(wheel, f"{platform.system()} {platform.machine()}{kernels}", torch, version)
    run(python, "-m", "venv", folder)
    inside = folder / "bin" / "python"
    pip = (inside, "-m", "pip", "install", "--disable-pip-version-check")
    began = time.perf_counter()
    alone = () if torch else ("--no-deps",)
    if torch:
        try:
            install_torch(pip, torch)
        except NoTorchError:
            return {**row, "passed": 0, "failed": 0, "how": "torch has no wheel"}
    run(*pip, *alone, wheel)
    installed = time.perf_counter() - began
    began = time.perf_counter()
    said = run(inside, "-c", "import aero; print(aero.__version__, aero.__file__)")
    imported = time.perf_counter() - began
    if str(folder) not in said:
        raise SystemExit(f"try_wheels: aero was imported from elsewhere: {said}")
    run(*pip, *requirements(wheel, torch))
    counts = counted(inside, WITH_TORCH if torch else WITHOUT_TORCH)
    build = run(inside, "-c", "import torch; print(torch.__version__)").strip() if torch else None
    return {
        **row,
        "torch_build": build,
        "libc": run(inside, "-c", "import os; print(os.confstr('CS_GNU_LIBC_VERSION'))").strip(),
        "install_seconds": round(installed, 1),
        "import_seconds": round(imported, 2),
        **counts,
        "how": "native",
    }


def row_of(wheel: Path, system: str, torch: str | None, python: tuple[int, int]) -> dict[str, Any]:
    """The first entries of a wheel's result."""
    return {
        "platform": system,
        "python": ".".join(map(str, python)),
        "torch": torch,
        "wheel": wheel.name,
        "wheel_bytes": wheel.stat().st_size,
    }


def record(result: dict[str, Any]) -> None:
    """Puts a result in the place of one of the same platform, Python and torch, with its commit."""
    result = {**result, "commit": run("git", "rev-parse", "--short", "HEAD").strip()}
    key = ("platform", "python", "torch")
    kept = json.loads(RESULTS.read_text()) if RESULTS.is_file() else []
    kept = [row for row in kept if any(row[k] != result[k] for k in key)]
    kept = sorted([*kept, result], key=lambda row: [str(row[k]).zfill(8) for k in key])
    RESULTS.write_text(json.dumps(kept, indent=2) + "\n")


def main() -> None:
    """Tries the wheel of every Python that the command names; fails where a test fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python", nargs="*", default=[sys.executable])
    parser.add_argument(
        "--torch", action="append", help="version, such as 2.13.0; repeatable; default: no torch"
    )
    parser.add_argument("--cuda", action="store_true", help="the wheels of dist/cuda")
    given = parser.parse_args()
    if given.cuda:
        build_wheels.build_with_cuda()
    failed = []
    for python, torch in itertools.product(given.python, given.torch or [None]):
        folder = build_wheels.WORK / "tried"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            result = tried(python, torch, folder)
        except SystemExit as failure:  # the others are tried all the same
            print(failure)
            failed.append(f"{python} with torch {torch}")
            continue
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        record(result)
        if result["failed"] or not (result["passed"] or result["how"] == "torch has no wheel"):
            failed.append(f"{python} with torch {torch}")
        print(json.dumps(result), flush=True)
    if failed:
        raise SystemExit(f"try_wheels: failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
