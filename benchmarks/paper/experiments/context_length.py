"""What a longer context is worth: networks of two contexts on the same tokens of the same windows.

    python -m benchmarks.paper table8 --output runs/table8 --cache-dir runs/corpora
    python -m benchmarks.paper.experiments.context_length runs/table8/cells/*/* \
        --cache-dir runs/corpora --results benchmarks/results/context_length_<hardware>

Runs are folders of `aero train` of equal tokens and tokens per step. Validation text is cut into
windows of the longest context. Networks of that context read whole windows; all read the two halves
alone too. First halves give every network the same context, so a difference there is no matter of
context. In second halves the first half is the context that only the longer network can read.
Nothing is timed.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import yaml
from numpy.typing import NDArray

from aero.internals.atomic_files import write_bytes_atomically, write_json_atomically
from aero.internals.machine import git_commit, hardware, package_versions
from aero.internals.records import as_dict
from aero.saved.loading import load_saved_network
from aero.tables import markdown_table
from aero.train.data.prepared_data import prepare_data
from aero.train.data.windows import validation_windows
from benchmarks.paper.cells import plan_target

WINDOWS_AT_ONCE = 16


def perplexity(model: Any, windows: NDArray[np.int64], counted: int) -> float:
    """Perplexity of the last `counted` tokens of windows [N, T]."""
    total = 0.0
    with torch.inference_mode():
        for chunk in np.array_split(windows, math.ceil(len(windows) / WINDOWS_AT_ONCE)):
            ids = torch.from_numpy(chunk)
            logits = model(input_ids=ids, use_cache=False).logits[:, -counted - 1 : -1]
            targets = ids[:, -counted:].flatten()
            total += F.cross_entropy(logits.flatten(0, 1).float(), targets, reduction="sum").item()
    return math.exp(total / (len(windows) * counted))


def measured(run: Path, windows: NDArray[np.int64]) -> dict[str, Any]:
    """Perplexities of a run on halves of windows [N, T], and on second halves after first ones."""
    config = yaml.safe_load((run / "config.yaml").read_text())
    context, half = config["model"]["context_length"], windows.shape[1] // 2
    model = load_saved_network(run / "model")
    model.train(False)
    # The first token of a half has nothing before it.
    reads_all = context >= windows.shape[1]
    return {
        "label": config["label"],
        "context": context,
        "seed": config["seed"],
        "first half": perplexity(model, windows[:, :half], half - 1),
        "second half alone": perplexity(model, windows[:, half:], half - 1),
        "second half after the first": perplexity(model, windows, half - 1) if reads_all else None,
    }


PAGE = """# What a longer context is worth

`python -m benchmarks.paper.experiments.context_length`: networks of `{command}`, two contexts at \
equal tokens and equal tokens per step. Perplexity of {windows:,} validation windows of {longest} \
tokens. Networks of both contexts read the halves of a window alone, and those of the longer \
context the second half after the first too. [What it means](../../docs/paper.md#why-claims-fail).

{hardware}, commit {git_commit}.

"""


def main() -> None:
    """Measures every run and writes a page and its numbers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--cache-dir", type=Path, default=Path("runs/corpora"))
    ours = "python -m benchmarks.paper table8"
    parser.add_argument("--command", default=ours, help="that made the runs")
    parser.add_argument("--results", type=Path, required=True, help="page and JSON, without suffix")
    given = parser.parse_args()
    torch.set_num_threads(1)
    cells = plan_target("table8", "mini").cells
    longest = max(cell.recipe.model.context_length for cell in cells)
    data = prepare_data(cells[0].recipe.data, cache_dir=given.cache_dir, context_length=longest)
    starts = validation_windows(data.validation, longest, max_tokens=None)
    windows = data.validation[starts[:, None] + np.arange(longest)].astype(np.int64)
    runs = []
    for folder in given.runs:
        runs.append(measured(folder, windows))
        print(runs[-1], flush=True)
    runs.sort(key=lambda run: (run["label"], run["context"], run["seed"]))
    facts = {
        "command": given.command,
        "hardware": hardware(),
        "versions": package_versions(),
        "git_commit": git_commit(),
        "corpus": as_dict(data.record()),
        "windows": len(windows),
        "longest": longest,
    }
    write_json_atomically(given.results.with_suffix(".json"), {**facts, "runs": runs})
    rows = [
        [f"`{run['label']}`" if name == "label" else shown(run[name]) for name in run]
        for run in runs
    ]
    page = PAGE.format(**facts) + markdown_table([*runs[0]], rows, right=range(1, 6)) + "\n"
    write_bytes_atomically(given.results.with_suffix(".md"), page.encode())


def shown(value: float | None) -> str:
    """A cell of the table."""
    return "" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
