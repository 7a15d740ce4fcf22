"""Common parts of all figures: style, colours, new Axes, rows of names, heat maps."""

from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize, to_rgb
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from aero.internals.palette import NETWORK_COLORS

# Enough of the values written inside a heat map to read them; above it they would only be noise.
_MOST_CELLS_WITH_TEXT = 64


def network_colors(count: int) -> list[str]:
    """Returns `count` colours: a network has one colour in every figure; repeats after 8."""
    return [NETWORK_COLORS[index % len(NETWORK_COLORS)] for index in range(count)]


def entropy_colors() -> ScalarMappable:
    """Returns the colours of all entropy heat maps: [0, 1] of a causal head's largest entropy."""
    return ScalarMappable(Normalize(0.0, 1.0), cmap="viridis")


def threshold_colors() -> ScalarMappable:
    """Returns the colour scale of thresholds, [0, 1] of the maximum entropy."""
    return ScalarMappable(Normalize(0.0, 1.0), cmap="YlGnBu")


def layer_colors(layers: int) -> ScalarMappable:
    """Returns the colour scale of depth, the first layer dark and the last one light."""
    # The pale end of the map cannot be seen on white.
    cmap = ListedColormap(colormaps["plasma"](np.linspace(0.0, 0.88, 256)))
    return ScalarMappable(Normalize(0.0, float(max(layers - 1, 1))), cmap=cmap)


def own_or_new_axes(axes: Axes | None) -> Axes:
    """The given Axes, or those of a new pyplot figure."""
    if axes is not None:
        return axes
    # Imported here so that a caller who brings Axes never starts pyplot and its backend.
    import matplotlib.pyplot as plt

    created: Axes = plt.subplots()[1]
    return created


def matrix(function: str, name: str, value: ArrayLike) -> NDArray[np.float64]:
    """The value as a 2-D float64 array, or an error that names function and argument."""
    array = np.asarray(value, dtype=np.float64)
    if array.ndim != 2 or array.size == 0:
        raise ValueError(f"{function}: {name} must be 2-D and not empty, got {list(array.shape)}")
    return array


def steps_and_rows(
    function: str, steps: ArrayLike, name: str, rows: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Steps [N] and rows [N, L], or an error that names function and argument."""
    values = matrix(function, name, rows)
    positions = np.asarray(steps, dtype=np.float64)
    if positions.shape != values.shape[:1]:
        raise ValueError(
            f"{function}: steps must be [N] = [{values.shape[0]}], got {list(positions.shape)}"
        )
    return positions, values


def draw_heat_map(axes: Axes, values: NDArray[np.float64], scale: ScalarMappable) -> None:
    """Shares, layers downwards, heads to the right, the value in each cell if they are few."""
    layers, heads = values.shape
    colors = scale.to_rgba(values)
    # Not imshow: vectors stay sharp, and every cell can have a title.
    edges = np.arange(heads + 1) - 0.5, np.arange(layers + 1) - 0.5
    axes.pcolormesh(*edges, values, cmap=scale.cmap, vmin=0.0, vmax=1.0, gid="heads")
    axes.invert_yaxis()
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    for layer, head in np.ndindex(layers, heads):
        value = values[layer, head]
        if not np.isfinite(value):
            axes.text(head, layer, "NaN", ha="center", va="center", color="#b00020", weight="bold")
        elif values.size <= _MOST_CELLS_WITH_TEXT:
            ink = ink_on(colors[layer, head])
            text = f"{value:.2f}"
            axes.text(head, layer, text, ha="center", va="center", color=ink, fontsize="small")


def label_rows(axes: Axes, names: list[str]) -> None:
    """Names on the y axis, the first one on top."""
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right"]].set_visible(False)


def ink_on(color: Any) -> str:
    """Black or white, whichever is readable on a colour."""
    red, green, blue = to_rgb(color)
    # Rec. 601 luma; 0.55 is where both inks read about equally well.
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 else "white"


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
