"""Pricing a private forward pass: warm, with its searches to do, and as a JSON-ready dictionary.

    python benchmarks/cost_simulator.py [--rounds 21] [--cpu-time] [--output table.md]

"first" runs in a fresh thread, where no matrix product's block is known yet, and starts that
thread; its opponent is the same call with all blocks known. The budget is a few milliseconds. The
sweep prices 10,000 combinations on one core, in a fresh thread too, and by the command, whose
processor seconds include its start; its budget is a second.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from timer import interleaved, machine, parser, publish

from aero import mpc
from aero.tables import markdown_table

NETWORKS = [
    ("SM+LN+G", "gpt2", 128),
    ("SM+ScFuFFN", "gpt2", 128),
    ("SM+LN+G", "gpt2", 1024),
    ("SM+LN+G", "gpt2-18l", 4096),
]


def contenders(label: str, sizes: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """The calls to time for one network."""

    def warm() -> mpc.CostReport:
        return mpc.simulate(label, **sizes)

    def first() -> None:
        thread = threading.Thread(target=warm)
        thread.start()
        thread.join()

    return {"warm": warm, "first": first, "to_dict": lambda: warm().to_dict()}


def measure(rounds: int, cpu_time: bool) -> str:
    """The table over networks and stacks."""
    rows = []
    for label, model, length in NETWORKS:
        for stack in mpc.stack_names():
            sizes = {"model": model, "context_length": length, "stack": stack}
            timings = interleaved(contenders(label, sizes), rounds, cpu_time=cpu_time)
            ratio = timings["first"].median_ms / timings["warm"].median_ms
            rows.append(
                [label, model, str(length), stack, *map(str, timings.values()), f"{ratio:.1f}"]
            )
    header = [
        "network", "model", "T", "stack", "warm, ms", "first, ms", "warm and to_dict, ms",
        "first / warm",
    ]  # fmt: skip
    return markdown_table(header, rows)


GRID: dict[str, Any] = {
    "stacks": ["spu-2024", "spu-0.9.5", "openbumblebee", "aero-optimized", "aero-approximate"],
    "num_layers": [2, 4, 6, 8, 12],
    "num_heads": [4, 6, 8, 12],
    "context_length": [32, 64, 128, 256, 512],
    "width": [384, 768],
    "exp_squarings": [5, 8],
}
LABELS = ["SM+LN+G", "SM+LN+R", "SM+ScFuFFN", "EReg(SM(t)+ScFuFFN)", "SM+FN+R"]


def measure_sweep(rounds: int, cpu_time: bool) -> str:
    """10,000 combinations, first and warm."""

    def warm() -> None:
        assert len(mpc.sweep(LABELS, **GRID)) == 10_000

    def first() -> None:
        thread = threading.Thread(target=warm)
        thread.start()
        thread.join()

    timings = interleaved({"warm": warm, "first": first}, min(rounds, 5), cpu_time=cpu_time)
    return markdown_table(
        ["sweep of 10,000, warm, ms", "first, ms"], [[str(t) for t in timings.values()]]
    )


def command() -> list[str]:
    """The same sweep as it is typed."""
    given = [word for label in LABELS for word in ("--label", label)]
    for name, values in GRID.items():
        texts = [str(value) for value in values]
        if name == "stacks":
            given += [word for text in texts for word in ("--stack", text)]
        else:
            given += ["--set", f"{name}={','.join(texts)}"]
    return ["cost", "sweep", *given, "--csv"]


def measure_command(rounds: int) -> str:
    """Processor seconds of the command, the least of some runs."""
    seconds = []
    for _ in range(min(rounds, 5)):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        called = [sys.executable, "-m", "aero.cli", *command()]
        done = subprocess.run(called, check=True, stdout=subprocess.PIPE, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert len(done.stdout.splitlines()) == 10_001
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return markdown_table(
        ["`aero cost sweep` of the same 10,000, --csv, processor seconds"],
        [[f"{min(seconds):.2f} to {max(seconds):.2f}"]],
    )


def main() -> None:
    """Measures and publishes."""
    arguments = parser(__doc__ or "").parse_args()
    sweep = measure_sweep(arguments.rounds, arguments.cpu_time)
    by_command = measure_command(arguments.rounds)
    table = measure(arguments.rounds, arguments.cpu_time)
    publish(f"{machine()}\n\n{table}\n\n{sweep}\n\n{by_command}", arguments.output)


if __name__ == "__main__":
    main()
