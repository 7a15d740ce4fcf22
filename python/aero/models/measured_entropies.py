"""The entropies that were measured of a model: statistics, text, a table and a picture.

Letters: L layers, B batch, H heads, T tokens, S keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from aero.analysis import summarize_entropies
from aero.analysis.statistics import layerwise_mean
from aero.analysis.summary import EntropySummary
from aero.internals.errors import extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False)
class RowEntropies:
    """The result of `entropies`: a line per layer when printed, a table of heads in a notebook.

    Attributes:
        layers: L tensors [B, H, T], nats, float32; NaN in rows of padding.
        row_mask: [B, T], False for rows of padding.
        visible_keys: [L, B, T], how many keys each row sees; layers differ where only some have a
            window.
        temperatures: of AERO networks that have them, L arrays [H, T]; else None.
        thresholds: learned, of networks that have them, [L, H], fractions; else None.
        attention_maps: where they were asked for, L tensors [B, H, T, S], float32: the share of
            each key in its row, after temperature, mask, window and cap. A row sums to one, without
            the part that a sink takes; NaN in rows of padding. Else None.
    """

    layers: tuple[Tensor, ...]
    row_mask: Tensor
    visible_keys: Tensor
    temperatures: list[Any] | None = None
    thresholds: Any = None
    attention_maps: tuple[Tensor, ...] | None = None

    def summary(self, *, context_length: int | None = None) -> EntropySummary:
        """Statistics without the padding: heads, layers, positions, collapse and overload.

        Args:
            context_length: T of the reference log T; default: the T of this batch.
        """
        return summarize_entropies(
            np.stack([layer.cpu().numpy() for layer in self.layers]),
            row_mask=self.row_mask.cpu().numpy(),
            visible_keys=self.visible_keys.cpu().numpy(),
            context_length=context_length,
            temperatures=self.temperatures,
            thresholds=self.thresholds,
        )

    def to_scalars(self) -> dict[str, float]:
        """Returns names and mean entropies, nats, as W&B, trackio and TensorBoard take them.

        Returns:
            ``entropy/layer_i/head_j`` and ``entropy/layer_i/mean``, the mean of its heads that are
            not NaN.

        Example:
            >>> import torch
            >>> from aero.models.measured_entropies import RowEntropies
            >>> keys = torch.tensor([[[1, 2]]])
            >>> found = RowEntropies((torch.tensor([[[0.0, 0.5]]]),), keys[0] > 0, keys)
            >>> found.to_scalars()
            {'entropy/layer_0/head_0': 0.25, 'entropy/layer_0/mean': 0.25}
        """
        scalars = {}
        heads = self.summary().head_entropy
        for layer, (row, mean) in enumerate(zip(heads, layerwise_mean(heads), strict=True)):
            for head, value in enumerate(row):
                scalars[f"entropy/layer_{layer}/head_{head}"] = float(value)
            scalars[f"entropy/layer_{layer}/mean"] = float(mean)
        return scalars

    def plot(self, *, title: str = "", axes: Axes | None = None) -> Axes:
        """Draws every head as a share of the most that it can reach, layers downwards.

        Args:
            title: above the panel.
            axes: of matplotlib, where to draw; None makes a figure.

        Returns:
            The Axes.
        """
        with extra("report"):
            from aero.analysis import plot_entropy_heat_map

        shares = self.summary().head_entropy_normalized_visible
        return plot_entropy_heat_map(shares, title=title, axes=axes)

    def __str__(self) -> str:
        heads = self.summary().head_entropy
        # Of a head that looks at all keys that it sees alike.
        logs = self.visible_keys.clamp(min=1).double().log()
        largest = (logs * self.row_mask).sum(dim=(1, 2)) / self.row_mask.sum()
        layers = zip(layerwise_mean(heads), heads, largest.tolist(), strict=True)
        return "\n".join(
            f"layer {index}: mean {mean:.3f} nats, heads {row.min():.3f} to {row.max():.3f} "
            f"of at most {most:.3f}"
            for index, (mean, row, most) in enumerate(layers)
        )

    def _repr_html_(self) -> str:
        """A table of heads in nats, coloured by the share of the most that each can reach."""
        summary = self.summary()
        shares = np.nan_to_num(summary.head_entropy_normalized_visible).clip(0, 1)
        rows = [
            f"<tr><th>layer {layer}</th>"
            + "".join(
                f'<td style="background: rgba(246, 166, 35, {share:.2f})">{value:.2f}</td>'
                for value, share in zip(values, shades, strict=True)
            )
            + "</tr>"
            for layer, (values, shades) in enumerate(zip(summary.head_entropy, shares, strict=True))
        ]
        heads = "".join(f"<th>head {head}</th>" for head in range(shares.shape[1]))
        caption = "Mean entropy in nats; the colour is its share of the most that a head can reach."
        return (
            f"<table><caption>{caption}</caption><thead><tr><th></th>{heads}</tr></thead>"
            f"<tbody>{''.join(rows)}</tbody></table>"
        )
