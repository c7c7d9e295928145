"""Charts as inline SVG that follow the width of the page without a script.

Horizontal positions are percentages and vertical ones pixels, so that text keeps its size while
the chart is as wide as its card. Curves, which know no percentages, are in an inner `svg` that is
stretched. A chart contains no text from outside: names of lines are in the legend, in HTML.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from epp.lab.results.page.markup import Markup, element, name_text
from epp.lab.results.page.numbers import linear_ticks, log_ticks, tick

HEIGHT = 200
_TOP, _BOTTOM = 8, 168
_LEFT, _RIGHT = 11.0, 96.0
_INNER_WIDTH = 1000
_LOG_FROM = 30
"""A range of durations wider than this factor is drawn on a logarithmic axis."""

Points: TypeAlias = Sequence[tuple[float, float | None]]
"""Pairs (x, y); a y of None is a gap."""


@dataclass(frozen=True, slots=True)
class Line:
    """A curve; a value of None is a gap."""

    name: str
    """Text of the legend."""
    points: Points
    """Pairs (x, y) in the order of x."""
    style: str = "s0"
    """Class of the curve: `s0` to `s7`, or `bad`."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """A range of values and where they are, from 0.0 to 1.0."""

    place: Callable[[float], float]
    ticks: Sequence[float]


def line_chart(
    title: str,
    lines: Sequence[Line],
    *,
    x_unit: str,
    y_unit: str,
    is_log_x: bool = False,
    y_max: float | None = None,
    is_filled: bool = False,
) -> Markup:
    """Return a card with curves over a common axis; an empty text if there are no points.

    Args:
        title: Heading.
        lines: Curves.
        x_unit: Unit of the horizontal axis.
        y_unit: Unit of the vertical axis.
        is_log_x: Draw a logarithmic horizontal axis if the range of the values is wide.
        y_max: Top of the vertical axis; by default the largest value.
        is_filled: Fill the area below the first curve.
    """
    xs = [x for line in lines for x, y in line.points if y is not None]
    if not xs:
        return Markup()
    ys = [y for line in lines for _, y in line.points if y is not None]
    x_axis = _axis(min(xs), max(xs), is_log=is_log_x)
    y_axis = _rounded_axis(max(ys) if y_max is None else y_max)
    curves = []
    if is_filled:
        curves.append(_area(lines[0], x_axis, y_axis))
    curves += [
        element("path", class_=f"line {line.style}", d=_path(line.points, x_axis, y_axis),
                fill="none", stroke="currentColor")
        for line in lines
    ]  # fmt: skip
    return _card(title, lines, [*_grid(x_axis, y_axis), _stretched(curves)], x_unit, y_unit)


def histogram(
    title: str, values: Sequence[float], *, x_unit: str, marks: Sequence[float] = ()
) -> Markup:
    """Return a card with a histogram of positive values; an empty text if there are none.

    Args:
        title: Heading.
        values: Positive values.
        x_unit: Unit of the values.
        marks: Values at which a vertical line is drawn, such as an objective.
    """
    positive = [value for value in values if value > 0]
    if not positive:
        return Markup()
    bins = 40
    low, high = min(positive), max([*positive, *marks])
    x_axis = _axis(low, high, is_log=True)
    counts = [0] * bins
    for value in positive:
        counts[min(int(x_axis.place(value) * bins), bins - 1)] += 1
    y_axis = _rounded_axis(max(counts))
    width = (_RIGHT - _LEFT) / bins
    bars = [
        element("rect", class_="bar s0", x=f"{_LEFT + number * width:.2f}%", y=_y(y_axis, count),
                width=f"{width * 0.9:.2f}%", height=_BOTTOM - _y(y_axis, count))
        for number, count in enumerate(counts)
        if count
    ]  # fmt: skip
    lines = [
        element("line", class_="mark", x1=_x(x_axis, value), x2=_x(x_axis, value), y1=_TOP,
                y2=_BOTTOM, stroke="currentColor")
        for value in marks
    ]  # fmt: skip
    return _card(title, (), [*_grid(x_axis, y_axis), *bars, *lines], x_unit, "requests")


def cdf_points(values: Sequence[float], most: int = 200) -> Points:
    """Return the cumulative distribution: the least value at 0.0, then at most `most` points."""
    if not values:
        return []
    ordered = sorted(values)
    count = len(ordered)
    ranks = sorted({math.ceil(count * number / most) for number in range(1, most + 1)})
    points: list[tuple[float, float | None]] = [(ordered[rank - 1], rank / count) for rank in ranks]
    return [(ordered[0], 0.0), *points]


def _axis(low: float, high: float, *, is_log: bool = False) -> _Axis:
    """Return an axis up to `high`, from 0 if it is linear and from `low` if logarithmic."""
    if is_log and low > 0 and high > low * _LOG_FROM:
        span = math.log(high / low)
        return _Axis(lambda value: math.log(value / low) / span, log_ticks(low, high))
    most = high or 1.0
    ticks = [each for each in linear_ticks(most) if each <= most]
    return _Axis(lambda value: value / most, ticks)


def _rounded_axis(high: float) -> _Axis:
    """Return an axis from 0 to the next tick."""
    ticks = linear_ticks(high)
    return _Axis(lambda value: value / ticks[-1], ticks)


def _x(axis: _Axis, value: float) -> str:
    return f"{_LEFT + axis.place(value) * (_RIGHT - _LEFT):.2f}%"


def _y(axis: _Axis, value: float) -> float:
    return _BOTTOM - axis.place(value) * (_BOTTOM - _TOP)


def _grid(x_axis: _Axis, y_axis: _Axis) -> list[Markup]:
    drawn = []
    for value in y_axis.ticks:
        y = _y(y_axis, value)
        drawn += [
            element("line", class_="grid", x1=f"{_LEFT}%", x2=f"{_RIGHT}%", y1=y, y2=y,
                    stroke="currentColor", stroke_opacity=0.2),
            element("text", tick(value), class_="tick", x=f"{_LEFT - 1}%", y=y + 4,
                    text_anchor="end"),
        ]  # fmt: skip
    drawn += [
        element("text", tick(value), class_="tick", x=_x(x_axis, value), y=_BOTTOM + 18,
                text_anchor="middle")
        for value in x_axis.ticks
    ]  # fmt: skip
    return drawn


def _stretched(curves: Sequence[Markup]) -> Markup:
    height = _BOTTOM - _TOP
    return element(
        "svg",
        *curves,
        x=f"{_LEFT}%",
        y=_TOP,
        width=f"{_RIGHT - _LEFT}%",
        height=height,
        viewBox=f"0 0 {_INNER_WIDTH} {height}",
        preserveAspectRatio="none",
    )


def _path(points: Points, x_axis: _Axis, y_axis: _Axis) -> str:
    path = []
    is_down = False
    for x, y in points:
        if y is None:
            is_down = False
            continue
        across = x_axis.place(x) * _INNER_WIDTH
        path.append(f"{'L' if is_down else 'M'}{across:.1f} {_y(y_axis, y) - _TOP:.1f}")
        is_down = True
    return "".join(path)


def _area(line: Line, x_axis: _Axis, y_axis: _Axis) -> Markup:
    known = [(x, y) for x, y in line.points if y is not None]
    first, last = (x_axis.place(known[end][0]) * _INNER_WIDTH for end in (0, -1))
    bottom = _BOTTOM - _TOP
    path = f"{_path(known, x_axis, y_axis)}L{last:.1f} {bottom}L{first:.1f} {bottom}Z"
    return element("path", class_=f"area {line.style}", d=path, fill_opacity=0.15)


def _card(
    title: str, lines: Sequence[Line], drawn: Sequence[Markup], x_unit: str, y_unit: str
) -> Markup:
    legend = (
        element("span", element("span", class_=f"swatch {line.style}"), name_text(line.name))
        for line in lines
    )
    return element(
        "figure",
        element("figcaption", element("b", title), element("span", f" {y_unit}", class_="soft")),
        element("p", *legend, class_="legend") if len(lines) > 1 else "",
        element("svg", *drawn, width="100%", height=HEIGHT, role="img", aria_label=title),
        element("p", x_unit, class_="unit soft"),
        class_="card",
    )
