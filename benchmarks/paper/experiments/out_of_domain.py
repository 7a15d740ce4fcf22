"""Running statistics against batch statistics on text of other kinds than the training text.

    python -m benchmarks.paper.experiments.out_of_domain RUN... --text NAME=FOLDER:PATTERN ... \
        --results PAGE

Runs are folders of `aero train`, of networks with foldable norms. Every text is read in the order
of its paths and cut after so many tokens of the run's own tokenizer. Nothing is timed.

Declared before the first run: per network and text, the difference of the two losses over seeds has
an interval by Student's t. The intervals hold together with 95 % (Bonferroni over the table). Below
0 running statistics are better, above 0 worse, and within 2 % of perplexity they are level.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import yaml

from aero.analysis.statistics import student_quantile
from aero.internals.atomic_files import write_bytes_atomically, write_json_atomically
from aero.internals.machine import git_commit, hardware, package_versions
from aero.saved.loading import load_saved_network
from aero.saved.tokenizer import bytes_per_token, load_tokenizer
from aero.tables import markdown_table
from aero.train.data.windows import validation_windows
from aero.train.runs.perplexity import measure_loss, norm_gap

LEVEL = math.log(1.02)
WORDS = {-1: "running better", 0: "level", 1: "running worse", None: "not decided"}


def text_of(named: str) -> tuple[str, str, int]:
    """Name, text and number of files of NAME=FOLDER:PATTERN."""
    name, _, place = named.partition("=")
    folder, _, pattern = place.rpartition(":")
    files = sorted(path for path in Path(folder).rglob(pattern) if path.is_file())
    if not files:
        raise SystemExit(f"out_of_domain: no files {pattern} in {folder}")
    return name, "\n".join(path.read_text("utf-8", errors="replace") for path in files), len(files)


def measured(run: Path, texts: dict[str, str], max_tokens: int) -> dict[str, dict[str, float]]:
    """Losses of a run on every text, nats per token."""
    config = yaml.safe_load((run / "config.yaml").read_text())
    context, batch = config["model"]["context_length"], config["training"]["tokens_per_step"]
    tokenizer = load_tokenizer(run / "model")
    model = load_saved_network(run / "model")
    model.train(False)
    found = {}
    for name, text in texts.items():
        # A token has four bytes at most on average, so the text is longer than what is taken.
        ids = tokenizer(text[: 8 * max_tokens], add_special_tokens=False)["input_ids"]
        data: Any = SimpleNamespace(
            validation=np.asarray(ids[:max_tokens], np.uint16),
            token_bytes=bytes_per_token(tokenizer),
        )
        gap = norm_gap(
            model, data, context_length=context, max_tokens=max_tokens, batch_tokens=batch
        )
        if gap is None:
            raise SystemExit(f"out_of_domain: {run.name} has no foldable norms")
        loss = measure_loss(
            model,
            data.validation,
            validation_windows(data.validation, context, max_tokens=max_tokens),
            token_bytes=data.token_bytes,
            context_length=context,
            batch_tokens=batch,
        )
        found[name] = {"perplexity": loss.perplexity, "gap": gap, "tokens": loss.tokens}
    return found


def row(label: str, text: str, cells: list[dict[str, float]], comparisons: int) -> dict[str, Any]:
    """One network on one text, over its seeds."""
    gaps = [cell["gap"] for cell in cells]
    tail = 0.025 / comparisons
    half = student_quantile(len(gaps) - 1, tail) * statistics.stdev(gaps) / math.sqrt(len(gaps))
    low, high = statistics.mean(gaps) - half, statistics.mean(gaps) + half
    verdict = -1 if high < 0 else 1 if low > 0 else None
    if low > -LEVEL and high < LEVEL:
        verdict = 0
    return {
        "label": label,
        "text": text,
        "perplexities": [cell["perplexity"] for cell in cells],
        "tokens": cells[0]["tokens"],
        "gaps": gaps,
        "low": low,
        "high": high,
        "verdict": WORDS[verdict],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--text", action="append", required=True, metavar="NAME=FOLDER:PATTERN")
    parser.add_argument("--max-tokens", type=int, default=131_072)
    parser.add_argument("--results", type=Path, required=True, help="page and JSON, without suffix")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    read = [text_of(named) for named in arguments.text]
    texts = {name: text for name, text, _ in read}
    by_label: dict[str, list[dict[str, dict[str, float]]]] = {}
    for run in arguments.runs:
        label = yaml.safe_load((run / "config.yaml").read_text())["label"]
        by_label.setdefault(label, []).append(measured(run, texts, arguments.max_tokens))
        print(run.name, by_label[label][-1], flush=True)
    comparisons = len(by_label) * len(texts)
    rows = [
        row(label, text, [run[text] for run in runs], comparisons)
        for label, runs in by_label.items()
        for text in texts
    ]
    facts = {
        "hardware": hardware(),
        "versions": package_versions(),
        "git_commit": git_commit(),
        "texts": [
            {
                "name": name,
                "files": files,
                "bytes": len(text.encode()),
                "sha256": hashlib.sha256(text.encode()).hexdigest(),
            }
            for name, text, files in read
        ],
        "rows": rows,
    }
    write_json_atomically(arguments.results.with_suffix(".json"), facts)
    head = "network, text, tokens, perplexity, running over batch statistics, interval, verdict"
    cells = [
        [
            f"`{found['label']}`",
            found["text"],
            f"{found['tokens']:,.0f}",
            f"{statistics.mean(found['perplexities']):.1f}",
            percent(statistics.mean(found["gaps"])),
            f"{percent(found['low'])} to {percent(found['high'])}",
            found["verdict"],
        ]
        for found in rows
    ]
    page = arguments.results.with_suffix(".md")
    table = markdown_table(head.split(", "), cells, right=[2, 3, 4])
    write_bytes_atomically(page, table.encode())
    print(table)


def percent(gap: float) -> str:
    """A difference of losses as one of perplexities."""
    return f"{100 * math.expm1(gap):+.1f} %"


if __name__ == "__main__":
    main()
