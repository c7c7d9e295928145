"""The plot of the live study: p90 of each policy as ratio to the baseline, live and simulated."""

import math
from collections.abc import Sequence

from epp.lab.results import Ratio
from epp.lab.results.page.markup import Markup, element
from tools.bench.agreement import Agreement, by_scenario
from tools.study.live_results import BASELINE, compared

_WIDTH, _LEFT, _RIGHT = 760, 190, 20
_ROW, _HEAD, _FOOT = 20, 30, 34
_LEGEND = 44
_TICKS = (0.25, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)
_LIVE, _SIMULATED, _SOFT = "#0b7285", "#c2570c", "#7a838b"


def plot(measured: Sequence[Agreement]) -> str:
    """Return an SVG: a panel for each scenario, with a row for each policy but the baseline."""
    panels = by_scenario(measured)
    found = {
        (scenario, each.policy): compared(each, _baseline(policies), "p90")
        for scenario, policies in panels.items()
        for each in policies
        if each.policy != BASELINE
    }
    known = [
        end
        for each in found.values()
        for ratio in (each.live, each.simulated)
        if ratio is not None
        for end in (ratio.low or ratio.mean, ratio.high or ratio.mean)
    ]
    axis = _Axis(min([0.7, *known]) * 0.95, max([1.5, *known]) * 1.05)
    drawn: list[Markup] = [*_legend()]
    top = _LEGEND
    for scenario, policies in panels.items():
        rows = [each.policy for each in policies if each.policy != BASELINE]
        bottom = top + _HEAD + _ROW * len(rows)
        drawn += [_label(0, top + 20, scenario, weight="600"), *axis.grid(top + _HEAD, bottom)]
        for number, policy in enumerate(rows):
            middle = top + _HEAD + _ROW * (number + 0.5)
            ratios = found[scenario, policy]
            drawn.append(_label(12, middle + 4, policy))
            drawn += _dot(axis, ratios.live, middle - 4, _LIVE)
            drawn += _dot(axis, ratios.simulated, middle + 4, _SIMULATED)
        top = bottom + _FOOT
    return element(
        "svg",
        element("rect", width=_WIDTH, height=top, fill="#ffffff"),
        *drawn,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_WIDTH} {top}",
        font_family="system-ui, DejaVu Sans, sans-serif",
        font_size=12,
    )


class _Axis:
    """A logarithmic axis of ratios."""

    def __init__(self, low: float, high: float) -> None:
        self._low, self._high = low, high

    def place(self, ratio: float) -> float:
        """Return the horizontal position of a ratio."""
        share = math.log(ratio / self._low) / math.log(self._high / self._low)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def grid(self, top: float, bottom: float) -> list[Markup]:
        """Return the lines of a panel, that of 1 darker, with their labels below."""
        drawn = []
        for value in _TICKS:
            if self._low <= value <= self._high:
                x = self.place(value)
                drawn += [
                    element("line", x1=x, x2=x, y1=top, y2=bottom, stroke=_SOFT,
                            stroke_opacity=0.9 if value == 1 else 0.25),
                    _label(x, bottom + 15, f"{value:g}", anchor="middle", fill=_SOFT),
                ]  # fmt: skip
        return drawn


def _baseline(policies: Sequence[Agreement]) -> Agreement:
    return next(each for each in policies if each.policy == BASELINE)


def _dot(axis: _Axis, ratio: Ratio | None, y: float, color: str) -> list[Markup]:
    """Return the mean of a ratio and its interval; nothing without a valid run."""
    if ratio is None:
        return []
    low, high = ratio.low or ratio.mean, ratio.high or ratio.mean
    return [
        element("line", x1=axis.place(low), x2=axis.place(high), y1=y, y2=y, stroke=color,
                stroke_width=2, stroke_opacity=0.5),
        element("circle", cx=axis.place(ratio.mean), cy=y, r=4, fill=color),
    ]  # fmt: skip


def _legend() -> list[Markup]:
    return [
        _label(0, 16, f"TTFT p90 as ratio to {BASELINE}, 95 % intervals; smaller is better"),
        element("circle", cx=6, cy=32, r=4, fill=_LIVE),
        _label(16, 36, "live, through Envoy"),
        element("circle", cx=156, cy=32, r=4, fill=_SIMULATED),
        _label(166, 36, "simulated"),
    ]


def _label(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    weight: str = "400",
    fill: str = "#16191c",
) -> Markup:
    return element("text", text, x=x, y=y, text_anchor=anchor, font_weight=weight, fill=fill)
