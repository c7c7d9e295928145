"""Parts of a page in Prometheus' text format."""

from __future__ import annotations

from epp.lab.fleet.stats import Histogram


def escape(value: str) -> str:
    """Return the value of a label as it stands between the quotes."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def histogram_lines(name: str, labels: str, histogram: Histogram) -> list[str]:
    """Return the samples of a histogram."""
    counts = histogram.cumulated()
    bounds = (*map(repr, histogram.bounds), "+Inf")
    return [
        *(
            f'{name}_bucket{{le="{bound}",{labels}}} {float(count)!r}'
            for bound, count in zip(bounds, counts, strict=True)
        ),
        f"{name}_count{{{labels}}} {float(counts[-1])!r}",
        f"{name}_sum{{{labels}}} {histogram.sum!r}",
    ]
