"""Where the time of the straight path goes: a profile by calls and samples by line."""

import cProfile
import pstats
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from bench.in_process import distinct, feed, new_service, silenced

REPOSITORY = Path(__file__).parents[2]


def by_function(messages: Sequence[bytes], requests: int) -> list[tuple[str, float, float, float]]:
    """Return (function, calls, own us, cumulative us) per request, the most own time first."""
    with silenced("info"):
        service = new_service()
        feed(service, distinct(messages, 0, 500))
        fed = distinct(messages, 500, requests)
        profiler = cProfile.Profile()
        profiler.runcall(feed, service, fed)
    stats = pstats.Stats(profiler).stats  # type: ignore[attr-defined] # not in typeshed
    rows = [
        (_named(*key), calls / requests, own / requests * 1e6, total / requests * 1e6)
        for key, (_, calls, own, total, _) in stats.items()
    ]
    return sorted(rows, key=lambda row: -row[2])


def by_line(messages: Sequence[bytes], requests: int) -> list[tuple[str, float]]:
    """Return (line, share of samples in it or below it), the most first; only our own lines."""
    lines: Counter[str] = Counter()
    samples = 0

    def sampled(_: int, frame: FrameType | None) -> None:
        nonlocal samples
        samples += 1
        seen = set()
        while frame is not None:
            seen.add(_named(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
            frame = frame.f_back
        lines.update(seen)

    with silenced("info"):
        service = new_service()
        batches = [distinct(messages, first, 2000) for first in range(0, requests, 2000)]
        before = signal.signal(signal.SIGPROF, sampled)
        signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
        try:
            for batch in batches:
                feed(service, batch)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)
    ours = [(line, count / samples) for line, count in lines.items() if line.startswith("epp")]
    ours += [(n, c / samples) for n, c in lines.items() if n.startswith("plugins")]
    return sorted(ours, key=lambda row: -row[1])


def _named(file: str, line: int, function: str) -> str:
    path = Path(file)
    if path.is_relative_to(REPOSITORY) and ".venv" not in path.parts:
        return f"{path.relative_to(REPOSITORY)}:{line} {function}"
    return f"{path.parent.name}/{path.name}:{line} {function}" if line else function
