"""Charts as inline SVG, whose colors follow the theme of the page."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from manyview.report.page.html import Html, make_element

FloatArray = NDArray[np.float64]
XUnit = Literal["frames", "seconds", "score"]

WIDTH, HEIGHT = 460, 260
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 10, 42
"""Margins around the plotted area, with room for the labels of the axes."""
MAX_POINTS = 300
"""Points of a line; more cannot be told apart."""
NUM_COLORS = 6
TIME_UNITS = (("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))
MAX_TICKS = 6


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of a chart, with a band if it has `low` and `high`."""

    style: int
    """Number of color and dashes; equal numbers look equal in all charts of a page."""
    x: FloatArray  # [points], increasing
    y: FloatArray  # [points]
    low: FloatArray | None = None
    high: FloatArray | None = None
    is_thin: bool = False


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A single value with its interval, such as a published one."""

    number: int
    """Number that the legend shows too."""
    x: float
    y: float
    low: float
    high: float


class Axis(NamedTuple):
    """Range of an axis, with ticks inside."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def scale(self, values: FloatArray | float) -> FloatArray:
        """Return positions from 0 to 1."""
        return np.clip((np.asarray(values, np.float64) - self.low) / (self.high - self.low), 0, 1)


def draw_chart(
    lines: Sequence[Line],
    *,
    title: str,
    y_label: str,
    x_unit: XUnit = "frames",
    x_label: str = "simulator frames",
    y_range: tuple[float, float] | None = None,
    marks: Sequence[Mark] = (),
) -> Html:
    """Return a chart as an SVG element that a screen reader calls `title`."""
    seconds_per_unit = 1.0
    if x_unit == "seconds":
        longest = max((float(line.x[-1]) for line in lines if len(line.x)), default=0.0)
        name, seconds_per_unit = next((unit for unit in TIME_UNITS if longest >= 2 * unit[1]), TIME_UNITS[-1])
        x_label = f"wall-clock time, {name}"
    x_axis = make_axis([line.x / seconds_per_unit for line in lines] + [np.array([mark.x]) for mark in marks])
    y_axis = make_axis(
        [np.asarray(y_range, np.float64)] if y_range else [*_list_values(lines), *([m.low, m.high] for m in marks)]
    )
    return make_element(
        "svg",
        make_element("title", title),
        _draw_axes(x_axis, y_axis, x_label, y_label),
        [_draw_band(line, x_axis, y_axis, seconds_per_unit) for line in lines],
        [_draw_line(line, x_axis, y_axis, seconds_per_unit) for line in lines],
        [_draw_mark(mark, x_axis, y_axis) for mark in marks],
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        class_="chart",
    )


def draw_legend(entries: Sequence[tuple[int, str]], marks: Sequence[tuple[int, str]] = ()) -> Html:
    """Return a list of line styles, and of numbered marks, with their names."""
    samples = [
        make_element("svg", _draw_path("M1 6H35", style, is_thin=False), viewBox="0 0 36 12", aria_hidden="true")
        for style, _ in entries
    ]
    items = [make_element("li", sample, label) for sample, (_, label) in zip(samples, entries, strict=True)]
    items += [make_element("li", make_element("b", f"{number} "), label) for number, label in marks]
    return make_element("ul", items, class_="legend")


def make_axis(values: Sequence[FloatArray | Sequence[float]]) -> Axis:
    """Return an axis that covers all values and has round ticks."""
    flat = np.concatenate([np.zeros(0), *(np.asarray(part, np.float64).ravel() for part in values)])
    flat = flat[np.isfinite(flat)]
    low, high = (float(flat.min()), float(flat.max())) if len(flat) else (0.0, 1.0)
    if high - low <= 1e-9 * max(abs(low), abs(high)) or high - low < 1e-300:  # constant, up to rounding
        margin = abs(low) / 2 if abs(low) > 1e-300 else 0.5
        low, high = low - margin, high + margin
    step = _choose_step(high - low)
    first, last = floor(low / step), ceil(high / step)
    return Axis(first * step, last * step, tuple(number * step for number in range(first, last + 1)))


def format_tick(value: float, *, unit: XUnit | None = None) -> str:
    """Format a number for an axis, such as `0.25`, `1.5k` or `2M`."""
    for factor, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if factor <= abs(value) < 1e12 and (unit == "frames" or abs(value) >= 1e4):
            return f"{value / factor:.4g}{suffix}"
    return f"{0.0 if abs(value) < 1e-300 else value:.4g}"


def thin_out(values: FloatArray) -> NDArray[np.intp]:
    """Return the indices of at most `MAX_POINTS` values, the first and the last among them."""
    return np.linspace(0, len(values) - 1, min(len(values), MAX_POINTS)).round().astype(np.intp)


def _choose_step(span: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that needs at most `MAX_TICKS` steps."""
    power = 10.0 ** floor(log10(span / MAX_TICKS))
    return next((factor * power for factor in (1, 2, 5) if factor * power >= span / MAX_TICKS), 10 * power)


def _list_values(lines: Sequence[Line]) -> list[FloatArray]:
    return [part for line in lines for part in (line.y, line.low, line.high) if part is not None]


def _draw_axes(x_axis: Axis, y_axis: Axis, x_label: str, y_label: str) -> list[Html]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    for value, y in zip(y_axis.ticks, _place_y(y_axis, np.array(y_axis.ticks)), strict=True):
        parts.append(make_element("path", d=f"M{LEFT} {y:.1f}H{right}", class_="rule"))
        parts.append(make_element("text", format_tick(value), x=LEFT - 6, y=f"{y + 4:.1f}", class_="end"))
    for value, x in zip(x_axis.ticks, _place_x(x_axis, np.array(x_axis.ticks)), strict=True):
        parts.append(make_element("path", d=f"M{x:.1f} {bottom}v4", class_="tick"))
        label = format_tick(value, unit="frames")
        parts.append(make_element("text", label, x=f"{x:.1f}", y=bottom + 17, class_="middle"))
    middle = (TOP + bottom) / 2
    parts.append(make_element("text", x_label, x=(LEFT + right) / 2, y=HEIGHT - 6, class_="middle"))
    parts.append(
        make_element("text", y_label, x=12, y=middle, transform=f"rotate(-90 12 {middle:g})", class_="middle label")
    )
    return parts


def _draw_band(line: Line, x_axis: Axis, y_axis: Axis, seconds_per_unit: float) -> Html | None:
    if line.low is None or line.high is None:
        return None
    chosen = thin_out(line.x)
    x = _place_x(x_axis, line.x[chosen] / seconds_per_unit)
    low, high = _place_y(y_axis, line.low[chosen]), _place_y(y_axis, line.high[chosen])
    path = _format_path(np.concatenate([x, x[::-1]]), np.concatenate([high, low[::-1]]))
    return make_element("path", d=f"{path}Z", class_=f"band f{line.style % NUM_COLORS}")


def _draw_line(line: Line, x_axis: Axis, y_axis: Axis, seconds_per_unit: float) -> list[Html]:
    chosen = thin_out(line.x)
    x, y = _place_x(x_axis, line.x[chosen] / seconds_per_unit), _place_y(y_axis, line.y[chosen])
    if len(x) == 1:
        return [make_element("circle", cx=f"{x[0]:.1f}", cy=f"{y[0]:.1f}", r=3, class_=f"f{line.style % NUM_COLORS}")]
    return [_draw_path(_format_path(x, y), line.style, is_thin=line.is_thin)]


def _draw_path(path: str, style: int, *, is_thin: bool) -> Html:
    # The next six lines have the colors again with other dashes.
    dashes = (style + style // NUM_COLORS) % NUM_COLORS
    return make_element("path", d=path, class_=f"{'thin' if is_thin else 'line'} s{style % NUM_COLORS} d{dashes}")


def _draw_mark(mark: Mark, x_axis: Axis, y_axis: Axis) -> list[Html]:
    x = float(_place_x(x_axis, mark.x))
    low, middle, high = (float(_place_y(y_axis, value)) for value in (mark.low, mark.y, mark.high))
    return [
        make_element("path", d=f"M{x:.1f} {low:.1f}V{high:.1f}", class_="mark"),
        make_element("circle", cx=f"{x:.1f}", cy=f"{middle:.1f}", r=3.5, class_="mark"),
        make_element("text", mark.number, x=f"{x - 6:.1f}", y=f"{middle - 5:.1f}", class_="end strong"),
    ]


def _place_x(axis: Axis, values: FloatArray | float) -> FloatArray:
    return LEFT + (WIDTH - LEFT - RIGHT) * axis.scale(values)


def _place_y(axis: Axis, values: FloatArray | float) -> FloatArray:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * axis.scale(values)


def _format_path(x: FloatArray, y: FloatArray) -> str:
    """Return a path through all finite points; without any, nothing is drawn."""
    points = [f"{px:.1f} {py:.1f}" for px, py in zip(x, y, strict=True) if isfinite(px) and isfinite(py)]
    return f"M{'L'.join(points)}" if points else "M0 0"
