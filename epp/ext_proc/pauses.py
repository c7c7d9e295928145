"""Ends streams that carry a response body without losing a chunk of it.

Envoy keeps no copy of a chunk that it has sent here when the stream ends. The next chunk is least
likely to be on its way shortly after the last one, so a stream ends a moment after a chunk, not in
the middle of a silence of unknown length.
"""

import asyncio
from collections.abc import Callable, Set
from contextlib import suppress

import structlog

from epp.ext_proc.stream import ExtProcStream

LAST_CHUNK_SECONDS = 1.0
"""How long the end of a stream waits for a pause in its response."""

PAUSE_SECONDS = 0.002
"""A response that is silent for this long after a chunk has paused: longer than the gaps between
chunks of one event, and much shorter than the time between two tokens."""

ENDS_AT_ONCE = 16
"""Maximum streams ended per check: ending one takes time, in which the pauses of others pass."""

_READING_TURNS = 2
"""Iterations of asyncio's loop; uvloop needs one."""

log = structlog.get_logger(__name__)


async def end_in_pauses(streams: Set[ExtProcStream], end: Callable[[ExtProcStream], None]) -> None:
    """End every stream when its response pauses; return after :data:`LAST_CHUNK_SECONDS` at most.

    Args:
        streams: Open streams. ``end`` removes them from the set; those that remain did not pause.
        end: Ends a stream.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(LAST_CHUNK_SECONDS):
            await _end_in_pauses(streams, end)


async def _end_in_pauses(streams: Set[ExtProcStream], end: Callable[[ExtProcStream], None]) -> None:
    passed = {stream: stream.passed_bytes for stream in streams}
    flowing: set[ExtProcStream] = set()
    clock = asyncio.get_running_loop().time
    while streams:
        checked_at = clock()
        await asyncio.sleep(PAUSE_SECONDS)
        await let_messages_come()
        paused = []
        for stream in streams:
            if passed.get(stream) != (now := stream.passed_bytes):
                passed[stream] = now
                flowing.add(stream)
            elif stream in flowing:
                paused.append(stream)
        is_late = clock() - checked_at > 2 * PAUSE_SECONDS
        for stream in paused[: 0 if is_late else ENDS_AT_ONCE]:
            end(stream)
        flowing.difference_update(paused)  # a stream that was not ended waits for its next pause


async def let_messages_come() -> None:
    """Let the loop read its sockets first: a late loop runs due timers before it reads."""
    for _ in range(_READING_TURNS):
        await asyncio.sleep(0)


def end_safely(end: Callable[[], None]) -> None:
    """Call ``end`` and log its exceptions, so that the caller can go on to end other streams."""
    try:
        end()
    except Exception:
        log.exception("ending a stream failed")
