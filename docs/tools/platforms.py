"""The table of docs/reference/platforms.md: where aero was built and tested, from the record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
PLATFORMS = ("Linux x86_64", "Linux x86_64, with CUDA kernels", "Linux aarch64", "Darwin arm64")
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14", "3.15")
TORCHES = (None, "2.11", "2.12", "2.13", "2.14", "2.15")


def results() -> list[dict[str, Any]]:
    """The newest record of `make wheels`."""
    newest = max(RESULTS.glob("platforms_*.json"))
    rows: list[dict[str, Any]] = json.loads(newest.read_text(encoding="utf-8"))
    return rows


def cell(row: dict[str, Any] | None) -> str:
    """The record of one platform, Python and torch, in words."""
    if row is None:
        return "not tried"
    if row["failed"]:
        return f"{row['failed']} of {row['passed'] + row['failed']} tests fail"
    if row["passed"]:
        how = "" if row["how"] == "native" else f", {row['how']}"
        return f"tested: {row['passed']} tests{how}"
    return f"{row['how']}"


def platforms() -> str:
    """One table per platform: the Pythons tried down, torch across."""
    found = {
        (row["platform"], row["python"], row["torch"] and row["torch"].rpartition(".")[0]): row
        for row in results()
    }
    known = {(p, v, t) for p in PLATFORMS for v in PYTHONS for t in TORCHES}
    if strange := found.keys() - known:
        raise ValueError(f"platforms: no table has a place for {sorted(map(str, strange))}")
    heads = ["without torch", *(f"torch {t}" for t in TORCHES if t)]
    lines = []
    for platform in PLATFORMS:
        lines += [
            f"## {platform}",
            "",
            f"| Python | {' | '.join(heads)} |",
            "| --- " * (len(heads) + 1) + "|",
        ]
        tried = {python for name, python, _ in found if name == platform}
        for python in (python for python in PYTHONS if python in tried):
            cells = [cell(found.get((platform, python, torch))) for torch in TORCHES]
            lines.append(f"| {python} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)
