"""The attention of every head on one line of text, with the tokens on hovering."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from aero.analysis.figures.attention import plot_attention, row_entropies
from aero.reading import shown
from aero.report.networks import Network
from aero.report.picture import Picture

__all__ = ["draw_attention", "row_titles", "triangles"]


def draw_attention(networks: Sequence[Network]) -> list[Picture]:
    """Every head on the line of `sample.json`, a picture per network that has one."""
    pictures = []
    for network in networks:
        sample = network.shown_run.sample
        if sample is None:
            continue
        attention = triangles(sample["attention"])
        layers, heads = attention.shape[:2]
        figure = Figure(figsize=(5.6, 0.5 + 5.2 * heads / layers), layout="constrained")
        plot_attention(attention, title=network.name, axes=figure.subplots())
        caption = f"{network.name}: where every head looks in the line {shown(sample['text'])}"
        name = f"attention_{network.shown_run.info['slug']}"
        titles = {"rows": list(row_titles(attention, sample["tokens"]))}
        pictures.append(Picture.of(name, figure, caption, titles))
    return pictures


def triangles(rows: Any) -> NDArray[np.float64]:
    """Triangles [L][H] of rows with i + 1 weights as [L, H, T, T]."""
    size = len(rows[0][0])
    padded = [
        [[row + [0.0] * (size - len(row)) for row in head] for head in layer] for layer in rows
    ]
    return np.asarray(padded, dtype=np.float64)


def row_titles(attention: NDArray[np.float64], tokens: Sequence[str]) -> Iterator[str]:
    """Of every row of every head: its entropy, and the three tokens it looks at most."""
    entropies = row_entropies(attention)
    words = [shown(token) for token in tokens]
    for layer, head, row in np.ndindex(entropies.shape):
        weights = attention[layer, head, row, : row + 1]
        seen = ", ".join(
            f"{words[key]} {weights[key]:.0%}" for key in np.argsort(-weights, kind="stable")[:3]
        )
        yield (
            f"layer {layer}, head {head}, at {words[row]}: {entropies[layer, head, row]:.2f} of "
            f"{math.log(row + 1):.2f} nats; looks at {seen}"
        )
