"""The page of `aero show`: tokens, every head with a slider for temperature, and private costs.

plotly draws the moving parts, from weights computed here for every place of the slider. The page
has no script of its own and loads nothing. Tokens may be a stranger's: they reach the page escaped.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray

from aero import mpc
from aero.analysis import FIGURE_STYLE, plot_stepwise_savings
from aero.analysis.figures.entropy import row_entropies
from aero.architecture import ArchitectureSpec
from aero.internals.extras import extra
from aero.reading import printable, shown
from aero.report.picture import svg_of

with extra("report"):
    from matplotlib import rc_context
    from matplotlib.figure import Figure

_TEMPERATURES = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
# Whole per cent in one byte; this value marks keys that a causal head does not see.
_HIDDEN = 101
_SEEN = ("#f7fbff", "#c6dbef", "#6baed6", "#2171b5", "#08306b")
# The label becomes cheaper from step to step, as in the paper's Figure 1.
_LADDER = ("SM+LN+G", "SM+LN+R", "SM+FN+R", "SM+ScFuFFN")
_SIZES = (
    "num_layers", "num_heads", "head_dim", "width", "hidden_width", "context_length", "vocab_size",
)  # fmt: skip

Weights = NDArray[np.float64]


def at_temperature(attention: Weights, temperature: float) -> Weights:
    """Returns attention as if its scores were divided by a temperature: p^(1/t), normalized.

    Args:
        attention: [..., T], weights of rows.
        temperature: above 0; 1 changes nothing.
    """
    sharpened = (attention / attention.max(axis=-1, keepdims=True)) ** (1.0 / temperature)
    return np.asarray(sharpened / sharpened.sum(axis=-1, keepdims=True))


def token_costs(spec: ArchitectureSpec, prompt_tokens: int) -> dict[str, float]:
    """Returns label -> bytes of one more private token, at the sizes of a network.

    Args:
        spec: the network; its own label comes last, if it is not a step of the paper's.
        prompt_tokens: in front of the token.
    """
    sizes = {name: getattr(spec, name) for name in _SIZES}
    specs = {label: ArchitectureSpec.from_label(label, **sizes) for label in _LADDER}
    specs.setdefault(spec.label, spec)
    return {
        label: mpc.simulate_generation(
            one.replace(context_length=prompt_tokens), new_tokens=2
        ).per_token[1].comm_bytes
        for label, one in specs.items()
    }  # fmt: skip


def show_page(
    spec: ArchitectureSpec, tokens: Sequence[str], attention: Weights, *, name: str
) -> str:
    """Returns the page.

    Args:
        spec: the network.
        tokens: T, as text.
        attention: [L, H, T, T], weights.
        name: of the run.
    """
    environment = Environment(
        loader=PackageLoader("aero.report"), autoescape=True, undefined=StrictUndefined
    )
    words = [shown(token) for token in tokens]
    entropies = row_entropies(attention)  # [L, H, T]
    reachable = np.log(np.arange(1, len(tokens) + 1))
    return environment.get_template("show.html.j2").render(
        title=f"{printable(name)}: {spec.label}",
        words=words,
        reachable=reachable,
        by_token=entropies.mean(axis=(0, 1)),
        heads=Markup(_heads(words, attention)),
        entropies=entropies.mean(axis=2),
        costs=Markup(_costs(spec, len(tokens))),
    )


def _costs(spec: ArchitectureSpec, prompt_tokens: int) -> str:
    costs = token_costs(spec, prompt_tokens)
    with rc_context(FIGURE_STYLE):
        figure = Figure(figsize=(4.9, 0.8 + 0.34 * len(costs)), layout="constrained")
        axes = figure.subplots()
        unit = "MB of one more token, both parties"
        plot_stepwise_savings(
            [*costs], [cost / 1e6 for cost in costs.values()], unit=unit, axes=axes
        )
    return svg_of(figure, "Bytes of one more private token by label")


def _heads(words: Sequence[str], attention: Weights) -> str:
    """Every head in one picture, with the slider."""
    with extra("report"):
        import plotly.graph_objects

    go: Any = plotly.graph_objects

    layers, heads, size, _ = attention.shape
    step = size + max(1, size // 6)
    across, up = (size / 2 + step * np.arange(count) for count in (layers, heads))
    safe = [html.escape(word) for word in words]
    colors = [[i / 4 * 100 / 101, color] for i, color in enumerate(_SEEN)]
    figure = go.Figure(
        data=_drawn(go, attention, 1.0, step),
        layout=go.Layout(
            template="none",
            height=150 + int(min(900, 900 * heads / layers)),
            margin={"l": 70, "r": 10, "t": 30, "b": 120},
            showlegend=False,
            xaxis={"tickvals": across, "ticktext": [f"layer {i}" for i in range(layers)]},
            yaxis={"tickvals": up, "ticktext": [f"head {i}" for i in range(heads)]},
            sliders=[
                {
                    "active": _TEMPERATURES.index(1.0),
                    "currentvalue": {"prefix": "scores divided by temperature "},
                    "pad": {"t": 40},
                    "steps": [
                        {
                            "method": "animate",
                            "label": f"{value:g}",
                            "args": [
                                [f"{value:g}"],
                                {"mode": "immediate", "frame": {"duration": 0, "redraw": True}},
                            ],
                        }
                        for value in _TEMPERATURES
                    ],
                }
            ],
        ),
        frames=[
            go.Frame(name=f"{value:g}", data=_drawn(go, attention, value, step))
            for value in _TEMPERATURES
        ],
    )
    figure.update_traces(
        selector={"type": "heatmap"},
        text=_sheet(_titles(safe, layers, heads), step, ""),
        hovertemplate="%{text}<br>%{z} %<extra></extra>",
        colorscale=[*colors, [100.5 / 101, "white"], [1, "white"]],
        zmin=0, zmax=_HIDDEN, showscale=False,
    )  # fmt: skip
    figure.update_xaxes(range=[0, step * layers], showgrid=False, zeroline=False, ticks="")
    figure.update_yaxes(range=[step * heads, 0], showgrid=False, zeroline=False, ticks="")
    page: str = figure.to_html(
        full_html=False,
        include_plotlyjs=True,
        auto_play=False,
        div_id="heads",
        config={"displayModeBar": False, "responsive": True},
    )
    return page


def _drawn(go: Any, attention: Weights, temperature: float, step: int) -> list[Any]:
    """The weights in per cent, and the mean entropy of every head over its square."""
    layers, heads, size, _ = attention.shape
    weights = at_temperature(attention, temperature)
    hidden = np.triu(np.ones((size, size), dtype=bool), 1)
    percent = np.where(hidden, _HIDDEN, np.rint(100 * weights)).astype(np.uint8)
    entropies = row_entropies(weights).mean(axis=2)
    return [
        go.Heatmap(z=_sheet(percent, step, _HIDDEN), x0=0.5, y0=0.5),
        go.Scatter(
            x=np.repeat(np.arange(layers), heads) * step + size,
            y=np.tile(np.arange(heads), layers) * step + size / 8,
            text=[f"{value:.2f}" for value in entropies.ravel()],
            mode="text", textposition="bottom left", hoverinfo="skip", textfont={"color": "#444"},
        ),
    ]  # fmt: skip


def _titles(words: Sequence[str], layers: int, heads: int) -> NDArray[np.object_]:
    """The words for every weight, [L, H, T, T]; empty where a head does not see."""
    size = len(words)
    titles = np.full((layers, heads, size, size), "", dtype=object)
    for layer, head, row, key in np.ndindex(titles.shape):
        if key <= row:
            titles[layer, head, row, key] = (
                f"layer {layer}, head {head}<br>{words[row]} looks at {words[key]}"
            )
        else:
            titles[layer, head, row, key] = f"{words[key]} comes later: hidden"
    return titles


def _sheet(squares: NDArray[Any], step: int, gap: Any) -> NDArray[Any]:
    """Squares [L, H, T, T] next to each other, layers to the right: [H * step, L * step]."""
    layers, heads, size, _ = squares.shape
    sheet = np.full((heads * step, layers * step), gap, dtype=squares.dtype)
    for layer, head in np.ndindex(layers, heads):
        top, left = head * step, layer * step
        sheet[top : top + size, left : left + size] = squares[layer, head]
    return sheet
