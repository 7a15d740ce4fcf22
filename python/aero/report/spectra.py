"""The spectra of FFN activations as a table of a report."""

from __future__ import annotations

import statistics

from aero.analysis.spectra import SPECTRA
from aero.report.report_file import Report

_HEADER = (
    "network", "SE before", "PR before", "EEE before", "SE after", "PR after", "EEE after", "JS",
)  # fmt: skip


def spectra_table(report: Report) -> tuple[list[str], list[list[str]]]:
    """Returns header and rows, means over the layers; no row for networks without activations."""
    rows = []
    for entry in report.networks:
        layers = [layer for layer in entry.ffn_spectra or () if layer is not None]
        if layers:
            rows.append([entry.name, *(_mean([each[name] for each in layers]) for name in SPECTRA)])
    return [*_HEADER], rows


def _mean(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.fmean(known):.3g}" if known else "-"
