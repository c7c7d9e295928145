"""Parts of a page in Prometheus' text format; the constant parts are rendered once."""

from __future__ import annotations

from functools import lru_cache

from epp.lab.fleet.stats import ServerHistogram

_SHARED = 1024


def escape(value: str) -> str:
    """Return a label's value, escaped for a place between quotes."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class HistogramText:
    """The samples of a histogram."""

    def __init__(self, name: str, labels: str, histogram: ServerHistogram) -> None:
        self._heads = _bucket_heads(name, labels, histogram.bounds)
        self._count_head = f"{name}_count{{{labels}}} "
        self._sum_head = f"{name}_sum{{{labels}}} "
        self._histogram = histogram
        self._counts: list[int] = []
        self._text = ""

    def render(self) -> str:
        """Return the current samples, a line each."""
        histogram = self._histogram
        if histogram.counts != self._counts:
            self._counts = histogram.counts.copy()
            counts = histogram.cumulated()
            lines = [
                f"{head}{float(count)!r}" for head, count in zip(self._heads, counts, strict=True)
            ]
            lines.append(f"{self._count_head}{float(counts[-1])!r}")
            lines.append(f"{self._sum_head}{histogram.sum!r}")
            self._text = "\n".join(lines)
        return self._text


@lru_cache(maxsize=_SHARED)
def _bucket_heads(name: str, labels: str, bounds: tuple[float, ...]) -> tuple[str, ...]:
    """Return the sample of each bucket without its value; equal servers share them."""
    return tuple(f'{name}_bucket{{le="{bound}",{labels}}} ' for bound in (*bounds, "+Inf"))
