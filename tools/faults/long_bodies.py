"""Requests with bodies of 12 MB that complete at the same time; some clients leave halfway."""

import asyncio
from collections.abc import Sequence
from random import Random

from tools.faults.asking import BROKEN, Request, connected, judged, make_request
from tools.faults.gateway import FaultGateway
from tools.faults.outcome import RunOutcome

BODY_BYTES = 12_000_000
REST_BYTES = 1_000
EVENTS = 8
AT_ONCE = 64
LEAVING = 1 / 8


async def long_bodies(gateway: FaultGateway, requests: int) -> RunOutcome:
    """Every body must arrive complete and unchanged, however many arrive with it."""
    chooser, outcome = Random(4), RunOutcome()
    for first in range(0, requests, AT_ONCE):
        await _together(gateway, range(first, min(first + AT_ONCE, requests)), chooser, outcome)
    return outcome


async def _together(
    gateway: FaultGateway, numbers: Sequence[int], chooser: Random, outcome: RunOutcome
) -> None:
    """Send all bodies without their ends, and then the ends."""
    almost_whole = asyncio.Barrier(len(numbers))

    async def one(request: Request, leaves_after: int | None) -> None:
        async with connected(gateway.port) as connection:
            if leaves_after is not None:
                await connection.send(request.head + request.body[:leaves_after])
                await almost_whole.wait()
                await connection.leave(with_reset=True)
                outcome.broken["left mid-body"] += 1
                return
            await connection.send(request.head + request.body[:-REST_BYTES])
            await almost_whole.wait()
            try:
                await connection.send(request.body[-REST_BYTES:])
                coming = await connection.response()
                outcome.answered(judged(request, coming.status, await coming.body()))
            except BROKEN as error:
                outcome.wrong.append(f"{request.request_id} was broken off: {error!r}")

    async with asyncio.TaskGroup() as tasks:
        for number in numbers:
            request = make_request(number, chooser, prompt_bytes=BODY_BYTES, events=EVENTS)
            leaves = chooser.random() < LEAVING
            tasks.create_task(one(request, chooser.randrange(BODY_BYTES) if leaves else None))
