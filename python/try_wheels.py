"""Installs each wheel of dist/ into a new environment and runs tests against it there.

    python python/try_wheels.py --torch 2.13.0 python3.11     # with all dependencies
    python python/try_wheels.py python3.10 python3.12         # without torch: costs, no operators

A result stands in benchmarks/results/platforms_*.json under its platform, Python and torch. `pip`
chooses the build of torch: on Linux the usual index has the one with gigabytes of CUDA.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

from build_wheels import DIST, ROOT, WORK, release, run

_FOLDER = ROOT / "benchmarks" / "results"
RESULTS = max(
    _FOLDER.glob("platforms_*.json"), default=_FOLDER / f"platforms_{time.strftime('%Y%m')}.json"
)
#: Dependencies that need torch or serve trainings alone.
OF_TRAINING = {"accelerate", "tensorboard", "tokenizers", "torch", "tqdm", "transformers"}
WITHOUT_TORCH = [
    "mpc", "fixed_point/test_fixed_point.py", "test_architecture.py", "test_cli_cost.py",
    "test_reading.py", "test_tables.py", "report/test_cost_pages.py",
]  # fmt: skip
WITH_TORCH = [
    *WITHOUT_TORCH, "ops/test_temperature_softmax.py", "ops/test_entropy_regularization.py",
    "ops/test_scaled_ffn.py", "ops/test_attention_entropy.py", "nn/test_attention.py",
    "nn/test_feed_forward.py", "nn/test_norm.py", "test_cli_doctor.py",
]  # fmt: skip


def wheel_for(version: tuple[int, int]) -> Path:
    """The wheel of dist/ for a Python."""
    found = [*DIST.glob(f"*-cp{version[0]}{version[1]}-*.whl")]
    if len(found) != 1:
        raise SystemExit(f"try_wheels: dist must hold one wheel for {version}, has {len(found)}")
    return found[0]


def requirements(wheel: Path, torch: str | None) -> list[str]:
    """What pip is asked for beside the wheel."""
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (n for n in opened.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = opened.read(name).decode("utf-8")
    tools = ["pytest>=8,<10", "hypothesis>=6.100,<7", "ipython>=8,<10"]
    if torch is not None:
        return [f"torch=={torch}", *tools]
    needed = re.findall(r"^Requires-Dist: ([^;\n]+)$", metadata, re.MULTILINE)
    return tools + [n for n in needed if re.split(r"[\s<>=!~\[(]", n)[0] not in OF_TRAINING]


def tried(python: str, torch: str | None) -> dict[str, Any]:
    """What happened to one wheel in one environment.

    Args:
        python: of which the environment is made.
        torch: version of torch that the environment gets; None: none.
    """
    version = release(python)
    wheel, folder = wheel_for(version), WORK / "tried"
    shutil.rmtree(folder, ignore_errors=True)
    run(python, "-m", "venv", folder)
    inside = folder / "bin" / "python"
    pip = (inside, "-m", "pip", "install", "--disable-pip-version-check")
    began = time.perf_counter()
    alone = () if torch else ("--no-deps",)
    if torch:
        run(*pip, f"torch=={torch}")
    run(*pip, *alone, wheel)
    installed = time.perf_counter() - began
    began = time.perf_counter()
    said = run(inside, "-c", "import aero; print(aero.__version__, aero.__file__)")
    imported = time.perf_counter() - began
    if str(folder) not in said:
        raise SystemExit(f"try_wheels: aero was imported from elsewhere: {said}")
    run(*pip, *requirements(wheel, torch))
    names = WITH_TORCH if torch else WITHOUT_TORCH
    tests = [ROOT / "tests" / "python" / name for name in names]
    command = [inside, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True)
    print(done.stdout[-3000:] if done.returncode else done.stdout.splitlines()[-1])
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|error)", done.stdout)}
    return {
        "platform": f"{platform.system()} {platform.machine()}",
        "python": ".".join(map(str, version)),
        "torch": torch,
        "wheel": wheel.name,
        "wheel_bytes": wheel.stat().st_size,
        "install_seconds": round(installed, 1),
        "import_seconds": round(imported, 2),
        "passed": counts.get("passed", 0),
        "failed": counts.get("failed", 0) + counts.get("error", 0),
        "how": "native",
    }


def record(result: dict[str, Any]) -> None:
    """Puts a result in the place of an earlier one of the same platform, Python and torch."""
    key = ("platform", "python", "torch")
    kept = json.loads(RESULTS.read_text()) if RESULTS.is_file() else []
    kept = [row for row in kept if any(row[k] != result[k] for k in key)]
    kept = sorted([*kept, result], key=lambda row: [str(row[k]).zfill(8) for k in key])
    RESULTS.write_text(json.dumps(kept, indent=2) + "\n")


def main() -> None:
    """Tries the wheel of every Python that the command names; fails where a test fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python", nargs="*", default=[sys.executable])
    parser.add_argument("--torch", help="version, such as 2.13.0; default: without torch")
    given = parser.parse_args()
    failed = 0
    for python in given.python:
        result = tried(python, given.torch)
        record(result)
        failed += result["failed"] + (result["passed"] == 0)
        print(json.dumps(result))
    if failed:
        raise SystemExit("try_wheels: tests failed")


if __name__ == "__main__":
    main()
