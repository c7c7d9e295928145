"""Ends streams whose responses pass through here so that no chunk is lost.

Envoy keeps no copy of a chunk that is on its way when its stream ends. The next one is farthest
right after the last, and whatever came with that: so a stream ends a moment after a chunk, and not
in the middle of a silence of unknown length.
"""

import asyncio
from collections.abc import Callable, Set
from contextlib import suppress

import structlog

from epp.ext_proc.stream import ExtProcStream

LAST_CHUNK_SECONDS = 1.0
"""How long the end of a stream waits for a pause in a response that passes through it."""

PAUSE_SECONDS = 0.002
"""A response that stays away so long after a chunk is between two: longer than the chunks of one
event are apart, and much shorter than two tokens of a model."""

ENDS_AT_ONCE = 16
"""To end a stream takes time, in which the pauses of the others pass."""

_READING_TURNS = 2
"""Of asyncio's loop; uvloop needs one."""

log = structlog.get_logger()


async def end_in_pauses(streams: Set[ExtProcStream], end: Callable[[ExtProcStream], None]) -> None:
    """End every stream when its response has just paused, for :data:`LAST_CHUNK_SECONDS` at most.

    Args:
        streams: They leave the set when they are closed; those that are left have not paused.
        end: Ends one.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(LAST_CHUNK_SECONDS):
            await _end_in_pauses(streams, end)


async def _end_in_pauses(streams: Set[ExtProcStream], end: Callable[[ExtProcStream], None]) -> None:
    passed = {stream: stream.passed_bytes for stream in streams}
    flowing: set[ExtProcStream] = set()
    clock = asyncio.get_running_loop().time
    while streams:
        looked_at = clock()
        await asyncio.sleep(PAUSE_SECONDS)
        await let_messages_come()
        paused = []
        for stream in streams:
            if passed.get(stream) != (now := stream.passed_bytes):
                passed[stream] = now
                flowing.add(stream)
            elif stream in flowing:
                paused.append(stream)
        is_late = clock() - looked_at > 2 * PAUSE_SECONDS
        for stream in paused[: 0 if is_late else ENDS_AT_ONCE]:
            end(stream)
        flowing.difference_update(paused)  # those left over wait for their next pause


async def let_messages_come() -> None:
    """Have what there is to read be read: the timers of a loop that is late come before that."""
    for _ in range(_READING_TURNS):
        await asyncio.sleep(0)


def end_safely(end: Callable[[], None]) -> None:
    """End a stream; what goes wrong at that is logged, as the others have to end, too."""
    try:
        end()
    except Exception:
        log.exception("stream was not ended in order")
