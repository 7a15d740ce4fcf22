"""One style for every figure, and how figures become files."""

import io
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from aero.atomic_files import write_bytes_atomically
from aero.palette import NETWORK_COLORS

__all__ = ["FIGURE_STYLE", "save_figure"]

#: Matplotlib settings of every figure: `with matplotlib.rc_context(FIGURE_STYLE): ...`, or
#: `matplotlib.rcParams.update(FIGURE_STYLE)` for a whole notebook.
FIGURE_STYLE: dict[Any, Any] = {
    "axes.prop_cycle": f"cycler('color', {list(NETWORK_COLORS)})",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",
    "font.size": 10,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    # Words in a vector figure stay words.
    "svg.fonttype": "none",
    # The same figure is the same file: without it matplotlib numbers the parts at random.
    "svg.hashsalt": "aero",
}


def save_figure(figure: Figure, stem: str | Path, *, dots_per_inch: int = 220) -> list[Path]:
    """Writes a figure as `STEM.png` and as `STEM.svg`, each whole or not at all.

    The same figure gives the same bytes.

    Args:
        figure: of any function here, or your own.
        stem: path without ending; its folder must exist.
        dots_per_inch: of the PNG.

    Returns:
        The two paths.

    Raises:
        OSError: the files cannot be written; earlier ones stay as they were.

    Example:
        >>> from aero.analysis import save_figure
        >>> import tempfile
        >>> from matplotlib.figure import Figure
        >>> folder = tempfile.TemporaryDirectory()
        >>> [path.name for path in save_figure(Figure(), f"{folder.name}/front")]
        ['front.png', 'front.svg']
    """
    written = []
    for ending, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
        buffer = io.BytesIO()
        with rc_context(FIGURE_STYLE):
            figure.savefig(
                buffer, format=ending, dpi=dots_per_inch, bbox_inches="tight", metadata=metadata
            )
        written.append(Path(f"{stem}.{ending}"))
        write_bytes_atomically(written[-1], buffer.getvalue())
    return written
