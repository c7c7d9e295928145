"""Where the time of a simulation goes: shares of its parts, by Python's profiler."""

import cProfile
import pstats
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, TypeVar, cast

T = TypeVar("T")

_PARTS: Mapping[str, tuple[str, ...]] = {
    "engine": ("epp/lab/fleet",),
    "traffic": ("epp/lab/traffic", "simulation/prompts.py"),
    "scrapes": (
        "epp/data_layer",
        "simulation/scraping.py",
        "engine_scrapes.py",
        "epp/outlier_detection",
    ),
    "gateway and servers": ("epp/lab/simulation",),
    "loop": ("asyncio",),
    "endpoint picker": ("epp/", "epp_plugins"),
}
"""Parts of paths by part of the simulation; the first one that matches counts."""

_Function = tuple[str, int, str]


def profiled(work: Callable[[], T]) -> tuple[T, Mapping[str, float]]:
    """Run ``work``; return its result and the share of the time of each part, largest first.

    The profiler slows calls down, so parts with many small functions look larger than they are.
    """
    profile = cProfile.Profile()
    result = profile.runcall(work)
    # The module's attributes are not in its type.
    stats = cast("dict[_Function, Any]", vars(pstats.Stats(profile))["stats"])
    seconds: Counter[str] = Counter()
    for function, (_, _, own, _, callers) in stats.items():
        if _part(function) is None and callers:  # a builtin: its callers use the time
            for caller, (_, _, share, _) in callers.items():
                seconds[_part(caller) or "other"] += share
        else:
            seconds[_part(function) or "other"] += own
    total = sum(seconds.values())
    return result, {name: value / total for name, value in seconds.most_common()}


def _part(function: _Function) -> str | None:
    path = PurePath(function[0]).as_posix()
    if path.endswith("simulation/virtual_loop.py"):
        return "loop"
    for name, places in _PARTS.items():
        if any(place in path for place in places):
            return name
    return None
