"""Tests if the bytes of a private run distinguish prompts of one length.

    python benchmarks/private/measure_traffic.py --output traffic.json --results PAGE.md

Needs the private environment (`make private`), for half an hour. SPU sends ciphertexts compressed,
so that their sizes are random. Three prompts of five tokens are run in turn, RUNS times each, over
loopback. Messages must be equal in all runs, in every stage and direction. For the bytes, one
permutation test of each network: the largest ratio, over stages and directions, of the variance
between prompts to the variance within them, against 10,000 orders of the prompts. Prompts differ
where its p-value is below LEVEL. Interrupted, the command goes on.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from comparison_tables import write_between_marks

from aero.cli.errors import note, one_line_errors, say
from aero.cli.private_calibration import export_random
from aero.internals.atomic_files import write_json_atomically
from aero.private.measuring.calibration import NetworkCell
from aero.private.parties.two_processes import generate_over_tcp
from aero.private.party_errors import PartyError
from aero.private.settings import PrivateSettings
from aero.tables import markdown_table

PROMPTS = {
    "one token": (0, 0, 0, 0, 0),
    "other token": (255,) * 5,
    "mixed": (231, 77, 195, 18, 242),
}
SIZES = {"num_layers": 2, "width": 64, "num_heads": 4, "vocab_size": 256}
LABELS = ("SM+ScFuFFN", "SM+LN+G")
RUNS = 15
LEVEL = 0.01
Run = dict[str, Any]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def measure(
    output: Annotated[Path, typer.Option(help="File of the runs; it goes on where it ended.")],
    results: Annotated[
        Path, typer.Option(help="Page whose <!-- traffic --> gets the table; made if missing.")
    ],
) -> None:
    """Runs the networks, tests their bytes, and writes the table."""
    runs: list[Run] = json.loads(output.read_text()) if output.exists() else []
    with one_line_errors(ValueError, OSError, PartyError), tempfile.TemporaryDirectory() as folder:
        for label in LABELS:
            place = Path(folder) / label
            export_random(NetworkCell(label, "mini", SIZES, 5), place)
            order = list(PROMPTS) * RUNS
            for prompt in order[sum(run["label"] == label for run in runs) :]:
                runs.append({"label": label, "prompt": prompt, "stages": one_run(place, prompt)})
                write_json_atomically(output, runs)
                note(f"{label}: {len(runs)} of {len(order) * len(LABELS)} runs")
        table = traffic_table(runs)
        write_between_marks(results, "traffic", table)
        say(table)


def one_run(place: Path, prompt: str) -> list[dict[str, Any]]:
    """Messages and bytes of each stage and direction."""
    [calls] = generate_over_tcp(place, PROMPTS[prompt], 1, PrivateSettings()).calls
    return [
        {
            "stage": call.name,
            "messages": [call.traffic.client_messages, call.traffic.server_messages],
            "bytes": [call.traffic.client_bytes, call.traffic.server_bytes],
        }
        for call in calls
    ]


def difference_of_prompts(sizes: np.ndarray, prompts: np.ndarray) -> float:
    """The largest ratio of variances between and within prompts.

    Args:
        sizes: bytes [runs, stages and directions], none of them constant.
        prompts: [runs], each run's.
    """
    groups = [sizes[prompts == each] for each in np.unique(prompts)]
    within = sum(((group - group.mean(0)) ** 2).sum(0) for group in groups)
    total = ((sizes - sizes.mean(0)) ** 2).sum(0)
    return float(((total - within) / within).max())


def p_value(sizes: np.ndarray, prompts: np.ndarray, orders: int = 10_000) -> float:
    """The share of orders of the prompts that differ at least as much."""
    generator = np.random.default_rng(0)
    found = difference_of_prompts(sizes, prompts)
    shuffled = (difference_of_prompts(sizes, generator.permutation(prompts)) for _ in range(orders))
    return (1 + sum(each >= found for each in shuffled)) / (1 + orders)


def found_shift(sizes: np.ndarray, prompts: np.ndarray) -> int:
    """Bytes, a power of two, that the test finds where one prompt has them more in any one column.

    Args:
        sizes: bytes [runs, stages and directions], none of them constant.
        prompts: [runs], each run's.
    """
    for bits in range(1, 40):
        shifts = 2.0**bits * np.outer(prompts == prompts[0], np.ones(sizes.shape[1]))
        moved = (sizes + shifts * column for column in np.eye(sizes.shape[1]))
        if all(p_value(each, prompts, orders=500) < LEVEL for each in moved):
            return 1 << bits
    raise ValueError("no shift is found")


def traffic_table(runs: list[Run]) -> str:
    """A row per network."""
    rows = []
    for label in LABELS:
        mine = [run for run in runs if run["label"] == label]
        messages = {json.dumps([each["messages"] for each in run["stages"]]) for run in mine}
        prompts = np.array([run["prompt"] for run in mine])
        sizes = np.array([[each["bytes"] for each in run["stages"]] for run in mine], float)
        whole = sizes.sum((1, 2))
        flat = sizes.reshape(len(mine), -1)
        varying = flat[:, flat.std(0) > 0]
        means = {each: whole[prompts == each].mean() for each in PROMPTS}
        p = p_value(varying, prompts)
        rows.append(
            [
                label,
                f"{len(mine)}",
                "equal" if len(messages) == 1 else "different",
                f"{flat.shape[1] - varying.shape[1]} of {flat.shape[1]}",
                f"{whole.mean():,.0f}",
                f"{whole.std(ddof=1):,.0f}",
                f"{max(means.values()) - min(means.values()):,.0f}",
                f"{found_shift(varying, prompts):,}",
                f"{p:.3f}",
                "yes" if p < LEVEL else "no",
            ]
        )
    head = (
        "network, runs, messages, equal in all bytes, bytes of a run, deviation of runs, "
        "largest difference of prompts' means, shift of one stage that is found, p, prompts differ"
    )
    return markdown_table(head.split(", "), rows)


if __name__ == "__main__":
    app()
