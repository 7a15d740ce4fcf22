"""Numbers as the report prints them."""

import math
import re
from collections.abc import Sequence

from aero.report.report_file import ComparisonEntry, NetworkEntry, Spread


def significant(value: float | None, digits: int = 4) -> str:
    """Returns a number with this many significant digits, never in exponent form; "-" for None.

    All digits before the point are shown, even if they are more.
    """
    if value is None:
        return "-"
    if value == 0:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{max(decimals, 0)}f}"


def with_spread(spread: Spread | None, decimals: int = 2) -> str:
    """Returns "mean ± standard deviation", the mean alone for one seed, "-" for none."""
    if spread is None:
        return "-"
    mean = f"{spread.mean:.{decimals}f}"
    deviation = spread.standard_deviation
    return mean if deviation is None else f"{mean} ± {deviation:.{decimals}f}"


def gigabytes(comm_bytes: float | None) -> str:
    """Returns bytes in GB (1e9 bytes) with three significant digits."""
    return significant(None if comm_bytes is None else comm_bytes / 1e9, 3)


def large_count(value: float | None) -> str:
    """Returns a count with k, M, B or T, three significant digits."""
    if value is None:
        return "-"
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return significant(value / size, 3) + unit
    return f"{value:.0f}"


def change(fraction: float | None) -> str:
    """Returns a difference in per cent, with its sign; "-" for None."""
    return "-" if fraction is None else f"{100 * fraction:+.1f} %"


def interval_cell(row: ComparisonEntry) -> str:
    """Returns the ends of a comparison's interval; "-" where it has none."""
    if row.low is None or row.high is None:
        return "-"
    return f"{change(row.low)} to {change(row.high)}"


def duration(seconds: float | None) -> str:
    """Returns seconds as hours, minutes and seconds."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def operations(text: str) -> str:
    """Returns nonlinear operations in the words of a table cell."""
    parts = re.findall(r"(\w+):(\d+)xR\^\{(\w+)\}", text)
    return ", ".join(f"{symbol} {count} of {shape}" for symbol, count, shape in parts)


def heads(pairs: Sequence[tuple[int, int]] | None, most: int = 12) -> str:
    """Returns [layer, head] pairs as "L0 H1, H2; L3 H0", at most `most` heads; "none" for none."""
    if not pairs:
        return "none"
    by_layer: dict[int, list[str]] = {}
    for layer, head in pairs[:most]:
        by_layer.setdefault(layer, []).append(f"H{head}")
    text = "; ".join(f"L{layer} {', '.join(names)}" for layer, names in by_layer.items())
    return text + (f" and {len(pairs) - most} more" if len(pairs) > most else "")


def perplexity_cell(entry: NetworkEntry, *, places: bool = True) -> str:
    """Returns perplexity with its spread, or how the runs ended, or that nothing was evaluated.

    Without `places`, layer and head of a NaN are left out.
    """
    endings = list(dict.fromkeys(run.ending for run in entry.runs if run.ending))
    if not places:
        endings = [ending.split(" (")[0] for ending in endings]
    if entry.perplexity is None:
        evaluated = any(run.evaluated for run in entry.runs)
        return "; ".join(endings) or ("not finite" if evaluated else "not evaluated")
    cell = with_spread(entry.perplexity)
    finished = len(entry.perplexity.values)
    return cell + (f" ({finished} of {len(entry.runs)}; {'; '.join(endings)})" if endings else "")


def quarters_cell(entry: NetworkEntry) -> str:
    """Returns the shares of heads per quarter of log T in per cent, lowest first."""
    if not entry.entropy:
        return "-"
    shares = entry.entropy.quarters.log_context
    return " / ".join(f"{100 * share:.0f}" for share in shares)
