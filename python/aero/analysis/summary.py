"""All entropy statistics of a network from the entropies of its attention rows.

Letters: L layers, B sequences, H heads, T query positions. Entropies are in nats.
The entropy of one attention row is E_i = -sum_j a_ij log a_ij; a head's entropy is its mean over
rows and sequences (AERO, Section 2). A causal row i reaches log(i + 1) at most, so entropies come
normalised by log T (the paper) and by the log of the number of keys a row can see.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aero.analysis.statistics import heads_in_quarter, layerwise_mean, nan_counts, quarter_shares
from aero.internals.number_checks import whole

FloatArray = NDArray[np.float64]

# A row that sees one key has entropy 0 of at most log 1 = 0: that ratio says nothing, so it is not
# counted.
_SMALLEST_INFORMATIVE_KEY_COUNT = 2


@dataclass(frozen=True, eq=False)
class EntropySummary:
    """The result of `summarize_entropies`; `to_dict` is the content of a run's `analysis.json`.

    Attributes:
        head_entropy: [L, H], nats; NaN where a head produced NaN.
        head_entropy_normalized_context: [L, H], head entropy / log T.
        head_entropy_normalized_visible: [L, H], mean over rows of E_i / log(visible
            keys).
        entropy_by_position: [L, H, T], nats, mean over sequences; NaN where none has the position.
        context_length: T, which gives the reference log T.
        temperatures: per layer [H, T], [H] or [1], or None for a network without temperature.
        thresholds: [L, H], fractions of the maximum entropy, or None for a network without.
        ffn_spectra: per layer the numbers of `aero.analysis.spectra.describe_spectra`, or None for
            a layer without; None where they were not measured.
    """

    head_entropy: FloatArray
    head_entropy_normalized_context: FloatArray
    head_entropy_normalized_visible: FloatArray
    entropy_by_position: FloatArray
    context_length: int
    temperatures: tuple[FloatArray, ...] | None = None
    thresholds: FloatArray | None = None
    ffn_spectra: tuple[dict[str, float | None] | None, ...] | None = None

    @property
    def max_entropy(self) -> float:
        """Log T in nats, the entropy of a row that looks at all T tokens alike."""
        return float(np.log(self.context_length))

    @property
    def observed_max(self) -> float:
        """The largest finite head entropy in nats; 0 if no head is finite."""
        finite = self.head_entropy[np.isfinite(self.head_entropy)]
        return float(finite.max(initial=0.0))

    def to_dict(self) -> dict[str, Any]:
        """Returns the summary as strict JSON values: non-finite numbers become None."""
        maxima = {"observed_max": self.observed_max, "log_context": self.max_entropy}
        heads = self.head_entropy
        return {
            "head_entropy": _json_values(heads),
            "head_entropy_normalized_context": _json_values(self.head_entropy_normalized_context),
            "head_entropy_normalized_visible": _json_values(self.head_entropy_normalized_visible),
            "layerwise_mean": _json_values(layerwise_mean(heads)),
            "quarters": {
                name: _json_values(quarter_shares(heads, value)) for name, value in maxima.items()
            },
            "collapsed": heads_in_quarter(heads, self.observed_max, 0),
            "overloaded": heads_in_quarter(heads, self.observed_max, 3),
            "collapsed_log_context": heads_in_quarter(heads, self.max_entropy, 0),
            "overloaded_log_context": heads_in_quarter(heads, self.max_entropy, 3),
            "observed_max": self.observed_max,
            "max_entropy": self.max_entropy,
            "context_length": self.context_length,
            "nan_counts": nan_counts(heads).tolist(),
            "nan_heads": np.argwhere(~np.isfinite(heads)).tolist(),
            "temperature": self._temperature_dict(),
            "thresholds": None if self.thresholds is None else _json_values(self.thresholds),
            "ffn_spectra": None if self.ffn_spectra is None else list(self.ffn_spectra),
        }

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """Returns the content of `analysis.npz`.

        `entropy_by_position` is [L, H, T], `temperature` (only if there is one) [L, ...].
        """
        arrays = {"entropy_by_position": self.entropy_by_position.astype(np.float32)}
        if self.temperatures is not None:
            arrays["temperature"] = np.stack(self.temperatures).astype(np.float32)
        return arrays

    def _temperature_dict(self) -> dict[str, Any] | None:
        if self.temperatures is None:
            return None
        stacked = np.stack(self.temperatures)
        by_head = stacked.mean(axis=2) if stacked.ndim == 3 else stacked
        return {
            "shape": list(stacked.shape[1:]),
            "minimum": _json_values(stacked.min()),
            "maximum": _json_values(stacked.max()),
            "mean_by_head": _json_values(by_head),
        }


class EntropyAccumulator:
    """Adds up row entropies batch by batch: a long evaluation needs the memory of one batch.

    Args:
        context_length: T of the reference log T; None takes the T of the first batch.

    Example:
        >>> import numpy as np
        >>> from aero.analysis.summary import EntropyAccumulator
        >>> accumulator = EntropyAccumulator()
        >>> for batch in (np.zeros((1, 2, 1, 4)), np.ones((1, 2, 1, 4))):
        ...     accumulator.update(batch)
        >>> accumulator.summary().head_entropy
        array([[0.5]])
    """

    def __init__(self, *, context_length: int | None = None) -> None:
        length = None if context_length is None else whole(context_length)
        if context_length is not None and (length is None or length < 1):
            raise ValueError(
                "EntropyAccumulator: context_length must be an integer >= 1, "
                f"got {context_length!r}"
            )
        self._context_length = length
        self._sum: FloatArray | None = None  # [L, H, T]
        self._normalized_sum: FloatArray | None = None  # [L, H]
        self._rows: FloatArray = np.zeros(0)  # [T]
        self._normalized_rows: FloatArray = np.zeros(0)  # [L]

    def update(
        self,
        row_entropies: ArrayLike,
        *,
        row_mask: ArrayLike | None = None,
        visible_keys: ArrayLike | None = None,
    ) -> None:
        """Adds one batch.

        Args:
            row_entropies: [L, B, H, T], nats, any real dtype.
            row_mask: [B, T], true where a row counts; None counts all. Masked rows may hold NaN.
            visible_keys: [T], [B, T] or [L, B, T], number of keys a row can reach; None is causal,
                1..T.

        Raises:
            ValueError: a shape does not fit, or differs from the batches before.
        """
        rows = _numbers("row_entropies", row_entropies)
        if rows.ndim != 4 or rows.size == 0:
            raise ValueError(
                "summarize_entropies: row_entropies must be [L, B, H, T] without empty dimensions, "
                f"got {list(rows.shape)}"
            )
        layers, batch, heads, length = rows.shape
        mask = np.ones((batch, length)) if row_mask is None else row_mask
        mask = _fitting("row_mask", mask, {"B": batch, "T": length}, at_least=2)
        keys = np.arange(1, length + 1) if visible_keys is None else visible_keys
        keys = _fitting("visible_keys", keys, {"L": layers, "B": batch, "T": length}, at_least=1)
        counted = mask.astype(bool)
        if self._sum is None or self._normalized_sum is None:
            self._sum = np.zeros((layers, heads, length))
            self._normalized_sum = np.zeros((layers, heads))
            self._normalized_rows = np.zeros(layers)
            self._rows = np.zeros(length)
        elif self._sum.shape != (layers, heads, length):
            raise ValueError(
                "summarize_entropies: row_entropies must have the [L, H, T] of the batches before, "
                f"{list(self._sum.shape)}, got {[layers, heads, length]}"
            )
        # where, not a product: a masked row may hold NaN.
        kept = np.where(counted[None, :, None, :], rows, 0.0)
        self._sum += kept.sum(axis=1)
        self._rows += counted.sum(axis=0)
        informative = counted & (keys >= _SMALLEST_INFORMATIVE_KEY_COUNT)
        weight = np.where(
            informative, 1.0 / np.log(np.maximum(keys, _SMALLEST_INFORMATIVE_KEY_COUNT)), 0.0
        )
        self._normalized_sum += np.einsum("lbht,lbt->lh", kept, weight)
        self._normalized_rows += informative.sum(axis=(1, 2))

    def summary(
        self, *, temperatures: list[Any] | None = None, thresholds: ArrayLike | None = None
    ) -> EntropySummary:
        """Returns the statistics of everything added so far.

        Args:
            temperatures: per layer [H, T], [H] or [1] (None for a network without temperature).
            thresholds: [L, H] (None for a network without thresholds).

        Returns:
            The summary.

        Raises:
            ValueError: no row was counted, or a shape does not fit.
        """
        total = self._rows.sum()
        if self._sum is None or self._normalized_sum is None or total == 0:
            raise ValueError(
                "summarize_entropies: no row to summarise: row_mask must keep at least one row"
            )
        layers, heads, length = self._sum.shape
        context_length = length if self._context_length is None else self._context_length
        head_entropy = self._sum.sum(axis=2) / total
        # T = 1 has the reference log 1 = 0; every entropy is 0 then, and so is its share of it.
        log_context = float(np.log(context_length)) or 1.0
        return EntropySummary(
            head_entropy=head_entropy,
            head_entropy_normalized_context=head_entropy / log_context,
            head_entropy_normalized_visible=self._normalized_sum
            / np.maximum(self._normalized_rows, 1.0)[:, None],
            entropy_by_position=np.where(
                self._rows > 0, self._sum / np.maximum(self._rows, 1.0), np.nan
            ),
            context_length=context_length,
            temperatures=_checked_temperatures(temperatures, layers, heads, length),
            thresholds=_checked_thresholds(thresholds, layers, heads),
        )


def summarize_entropies(
    row_entropies: ArrayLike,
    *,
    row_mask: ArrayLike | None = None,
    visible_keys: ArrayLike | None = None,
    context_length: int | None = None,
    temperatures: list[Any] | None = None,
    thresholds: ArrayLike | None = None,
) -> EntropySummary:
    """Returns all entropy statistics of one set of attention rows.

    Args:
        row_entropies: [L, B, H, T], nats, any real dtype.
        row_mask: [B, T], true where a row counts; None counts all.
        visible_keys: [T], [B, T] or [L, B, T], number of keys a row can reach; None is causal,
            1..T.
        context_length: T of the reference log T; None takes the T of `row_entropies`.
        temperatures: learned, per layer [H, T], [H] or [1]; None for a network without.
        thresholds: learned, [L, H], fractions of the maximum entropy; None for a network without.

    Returns:
        The summary; `write_analysis` stores it, `to_dict` shows it as JSON values.

    Raises:
        ValueError: a shape does not fit, or no row is counted.

    Example:
        >>> import numpy as np
        >>> from aero.analysis import summarize_entropies
        >>> uniform = np.log(np.arange(1, 9)) * np.ones((2, 3, 4, 1))
        >>> summary = summarize_entropies(uniform)
        >>> summary.head_entropy_normalized_visible.round(6).tolist()
        [[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]
        >>> summary.to_dict()["quarters"]["observed_max"]
        [0.0, 0.0, 0.0, 1.0]
    """
    accumulator = EntropyAccumulator(context_length=context_length)
    accumulator.update(row_entropies, row_mask=row_mask, visible_keys=visible_keys)
    return accumulator.summary(temperatures=temperatures, thresholds=thresholds)


def _numbers(name: str, value: Any) -> FloatArray:
    """Real numbers of an array, a tensor of any dtype, with a gradient too, or several of these."""
    if isinstance(value, (list, tuple)) and value and all(hasattr(x, "detach") for x in value):
        return np.stack([_numbers(name, x) for x in value])
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value if value.is_complex() else value.double()
    array = np.asarray(value)
    if np.iscomplexobj(array):
        raise ValueError(f"summarize_entropies: {name} must be real, got {array.dtype}")
    return array.astype(np.float64)


def _fitting(name: str, value: ArrayLike, sizes: dict[str, int], *, at_least: int) -> NDArray[Any]:
    """The array in all of these sizes, of which it may lack the first down to so many."""
    array = np.asarray(value)
    wanted = tuple(sizes.values())
    if array.ndim < at_least or array.shape != wanted[max(len(wanted) - array.ndim, 0) :]:
        names = f"[{', '.join(sizes)}] = {list(wanted)}"
        without = f", or its last {at_least} or more" if at_least < len(sizes) else ""
        raise ValueError(
            f"summarize_entropies: {name} must be {names}{without}, got {list(array.shape)}"
        )
    return np.broadcast_to(array, wanted)


def _checked_temperatures(
    temperatures: list[Any] | None, layers: int, heads: int, length: int
) -> tuple[FloatArray, ...] | None:
    if temperatures is None:
        return None
    arrays = tuple(_numbers("temperatures", value) for value in temperatures)
    if len(arrays) != layers or len({array.shape for array in arrays}) != 1:
        raise ValueError(
            f"summarize_entropies: temperatures must be {layers} arrays of equal shape, "
            f"one per layer, got shapes {[list(array.shape) for array in arrays]}"
        )
    shape = arrays[0].shape
    by_position = len(shape) == 2 and shape[0] == heads and shape[1] >= length
    if not by_position and shape not in ((heads,), (1,)):
        raise ValueError(
            f"summarize_entropies: temperatures must be [H, T], [H] or [1] with H = {heads} and "
            f"T from {length}, got {list(shape)}"
        )
    return arrays


def _checked_thresholds(thresholds: ArrayLike | None, layers: int, heads: int) -> FloatArray | None:
    if thresholds is None:
        return None
    array = np.asarray(thresholds, dtype=np.float64)
    if array.shape != (layers, heads):
        raise ValueError(
            f"summarize_entropies: thresholds must be [L, H] = [{layers}, {heads}], "
            f"got {list(array.shape)}"
        )
    return array


def _json_values(array: ArrayLike) -> Any:
    """Nested lists of floats with six significant digits; None where a value is not finite."""
    values = np.asarray(array, dtype=np.float64)
    if values.ndim == 0:
        return float(f"{values:.6g}") if np.isfinite(values) else None
    return [_json_values(value) for value in values]
