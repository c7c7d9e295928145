"""Mooncake traces: JSON lines with a time, lengths, and the ids of the prompt's blocks.

``{"timestamp": 3000, "input_length": 1100, "output_length": 52, "hash_ids": [0, 7, 8]}``: time in
milliseconds; equal ids at the beginning of two prompts are the same text.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from pathlib import Path
from random import Random
from statistics import median

import msgspec

from epp.lab.traffic.request import Segment, TrafficRequest
from epp.lab.traffic.traces.rows import TraceLineError, json_lines
from epp.lab.traffic.workload import Conversation, content_of

BLOCK_TOKENS = 512
"""Tokens of a block in the published traces."""
_TICK_MS = 3000
"""Resolution of the published conversation trace; also for a part of it with a single time."""
_LEAST_TICK_MS = 1000


class MooncakeRow(msgspec.Struct, frozen=True, gc=False):
    """One request."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int] = []


def read_rows(path: Path, block_tokens: int) -> Iterator[MooncakeRow]:
    """Yield the rows of a file.

    Raises:
        TrafficError: The file cannot be read, or a line is invalid.
    """
    latest = 0.0
    for number, row in json_lines(path, MooncakeRow):
        if min(row.input_length, row.output_length, row.timestamp) < 0:
            raise TraceLineError(path, number, "a length or the timestamp is below 0")
        if row.timestamp < latest:
            problem = f"timestamp {row.timestamp:g} is before the line above; sort the file"
            raise TraceLineError(path, number, problem)
        latest = row.timestamp
        wanted = -(-row.input_length // block_tokens)
        if row.hash_ids and len(row.hash_ids) != wanted:
            problem = (
                f"{len(row.hash_ids)} hash_ids for an input_length of {row.input_length}, which"
                f" has {wanted} blocks of {block_tokens} tokens; is block_tokens another number?"
            )
            raise TraceLineError(path, number, problem)
        yield row


def conversations(
    rows: Iterable[MooncakeRow], block_tokens: int, *, name: str, seed: int
) -> Iterator[Conversation]:
    """Yield a conversation of one request for each row; the first tick begins at 0."""
    rows = list(rows)
    rng = Random(f"{seed}:mooncake")  # noqa: S311 - reproducible, not secret
    texts: dict[int, int] = {}
    for number, (time, row) in enumerate(zip(_spread(rows, rng), rows, strict=True)):
        segments = []
        left = max(1, row.input_length)
        for block in row.hash_ids:
            if (content := texts.get(block)) is None:
                content = texts[block] = content_of(name, block)
            segments.append(Segment(content, min(left, block_tokens)))
            left -= block_tokens
        if not segments:
            segments.append(Segment(content_of(name, "row", number), left))
        yield [
            TrafficRequest(
                index=0,
                arrives_at=time,
                segments=tuple(segments),
                output_tokens=max(1, row.output_length),
            )
        ]


def _spread(rows: list[MooncakeRow], rng: Random) -> Iterator[float]:
    """Yield the times in seconds; those of one tick are spread over it, in ascending order."""
    start = rows[0].timestamp if rows else 0.0
    tick = _tick_ms(rows) / 1000
    latest = 0.0
    for timestamp, same in groupby(row.timestamp for row in rows):
        times = sorted((timestamp - start) / 1000 + rng.random() * tick for _ in same)
        # A tick may be a few milliseconds shorter than the others.
        for time in times:
            latest = max(latest, time)
            yield latest


def _tick_ms(rows: list[MooncakeRow]) -> float:
    """Return the resolution of the times, 0 if they are finer than a second.

    The ticks of the published trace are 2997 to 3003 ms long.
    """
    gaps = [later - earlier for earlier, later in pairwise(sorted({r.timestamp for r in rows}))]
    if not gaps:
        return _TICK_MS
    return median(gaps) if min(gaps) >= _LEAST_TICK_MS else 0.0
