"""Two quantities of many networks as points, with the front that nothing beats: plain SVG."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from aero.palette import NETWORK_COLORS

_WIDTH, _HEIGHT = 960.0, 420.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, 18.0, 14.0, 44.0
# Beyond this ratio the small values would lie on top of each other.
_LOGARITHMIC_FROM = 20.0


@dataclass(frozen=True)
class Point:
    """One network.

    Attributes:
        x: Positive; smaller is better.
        y: Likewise.
        series: Points of one series share a colour.
        title: Shown on hovering.
        on_front: Whether no other point beats it.
    """

    x: float
    y: float
    series: str
    title: str
    on_front: bool


def scatter(points: Sequence[Point], x_title: str, y_title: str) -> str:
    """The points, a line through the front, axes and a legend.

    Raises:
        ValueError: Without points.
    """
    if not points:
        raise ValueError("scatter: points must not be empty")
    across = _Axis.of([point.x for point in points], _LEFT, _WIDTH - _RIGHT)
    up = _Axis.of([point.y for point in points], _HEIGHT - _BOTTOM, _TOP)
    names = list(dict.fromkeys(point.series for point in points))
    colours = {
        name: NETWORK_COLORS[index % len(NETWORK_COLORS)] for index, name in enumerate(names)
    }
    front = sorted((point for point in points if point.on_front), key=lambda point: point.x)
    # Steps, not slopes: between two points of the front only the worse of both is reached.
    path = "".join(
        f"{'M' if i == 0 else 'H'}{across.at(p.x):.1f}{',' if i == 0 else 'V'}{up.at(p.y):.1f}"
        for i, p in enumerate(front)
    )
    shapes = [
        *_axes(across, up, x_title, y_title),
        f'<path d="{path}" fill="none" stroke="#888" stroke-dasharray="4 3"/>',
        *(_dot(point, across, up, colours[point.series]) for point in points),
    ]
    entries = "".join(
        f'<span><i style="background:{colours[name]}"></i>{html.escape(name)}</span> '
        for name in names
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" '
        f'width="100%" role="img" font-size="12" font-family="system-ui,sans-serif" '
        f'fill="currentColor">{"".join(shapes)}</svg><p class="legend">{entries}</p>'
    )


@dataclass(frozen=True)
class _Axis:
    """From values to positions, linear or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool

    @classmethod
    def of(cls, values: Sequence[float], start: float, end: float) -> _Axis:
        least, most = min(values), max(values)
        if least > 0 and most / least > _LOGARITHMIC_FROM:
            room = (most / least) ** 0.05
            return cls(least / room, most * room, start, end, logarithmic=True)
        room = 0.06 * (most - least) or 0.1 * abs(most) or 1.0
        low = least - room
        return cls(max(low, 0.0) if least >= 0 else low, most + room, start, end, False)

    def at(self, value: float) -> float:
        low, high, here = self.low, self.high, value
        if self.logarithmic:
            low, high, here = math.log(low), math.log(high), math.log(here)
        return self.start + (self.end - self.start) * (here - low) / (high - low)

    def ticks(self) -> list[float]:
        """Round numbers: 1, 2 and 5 times powers of ten."""
        if self.logarithmic:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            found = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
        else:
            span = self.high - self.low
            rough = span / 6
            power = 10.0 ** math.floor(math.log10(rough))
            step = next(f * power for f in (1, 2, 5, 10) if f * power >= rough)
            first = math.ceil(self.low / step)
            found = [index * step for index in range(first, first + int(span / step) + 2)]
        return [tick for tick in found if self.low <= tick <= self.high]


def _axes(across: _Axis, up: _Axis, x_title: str, y_title: str) -> list[str]:
    grid = 'stroke="currentColor" stroke-opacity="0.15"'
    left, right, top, bottom = across.start, across.end, up.end, up.start
    shapes = []
    for tick in across.ticks():
        x = f"{across.at(tick):.1f}"
        shapes.append(
            f'<line x1="{x}" y1="{top:.1f}" x2="{x}" y2="{bottom:.1f}" {grid}/>'
            f'<text x="{x}" y="{bottom + 16:.1f}" text-anchor="middle">{tick:,g}</text>'
        )
    for tick in up.ticks():
        y = up.at(tick)
        shapes.append(
            f'<line x1="{left:.1f}" y1="{y:.1f}" x2="{right:.1f}" y2="{y:.1f}" {grid}/>'
            f'<text x="{left - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{tick:,g}</text>'
        )
    middle = (top + bottom) / 2
    shapes.append(
        f'<text x="{(left + right) / 2:.1f}" y="{bottom + 36:.1f}" '
        f'text-anchor="middle">{html.escape(x_title)}</text>'
        f'<text x="14" y="{middle:.1f}" text-anchor="middle" '
        f'transform="rotate(-90 14 {middle:.1f})">{html.escape(y_title)}</text>'
    )
    return shapes


def _dot(point: Point, across: _Axis, up: _Axis, colour: str) -> str:
    radius, opacity = (6, 1) if point.on_front else (4, 0.55)
    title = f"<title>{html.escape(point.title)}</title>"
    return (
        f'<circle cx="{across.at(point.x):.1f}" cy="{up.at(point.y):.1f}" r="{radius}" '
        f'fill="{colour}" fill-opacity="{opacity}">{title}</circle>'
    )
