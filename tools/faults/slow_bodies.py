"""Bodies sent byte by byte, many at once, next to normal requests that must not slow down."""

import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from random import Random

from tools.faults.asking import (
    BROKEN,
    Connection,
    Request,
    asked,
    at_most,
    connected,
    judged,
    make_request,
)
from tools.faults.gateway import FaultGateway
from tools.faults.outcome import RunOutcome

AT_ONCE = 500
"""Slow bodies at the same time; more requests take several rounds."""
PIECES = 10
"""Number of single bytes that are sent of each body before the rest."""
NORMAL_AT_ONCE = 8


async def slow_bodies(gateway: FaultGateway, requests: int) -> RunOutcome:
    """Half of the requests are slow; the others are made first alone, then next to slow ones."""
    chooser, outcome = Random(3), RunOutcome()
    slow, normal = requests // 2, requests // 4
    await _normally(gateway, range(normal), chooser, outcome, "alone")
    for first in range(0, slow, AT_ONCE):
        numbers = range(requests + first, requests + min(slow, first + AT_ONCE))
        share = range(
            normal + first * normal // slow, normal + (numbers[-1] + 1 - requests) * normal // slow
        )
        await _round(gateway, numbers, share, chooser, outcome)
    return outcome


async def _round(
    gateway: FaultGateway,
    numbers: Sequence[int],
    normal: Sequence[int],
    chooser: Random,
    outcome: RunOutcome,
) -> None:
    """Send slow bodies concurrently, and some normal requests after each of their bytes."""
    requests = [make_request(number, chooser, prompt_bytes=200) for number in numbers]
    async with AsyncExitStack() as stack:
        entering = (stack.enter_async_context(connected(gateway.port)) for _ in requests)
        connections = [await each for each in entering]
        pairs = list(zip(requests, connections, strict=True))
        for request, connection in pairs:
            await connection.send(request.head)
        await gateway.until("transport_streams", len(pairs))
        for piece in range(PIECES):
            for request, connection in pairs:
                await connection.send(request.body[piece : piece + 1])
            share = normal[piece * len(normal) // PIECES : (piece + 1) * len(normal) // PIECES]
            await _normally(gateway, share, chooser, outcome, "beside slow bodies")
        await at_most(NORMAL_AT_ONCE, (_end(*pair, outcome) for pair in pairs))


async def _end(request: Request, connection: Connection, outcome: RunOutcome) -> None:
    """Send the rest of a slow body; its response must be correct."""
    try:
        await connection.send(request.body[PIECES:])
        coming = await connection.response()
        outcome.answered(judged(request, coming.status, await coming.body()))
    except BROKEN as error:
        outcome.wrong.append(f"slow {request.request_id} was broken off: {error!r}")


async def _normally(
    gateway: FaultGateway, numbers: Sequence[int], chooser: Random, outcome: RunOutcome, what: str
) -> None:
    async def one(number: int) -> None:
        request = make_request(number, chooser, prompt_bytes=500, events=8)
        began = time.perf_counter()
        fault = await asked(gateway.port, request)
        outcome.seconds.setdefault(what, []).append(time.perf_counter() - began)
        outcome.answered(fault)

    await at_most(NORMAL_AT_ONCE, (one(number) for number in numbers))
