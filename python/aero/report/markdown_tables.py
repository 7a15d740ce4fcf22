"""The tables of report.md, made from the content of report.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aero.report import text
from aero.tables import markdown_table

__all__ = ["markdown_tables"]

Report = Mapping[str, Any]


def markdown_tables(report: Report) -> dict[str, str]:
    """Returns the tables by name; `seeds` and `spread` are empty where the report has none.

    Args:
        report: content of report.json.
    """
    return {
        "networks": _networks(report),
        "entropies": _entropies(report),
        "costs": _costs(report),
        "seeds": _seeds(report) if len(report["seeds"]) > 1 else "",
        "spread": _spread(report["seed_spread"]) if report["seed_spread"] else "",
    }


def _networks(report: Report) -> str:
    stack = report["stacks"][0]
    header = [
        "network", "perplexity", "bits per byte", "parameters", "FLOPs, paper's count",
        "FLOPs, executed", f"GB, {stack}", "nonlinear operations",
    ]  # fmt: skip
    rows = [
        [
            entry["name"],
            text.perplexity_cell(entry),
            text.with_spread(entry["bits_per_byte"], 3),
            text.large_count(entry["parameters"]),
            text.large_count(entry["flops"]["paper"]["total"]),
            text.large_count(entry["flops"]["executed"]["total"]),
            text.gigabytes(entry["private_inference"]["trained"][stack]["comm_bytes"]),
            text.operations(entry["nonlinear_operations"]),
        ]
        for entry in report["networks"]
    ]
    return markdown_table(header, rows, right=range(1, 7))


def _entropies(report: Report) -> str:
    header = [
        "network", "heads per quarter of the observed maximum (%)", "of log T (%)", "mean (nats)",
        "mean / log T", "mean of E / log(i+1)", "collapsed", "overloaded",
    ]  # fmt: skip
    rows = []
    for entry in report["networks"]:
        entropy = entry["entropy"]
        if not entropy:
            rows.append([entry["name"], "not analysed", *[""] * 6])
            continue
        broken = f"; NaN: {text.heads(entropy['nan_heads'])}" if entropy["nan_heads"] else ""
        rows.append(
            [
                entry["name"],
                text.quarters_cell(entry, "observed_max"),
                text.quarters_cell(entry, "log_context"),
                text.significant(entropy["mean"], 3),
                text.significant(entropy["mean_normalized_context"], 3),
                text.significant(entropy["mean_normalized_visible"], 3),
                text.heads(entropy["collapsed_log_context"]) + broken,
                text.heads(entropy["overloaded_log_context"]),
            ]
        )
    return markdown_table(header, rows, right=range(1, 6))


def _costs(report: Report) -> str:
    stacks = report["stacks"]
    header = ["network", *stacks, *(f"GPT-2, {stack}" for stack in stacks)]
    header += [f"GPT-2, {stacks[0]}, one LayerNorm more", "paper"]
    rows = []
    for entry in report["networks"]:
        cost = entry["private_inference"]
        gpt2, paper = cost["gpt2"] or {}, cost["paper"] or {}
        rows.append(
            [
                entry["name"],
                *(text.gigabytes(cost["trained"][stack]["comm_bytes"]) for stack in stacks),
                *(text.gigabytes(gpt2.get(stack, {}).get("comm_bytes")) for stack in stacks),
                text.gigabytes(cost["gpt2_one_more_layernorm"]),
                str(paper.get("comm_gigabytes") or "-"),
            ]
        )
    return markdown_table(header, rows, right=range(1, len(header)))


def _seeds(report: Report) -> str:
    rows = []
    for entry in report["networks"]:
        perplexity = entry["perplexity"] or {"minimum": None, "maximum": None}
        rows.append(
            [
                entry["name"],
                ", ".join(str(run["seed"]) for run in entry["runs"]),
                text.perplexity_cell(entry),
                text.significant(perplexity["minimum"]),
                text.significant(perplexity["maximum"]),
                text.with_spread(entry["bits_per_byte"], 3),
            ]
        )
    header = ["network", "seeds", "perplexity", "lowest", "highest", "bits per byte"]
    return markdown_table(header, rows, right=range(2, 6))


def _spread(spread: Mapping[str, Any]) -> str:
    rows = [
        [
            entry["name"],
            text.with_spread(entry["perplexity"]),
            text.with_spread(entry["bits_per_byte"], 3),
            "; ".join(entry["endings"]) or "none",
        ]
        for entry in spread["networks"]
    ]
    header = ["network", "perplexity", "bits per byte", "unfinished"]
    return markdown_table(header, rows, right=range(1, 3))
